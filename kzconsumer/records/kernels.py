"""The kernels compiled by numba: functions over raw addresses that run without the GIL.

Arguments and results are documented at the same functions in plain Python (`python_kernels`).
A kernel never raises, never reads outside the bytes it was given, and writes no further than the capacities in the
state. The rules for that: a record is bounded by its length first, each field by the record's end; every byte of a
varint is checked; lengths are compared by subtraction, because a sum could overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from numba import njit

from kzconsumer.records.batch_kernels import read_batches, read_headers
from kzconsumer.records.framing_kernels import plan, scan
from kzconsumer.records.kernel_set import KernelSet, Table
from kzconsumer.records.message_kernels import count_messages, read_messages
from kzconsumer.records.pointers import copy, load_u32_little
from kzconsumer.records.transaction_kernels import hide_aborted

P = ParamSpec("P")
R = TypeVar("R")

_SCAN = "UniTuple(int64, 3)(int64, int64, boolean, int64[:, ::1], Array(uint32, 3, 'C', readonly=True))"
_HIDE_ABORTED = "UniTuple(int64, 2)(int64[:, ::1], int64, int64[:, ::1])"
_PLAN = "UniTuple(int64, 4)(int64[:, ::1], int64, int64, int64)"
_COUNT = "UniTuple(int64, 4)(int64, int64, int64)"
_READ = "UniTuple(int64, 3)(int64[:, ::1], int64, int64, int64[::1], int64[::1])"
_READ_HEADERS = "int64(int64[:, ::1], int64, int64, int64, int64, int64, int64, int64)"
_JOIN_CELLS = "int64(int64[:, ::1], int64, int64)"


def compile_all(*, cache: bool) -> KernelSet:
    """Every kernel, compiled or from numba's cache as it is configured now. Raises whatever numba raises."""

    def compiled(signature: str, function: Callable[P, R]) -> Callable[P, R]:
        kernel: Callable[P, R] = njit(signature, nogil=True, cache=cache, error_model="numpy")(function)
        return kernel

    return KernelSet(
        scan=compiled(_SCAN, scan),
        hide_aborted=compiled(_HIDE_ABORTED, hide_aborted),
        plan=compiled(_PLAN, plan),
        count_messages=compiled(_COUNT, count_messages),
        read_batches=compiled(_READ, read_batches),
        read_messages=compiled(_READ, read_messages),
        read_headers=compiled(_READ_HEADERS, read_headers),
        join_cells=compiled(_JOIN_CELLS, join_cells),
    )


def join_cells(parts: Table, rows: int, out: int) -> int:
    # It reads what our own columns hold, not what came over the network, and so checks no bounds.
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
