"""All groups of a cluster, for Prometheus and for clients of Burrow. Read `exporter`, then `seen_groups`.

`kafka_groups`: those with Kafka's newer consumer. `exporter_server` serves the figures, `burrow` has its documents;
`group_feed`: a group as `kzconsumer top` shows it.
"""
