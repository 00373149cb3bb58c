"""One model of how far behind a group is and whether it is well, of which every view is made. Read `partition`, then
`totals`.
"""
