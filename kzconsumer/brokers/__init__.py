"""A Kafka client that knows nothing of ZooKeeper. Read `connection`, then `leaders`."""
