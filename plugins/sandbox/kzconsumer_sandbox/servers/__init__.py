"""Real ZooKeeper and Kafka servers on loopback, for trials, the demo and the tests.

Read `sandbox` (a cluster from start to end, its migration to KRaft), then `kafka_servers`: each kind of server,
and whether its node is in ZooKeeper.

- `jars`: which versions there are, which jars and which Java; `jar_fetch` downloads what is missing.
- `configuration`: properties and free ports. `readiness`: whether a server answers. `topic_creation`.
- `server_process`: one that ends with its starter (`die_with_parent`).
- The background sandbox of the command line: `supervisor` runs it, `state_file` describes it, and locks out a second.
"""
