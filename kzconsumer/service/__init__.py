"""The daemon: one member and one sink under a service manager. Read `daemon` first.

Signals, SIGHUP, and the deadline of a stop, which is also that of a write of the sink: `stop_and_reload`. Readiness and
the watchdog: `systemd`.
"""
