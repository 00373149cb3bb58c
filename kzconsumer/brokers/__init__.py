"""A Kafka client that knows nothing of ZooKeeper. Read `connection`, then `leaders`.

- One connection: `connection` (versions, authentication) on a `transport` (the socket, TLS, responses matched to
  requests). Those of a member: `pool`, which also asks brokers one after another.
- `leaders`: who leads a partition; what leaders say of their logs (first and last offsets, offsets of times, epochs).
"""
