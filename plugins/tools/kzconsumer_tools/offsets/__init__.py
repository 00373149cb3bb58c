"""Stored offsets and what changes them. Read `stored_offsets`: which of two storages counts, whose log it is.

- `offset_changes`: each change and its preview (what is skipped or published twice), without IO. `prepare` reads what
  it needs, and applies it; it also chooses what an export has.
  `move`: from ZooKeeper to the brokers and back, by `move_rules`: what blocks it, and its preview.
- `offset_files`: formats of files. `all_groups` only reads the groups of a cluster (shown by `tables.group_tables`).
"""
