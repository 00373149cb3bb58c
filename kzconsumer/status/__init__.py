"""What a member reports of itself over HTTP. Read `observer`, then `report`.

- `observer` looks at intervals, and asks for what no fetch has returned. The phase, and whether the daemon is stalled:
  `health`. Whether a partition advances, and why not: `partition_health`. What is degraded: `report`.
- `group_watch` reads the whole group for the page, while a client asks for it.
- Shown by: `metrics`; `status_server` (JSON documents, also of the settings in force, and the page in `browser`).
  `web_server` (HTTP itself) and `access` (who may read) are shared with other programs.
"""
