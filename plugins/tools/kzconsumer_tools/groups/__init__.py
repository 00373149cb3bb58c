"""Groups as read from outside, their lag and their problems. Read `group_nodes`, then `cluster_access`.

`group_nodes`: what each node means, and which are wrong. `group_reader` reads and writes nodes, `cluster_access` also
asks brokers. `group_description`, `group_lag`, `diagnosis` (`groups doctor`, `groups verify`) are made of what was
read; `advice`: what to do about each problem.
"""
