"""A ZooKeeper client that knows nothing of Kafka: one object is one session. Read `session`, then `session_life`.

- `session`: what callers may ask, and whether they may still act (the lease). `session_life`: from connection to
  connection; which requests are repeated. `heartbeat_and_lease`: when probes are due, and until when the lease holds.
- `server_choice`: which server, after which pause (it also ends a former session). `link`: one connection, and
  which reply is whose; `credentials`: how it is secured.
- What a request is: `operations` (paths, connect strings, errors and what follows each, what fits into one
  transaction), `wire` (bytes). Watches: `watch_table` has those of a session, and wakes who waits; `watches` reads
  nodes again only after an event.
"""
