"""Stored offsets and what changes them. Read `stored_offsets`, then `offset_changes`.

`prepare` reads a group and computes its changes; `offset_changes` are pure. `move`: from ZooKeeper to the brokers and
back. `offset_files`: formats of files. `all_groups`: the list of all groups of a cluster, with lag and last commit.
"""
