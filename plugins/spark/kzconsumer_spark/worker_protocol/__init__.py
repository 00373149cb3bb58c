"""What daemon and worker say to each other, and settings that both read. Read `messages`: structs only.

`kafka_settings`: which of the member's settings the worker and its executors get, and which cannot go there.
`column_options`: how key and value become columns. `spark_settings`: the Spark session (memory, time zone, what the
user may not set), and the compression of what tasks write.
"""
