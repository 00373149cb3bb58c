"""Compiled kernel that finds the batches of aborted transactions.

The rules of `kernels` apply; arguments and results are documented in `python_kernels`.
"""

from __future__ import annotations

from kzconsumer.records import layout as L
from kzconsumer.records.batch_kernels import control_type
from kzconsumer.records.kernel_set import Table, Transactions
from kzconsumer.records.pointers import load_i64


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
