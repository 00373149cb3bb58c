"""Real ZooKeeper and Kafka servers on loopback, for trials, the demo and the tests. Read `servers`, then `demo`.

`commands` has the verbs.
"""
