"""Ranges of records as files, published exactly once; the sink `parquet`.

Read `publication`, then `ledger`.

- What is decided, published and remembered: `publication`, `ledger`, `fold_plan`; listed by `holdings`.
- Where: `directory_target`, or `object_target` in an `object_store`; `target_marker`: whose it is; `layout`: its format
  and columns; `private_directory`: one of this process.
- `range_names`: names of ranges and of their files, entries of the ledger, ranges that overlap.
- By whom: `target_writer`, which `parquet` and kzconsumer-spark use.
"""
