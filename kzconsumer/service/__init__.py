"""The daemon: one member and one sink under a service manager. Read `daemon` first."""
