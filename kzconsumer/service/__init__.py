"""The daemon: one member and one sink under a service manager. Read `daemon` first.

Signals, the deadline of a stop and SIGHUP: `stop_and_reload`. Readiness and the watchdog: `systemd`.
"""
