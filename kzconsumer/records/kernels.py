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

from kzconsumer.records import layout as L
from kzconsumer.records.batch_kernels import control_type, read_batches, read_headers
from kzconsumer.records.framing_kernels import plan, scan
from kzconsumer.records.kernel_set import KernelSet, Table, Transactions
from kzconsumer.records.message_kernels import count_messages, read_messages
from kzconsumer.records.pointers import copy, load_i64, load_u32_little

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


def hide_aborted(table: Table, rows: int, transactions: Transactions) -> tuple[int, int]:
    number = transactions.shape[0]
    horizon = -1
    for row in range(rows):
        entry = table[row]
        if entry[L.MAGIC] != 2:
            continue
        begin = entry[L.ADDRESS]
        producer = load_i64(begin - L.BATCH_HEADER + L.PRODUCER_AT)
        if producer < 0:
            continue
        horizon = max(horizon, entry[L.LAST])
        first = 0
        beyond = number
        while first < beyond:
            middle = (first + beyond) // 2
            if transactions[middle, L.T_PRODUCER] < producer:
                first = middle + 1
            else:
                beyond = middle
        if first == number or transactions[first, L.T_PRODUCER] != producer:
            continue
        due = transactions[first, L.T_NEXT]
        attributes = entry[L.ATTRIBUTES]
        if (attributes & L.CONTROL) != 0:
            if entry[L.COUNT] <= 0:
                continue  # emptied by compaction
            kind = L.NO_CONTROL_TYPE
            if (attributes & L.CODEC_MASK) == 0:
                kind = control_type(begin, begin + entry[L.LENGTH])
            if kind == L.NO_CONTROL_TYPE:
                return L.BAD_MARKER, row
            if kind == L.ABORT:
                while (
                    due < number
                    and transactions[due, L.T_PRODUCER] == producer
                    and transactions[due, L.T_FIRST] <= horizon
                ):
                    due += 1
                transactions[first, L.T_NEXT] = due
        elif (
            (attributes & L.TRANSACTIONAL) != 0
            and due < number
            and transactions[due, L.T_PRODUCER] == producer
            and transactions[due, L.T_FIRST] <= horizon
        ):
            entry[L.ATTRIBUTES] = attributes | L.CONTROL
    return L.OK, rows


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
