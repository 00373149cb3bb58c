"""Tables, and functions, that take each range once. Read `delta_table`, then `delta_log`.

- What a commit is, which ranges a table has, and whose it is: `delta_table`, `iceberg_table`, `jdbc_table` (which also
  finds table and owner in PostgreSQL).
- Calls of the store, without deciding what is committed: `delta_log`, `iceberg_log` (with `iceberg_hive`),
  `jdbc_database` (connections, errors, staging tables).
- `delta_columns`, `iceberg_columns` compare columns; the latter also reads a file's partition values. What a table's
  history says of ranges: `table_history`.
- `jdbc_writer` has Spark insert; `function_batch`: what a function is called with, and its steps.
"""
