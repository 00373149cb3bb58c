"""All groups of a cluster, for Prometheus and for clients of Burrow.

Read `exporter` (reads at intervals, session after session), then `seen_groups`: what is reported of each group, and
what is remembered from reading to reading. `kafka_groups`: those with Kafka's newer consumer. `exporter_server` serves
the figures, and says what is not there; `burrow` has its documents; `group_feed`: a group as `kzconsumer top` shows it.
"""
