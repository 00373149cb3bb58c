"""Stored offsets and what changes them. Read `stored`, then `changes`."""
