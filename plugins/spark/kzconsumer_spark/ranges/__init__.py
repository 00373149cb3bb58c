"""Ranges inside Spark: which row belongs to which. Read `batch`."""
