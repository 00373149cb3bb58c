"""Real ZooKeeper and Kafka servers on loopback, for trials, the demo and the tests.

Read `sandbox`, then `kafka_servers`.

- `jars` and `jar_fetch`: which servers there are, and where their jars and their Java come from.
- `configuration`, `readiness`: properties and free ports, whether a server answers. `topic_creation`.
- `server_process`: one that ends with its starter (`die_with_parent`).
- `state_file`, `supervisor`: the background sandbox of the command line.
"""
