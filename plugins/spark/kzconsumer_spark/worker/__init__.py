"""The process that holds Spark. Read `worker_main`, then `query`.

`spark_session`: its start. `range_writers`: each batch to its destination. `spark_errors`: what errors of Spark and
databases mean, by SQLSTATE also whether the records are refused, so that no retry helps. `preview` is a process of its
own.
"""
