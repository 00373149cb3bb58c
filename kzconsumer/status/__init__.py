"""What a member reports of itself over HTTP. Read `observer`, then `report`.

- `observer` looks at intervals: whether the member is stalled, what the page shows of the group. Whether a partition
  advances, and why not: `partition_health`. What is degraded: `report`.
- Shown by: `metrics`; `status_server` (JSON documents, also of the settings in force, and the page in `browser`).
  `web_server` (HTTP itself) and `access` (who may read) are shared with other programs.
"""
