"""Cells of Arrow columns joined row by row, in plain Python.

Owns nothing. One of the kernels of `python_kernels`.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np

from kzconsumer.records.kernel_set import Table


def join_cells(parts: Table, rows: int, out: int) -> int:
    """Write `rows` rows one after the other, each the cells of all `parts`, to the address `out`; returns the bytes.

    A part is (address of rows + 1 int32 offsets, address of the bytes, 0), or (0, address, size) for bytes that every
    row has. The caller has made room for all of it.
    """
    columns: list[list[bytes]] = []
    for ends, data, size in parts.tolist():
        if not ends:
            columns.append([ctypes.string_at(data, size)] * rows)
            continue
        offsets = np.frombuffer(ctypes.string_at(ends, 4 * (rows + 1)), np.int32).tolist()
        columns.append([ctypes.string_at(data + first, until - first) for first, until in pairwise(offsets)])
    joined = b"".join(cell for row in zip(*columns, strict=True) for cell in row)
    ctypes.memmove(out, joined, len(joined))
    return len(joined)
