"""The kernel of `transaction_kernels` in plain Python: which batches belong to aborted transactions.

Owns nothing. Called through `python_kernels`, whose rules hold.
"""

from __future__ import annotations

import ctypes

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Table, Transactions
from kzconsumer.records.python_batches import control_type


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
