"""Ranges of records as files, published exactly once; the sink `parquet`.

Read `publication`, then `ledger`.
"""
