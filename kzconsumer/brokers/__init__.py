"""A Kafka client that knows nothing of ZooKeeper. Read `connection`, then `leaders`.

- One connection: `connection` (which versions a broker speaks, also one that does not say so; authentication, and when
  it is due again) on a `transport` (the socket, TLS, responses matched to requests).
- Those of a member: `pool` (opened on request, refused for a while after TLS or SASL failed; brokers asked in turn).
- `leaders`: who leads a partition; what leaders say of their logs (first and last offsets, offsets of times, epochs).
"""
