"""The member's side: options, the worker's life. Read `sink`.

`sink_options`, and `requirements` of this machine. `worker_process`: started, given the lease, replaced.
`marked_destination`: the destination and its ledger as the daemon asks it.
"""
