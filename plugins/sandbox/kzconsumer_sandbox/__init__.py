"""Real ZooKeeper and Kafka servers on loopback (`servers`), the demo on them (`demo`), and the commands of both."""
