"""Ranges inside Spark: which row belongs to which.

Read `batch`: the frame and its ranges, rows that were lost, the worker's lease. `staged_files`: each range as files,
known by their footers or directories. `unstorable_rows`: those that a destination cannot hold.
"""
