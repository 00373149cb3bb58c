"""One model of how far behind a group is and whether it is well, of which every view is made.

Read `partition` (lag, rate and time left of one, and why each is unknown; how its log grew, as was seen), then `totals`
(their sums, findings and the verdict). `fetched_times` remembers timestamps of fetched records, for the lag in seconds.
"""
