"""What Spark's tasks run: ranges are fetched from the brokers where they are written. Read `fetching`.

- In the driver: `task_parts` (how a batch is divided into tasks), `broker_access` (with which settings and secrets a
  task reaches brokers), `planned_topics` (whether topics were created again), `range_source` (what Spark asks for).
- In a task: `fetching`, which also accounts for what was read, and rejects records; `task_files`, which writes many
  directories at once. `python_daemon` starts the Python processes of a cluster's executors.
"""
