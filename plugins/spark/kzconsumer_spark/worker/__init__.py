"""The process that holds Spark; whether a batch is tried again is decided in `daemon.sink`.

Read `worker_main` (commands, the parts of a start, the end with the daemon), then `query`: one batch as one run of
foreachBatch, by the lease, and what Spark reports of it. `spark_session`: Java and the session are started, secrets not
on a command line. `range_writers`: each batch to its destination. `spark_errors`: what errors of Spark and databases
mean, by SQLSTATE also whether the records are refused, so that no retry helps. `preview` is a process of its own.
"""
