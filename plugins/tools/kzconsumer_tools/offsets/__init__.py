"""Stored offsets and their changes. Read `changes`."""
