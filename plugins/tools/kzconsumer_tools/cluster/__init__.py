"""Brokers and topics of a cluster, and requests to its controller. Read `description`: what is shown.

`cluster_reader` reads topics and brokers, submits and waits (groups are read elsewhere); `requests`: formats, and why
one is refused, without IO.
"""
