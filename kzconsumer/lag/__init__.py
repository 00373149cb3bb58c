"""One model of how far behind a group is and whether it is well, of which every view is made.

Read `partition` (lag, rate and time left of one, why each is unknown, and for how long its owner has stored nothing),
then `totals` (their sums, findings and the verdict). `write_times`, for the lag in seconds: timestamps of fetched
records, and when the log had grown how far.
"""
