"""The process that holds Spark. Read `worker_main`, then `query`.

`spark_session`: its start; `spark_errors`: what errors mean, of Spark and databases. `range_writers`: each batch to its
destination. `preview` is a process of its own.
"""
