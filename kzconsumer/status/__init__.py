"""What a member reports of itself over HTTP. Read `observer`, then `report`.

- Whether a partition advances, and why not: `partition_health`. What is degraded: `report`.
- Shown by: `metrics`; `status_server` (JSON documents, also of the settings in force, and the page in `browser`).
  `web_server` and `access` are shared with other programs.
"""
