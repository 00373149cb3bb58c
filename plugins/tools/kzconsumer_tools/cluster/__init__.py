"""Brokers and topics of a cluster, and requests to its controller. Read `description`: what is shown.

`cluster_reader` reads topics, which groups own them, and brokers; it submits changes and waits. `requests`: formats,
and why one is refused, without IO.
"""
