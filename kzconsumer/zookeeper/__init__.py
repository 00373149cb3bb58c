"""A ZooKeeper client that knows nothing of Kafka: one object is one session. Read `session`, then `session_life`."""
