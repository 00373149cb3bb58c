"""Groups as read from outside, their lag and their problems. Read `group_nodes`, then `cluster_access`.

- `group_nodes`: what each node means, and which are wrong. `group_reader` reads and writes nodes, `cluster_access` also
  asks brokers.
- Made of what was read, without IO: `group_description` (also how a group would be if members joined), `group_lag`
  (also the remarks below its table), `diagnosis` (`groups doctor`, `groups verify`, nodes that may be removed).
  `advice`: what to do about each problem.
"""
