"""The kernels in plain Python: for small inputs before numba is loaded, where numba does not work, and as test oracle.

Owns nothing. Every function takes and gives what its namesake in `kernels` does, addresses included, and both are
documented at the Python one: `python_framing`, `python_batches`, `python_messages`, `python_transactions`,
`python_cells`. Written on
their own, not translated: a shared mistake would escape the comparison in the tests.
"""

from __future__ import annotations

from kzconsumer.records.kernel_set import KernelSet
from kzconsumer.records.python_batches import read_batches, read_headers
from kzconsumer.records.python_cells import join_cells
from kzconsumer.records.python_framing import plan, scan
from kzconsumer.records.python_messages import count_messages, read_messages
from kzconsumer.records.python_transactions import hide_aborted

PYTHON_KERNELS = KernelSet(
    scan, hide_aborted, plan, count_messages, read_batches, read_messages, read_headers, join_cells
)
