"""The kernels in plain Python: for small inputs before numba is loaded, where numba does not work, and as test oracle.

Each function takes and gives what its namesake in `kernels` does, addresses included, and both are documented at the
Python one: here, and in `python_framing`, `python_batches` and `python_messages`. They are not translations: a shared
mistake would escape the comparison in the tests.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise

import numpy as np

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import KernelSet, Table, Transactions
from kzconsumer.records.python_batches import control_type, read_batches, read_headers
from kzconsumer.records.python_framing import plan, scan
from kzconsumer.records.python_messages import count_messages, read_messages


def hide_aborted(table: Table, rows: int, transactions: Transactions) -> tuple[int, int]:
    """Set the control bit of every batch that belongs to an aborted transaction: it is then passed over like a marker.

    `table`: as scanned, ADDRESS still in the response. `transactions`: the T_ cells of each aborted transaction, by
    producer and first offset; of a producer's first row T_NEXT is the index of that row. Left in any state.
    Result: (OK, rows), or (status, row) of the first marker that cannot be read; the rows before it are done.
    Matches `org.apache.kafka.clients.consumer.internals.CompletedFetch` (3.9): a transaction is aborted from its first
    offset to its producer's next abort marker.
    """
    waiting = sorted(((first, producer) for producer, first, _ in transactions.tolist()), reverse=True)
    concerned = {producer for _, producer in waiting}
    aborted: set[int] = set()
    for row, entry in enumerate(table[:rows].tolist()):
        if entry[L.MAGIC] != 2:
            continue
        header = ctypes.string_at(entry[L.ADDRESS] - L.BATCH_HEADER, L.BATCH_HEADER)
        producer = int.from_bytes(header[L.PRODUCER_AT : L.PRODUCER_AT + 8], "big", signed=True)
        if producer < 0:
            continue
        while waiting and waiting[-1][0] <= entry[L.LAST]:
            aborted.add(waiting.pop()[1])
        if producer not in concerned:
            continue
        if entry[L.ATTRIBUTES] & L.CONTROL:
            if entry[L.COUNT] <= 0:
                continue
            compressed = entry[L.ATTRIBUTES] & L.CODEC_MASK
            kind = L.NO_CONTROL_TYPE if compressed else control_type(entry)
            if kind == L.NO_CONTROL_TYPE:
                return L.BAD_MARKER, row
            if kind == L.ABORT:
                aborted.discard(producer)
        elif entry[L.ATTRIBUTES] & L.TRANSACTIONAL and producer in aborted:
            table[row, L.ATTRIBUTES] |= L.CONTROL
    return L.OK, rows


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


PYTHON_KERNELS = KernelSet(
    scan, hide_aborted, plan, count_messages, read_batches, read_messages, read_headers, join_cells
)
