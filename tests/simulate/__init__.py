"""Groups under random faults, in memory: as many schedules as there is time for. `python -m tests.simulate --help`."""
