"""All groups of a cluster, for Prometheus and for clients of Burrow. Read `exporter`, then `seen_groups`."""
