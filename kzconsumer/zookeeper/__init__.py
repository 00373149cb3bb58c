"""A ZooKeeper client that knows nothing of Kafka: one object is one session. Read `session`, then `session_life`.

- Over connections: `session_life` (which also repeats requests), `server_choice` (which also ends a former session),
  `heartbeat_and_lease`, `link`, `credentials`.
- What a request is: `operations`, `wire`. Watches: `watch_table` has those of a session, and wakes who waits;
  `watches` reads nodes again only after an event.
"""
