"""Ranges of records in Spark: reading the spool, distinguishing rows of different ranges, staging files."""
