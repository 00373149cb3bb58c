"""The compiled kernel that joins cells of Arrow columns row by row, for who prints records.

Owns nothing. Compiled by `kernels`; arguments and results are documented in `python_cells`. Unlike the others it reads
what our own columns hold, not what came over the network.
"""

from __future__ import annotations

from kzconsumer.records.kernel_set import Table
from kzconsumer.records.pointers import copy, load_u32_little


def join_cells(parts: Table, rows: int, out: int) -> int:
    at = out
    for row in range(rows):
        for part in range(len(parts)):
            ends = parts[part, 0]
            data = parts[part, 1]
            if ends == 0:
                size = parts[part, 2]
                copy(at, data, size)
            else:
                first = load_u32_little(ends + 4 * row)
                size = load_u32_little(ends + 4 * row + 4) - first
                copy(at, data + first, size)
            at += size
    return at - out
