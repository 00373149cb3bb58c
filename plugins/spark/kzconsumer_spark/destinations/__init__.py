"""Tables, and functions, that take each range once. Read `delta_table`, then `delta_log`.

For each table: `delta_table`, `iceberg_table`, `jdbc_table` say what a commit is; `delta_log`, `iceberg_log` (with
`iceberg_hive`), `jdbc_database` speak with the store; `delta_columns`, `iceberg_columns` compare columns. What a table
says of ranges: `table_history`. `jdbc_writer` inserts; `function_batch` is for functions.
"""
