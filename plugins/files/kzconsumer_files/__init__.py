"""Ranges of records as files, published exactly once; the sink `parquet`.

Read `publication`, then `ledger`.

- What is decided, published and remembered: `publication`, `ledger`, `fold_plan`; listed by `holdings`.
- Where: `target` is a directory, `object_target` a place in an `object_store`; `target_marker`: whose it is; `layout`:
  its format and columns; `names`: of files; `private_directory`: one of this process.
- By whom: `writer`, which `parquet` and kzconsumer-spark use.
"""
