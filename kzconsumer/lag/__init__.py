"""One model of how far behind a group is and whether it is well, of which every view is made.

Read `partition` (lag, rate and time left of one, and why each is unknown), then `totals` (their sums, findings and the
verdict). `write_times`, for the lag in seconds: timestamps of fetched records, and when the log had grown how far.
"""
