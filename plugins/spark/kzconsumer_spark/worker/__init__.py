"""The process that holds Spark. Read `worker_main`, then `query`."""
