"""The member's side. Read `sink`: it has the worker write each batch, and decides what follows a batch that failed:
again after a pause, without corrupt data, given up.

`sink_options`, and `requirements` of this machine (packages, jars, Python, directories). `worker_process`: started,
with which environment, given the lease, replaced. `marked_destination`: the destination and its ledger as the daemon
asks it; has a preview made.
"""
