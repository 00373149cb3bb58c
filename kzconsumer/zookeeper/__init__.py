"""A ZooKeeper client that knows nothing of Kafka: one object is one session. Read `session`, then `session_life`.

- Over connections: `session_life`, `server_choice` (which also ends a former session), `heartbeat`, `link`,
  `credentials`.
- Requests: `operations`, `wire`. Watches: `watch_table`, `watches`.
"""
