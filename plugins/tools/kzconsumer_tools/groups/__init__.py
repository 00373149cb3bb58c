"""Groups from outside. Read `group_nodes`, then `cluster_access`."""
