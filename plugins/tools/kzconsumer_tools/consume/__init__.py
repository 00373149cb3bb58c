"""Printing records, as a member of a group or without one. Read `printing`."""
