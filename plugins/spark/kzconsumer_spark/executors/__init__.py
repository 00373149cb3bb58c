"""What Spark's tasks run: ranges are fetched from the brokers where they are written. Read `fetching`.

- In the driver: `task_parts` (the parts of a batch, and what a task takes along), `planned_topics`, `range_source`.
- In a task: `fetching`, which also accounts for what was read; `task_files`.
"""
