"""Printing records. Read `printing`."""
