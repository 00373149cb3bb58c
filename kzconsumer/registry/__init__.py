"""Kafka's and the group's nodes in ZooKeeper: formats, readers, writers. Read `nodes`, then `claim_transactions`."""
