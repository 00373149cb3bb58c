"""The process that holds Spark. Read `worker_main`, then `query`.

`spark_session`: its start; `spark_errors`: what its errors mean. `range_writers`: each batch to its destination.
`preview` is a process of its own.
"""
