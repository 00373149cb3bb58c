"""Ranges inside Spark: which row belongs to which. Read `batch`, which also has the worker's lease.

`staged_files`: written and put in place. `unstorable_rows`: those that a destination cannot hold.
"""
