"""A Kafka client that knows nothing of ZooKeeper. Read `connection`, then `leaders`.

`transport`: the socket, TLS and the settings of security. `pool`: one connection for each broker and purpose.
"""
