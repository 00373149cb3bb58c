"""Brokers and topics of a cluster, and requests to its controller. Read `description`: what is shown.

`cluster_reader` reads, submits and waits; `requests`: formats, and why one is refused, without IO.
"""
