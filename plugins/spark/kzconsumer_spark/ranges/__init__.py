"""Ranges inside Spark: which row belongs to which. Read `batch`.

`files`: written and put in place. `refused_content`: rows that a destination cannot hold, and errors that mean so.
"""
