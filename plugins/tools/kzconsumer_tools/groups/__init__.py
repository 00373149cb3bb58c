"""Groups as read from outside, their lag and their problems. Read `group_nodes`, then `cluster_access`."""
