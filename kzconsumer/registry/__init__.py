"""Kafka's and the group's nodes in ZooKeeper: formats, readers, writers. Read `nodes`, then `claim_transactions`.

- Formats only: `paths`, `nodes` (of brokers and topics, stored offsets; which listener of a broker), `claim_record`
  (also which owner blocks a claim), `group_records` (registrations of members, the run, ids of topics).
- Claims and releases, each a transaction; the stored offset that is found: `claim_transactions`.
- Topics, brokers and their listeners: `node_topics` reads nodes, `broker_topics` asks brokers (Metadata, and which
  topic an id means), and `cluster_topics` chooses one of them. `cluster` opens the session, identifies the cluster,
  and finds brokers.
"""
