"""Ranges of records as files, published exactly once; the sink `parquet`.

Read `publication`, then `ledger`.

- In a directory: `publication` decides and publishes, `directory_target` has owner, ledger and staged files. In a
  store: `object_target` does all of it, `object_store` has the calls.
- What is settled: `ledger`, which also folds entries, and finds and removes those that a folded one contains;
  `fold_plan`: the rule only, by their spans. `holdings`: what is there, compared with the files.
- `target_marker`: whose a target is; `layout`: its format and columns; `private_directory`: one of this process.
- `range_names`: names of ranges and of their files, entries of the ledger, ranges that overlap.
- By whom: `target_writer` (which ranges are missing, when the ledger is folded), which `parquet`, the sink, and
  kzconsumer-spark use.
"""
