"""Ranges of records in Spark: reading the spool, telling rows of different ranges apart, staging files."""
