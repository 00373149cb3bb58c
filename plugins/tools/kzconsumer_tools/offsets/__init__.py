"""Stored offsets and what changes them. Read `stored`, then `changes`.

`prepare` reads a group and computes its changes; `changes` are pure. `move`: from ZooKeeper to the brokers and back.
`offset_files`: formats of files. `overview`: all groups of a cluster.
"""
