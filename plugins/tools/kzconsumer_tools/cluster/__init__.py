"""Brokers and topics of a cluster, and requests to its controller. Read `description`, then `cluster_reader`."""
