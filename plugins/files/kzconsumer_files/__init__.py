"""Ranges of records as files, published exactly once; the sinks `parquet` and `segments`.

Read `publication`, then `ledger`.
"""
