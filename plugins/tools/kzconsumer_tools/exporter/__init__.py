"""All groups, for Prometheus and Burrow. Read `exporter`."""
