"""What daemon and worker say to each other, and settings that both read. Read `messages`.

`column_options`: how key and value become columns. `spark_settings`: those of the Spark session.
"""
