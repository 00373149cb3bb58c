"""The daemon: one member and one sink under a service manager.

Read `daemon` first: start and end of a run, which changes are applied without a restart, progress in the log, and the
lock that keeps a second process of one configuration away. Signals, SIGHUP, and the deadline of a stop, which is also
that of a write of the sink: `stop_and_reload`. Readiness and the watchdog: `systemd`.
"""
