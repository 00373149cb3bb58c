"""A streaming query as a member of a group. Read `group_source`."""
