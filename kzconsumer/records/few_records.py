"""A small response read in plain Python: what a message on an idle topic takes to reach the application.

Pure. Called by `fetcher.reading`. On a processor that has slept, columns for one record cost ten times what is in it.
It reads what nearly all small responses are; all else, and all that is wrong, it leaves to `decode`.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.python_batches import records_of_batch
from kzconsumer.records.python_framing import BATCH
from kzconsumer.records.python_records import Bad, Record

FEW = 16
"""Records. From about there columns cost less also where everything is warm."""


class FewRecords:
    """The records of a response one by one; as columns when somebody wants those."""

    __slots__ = ("columns", "records")

    def __init__(self, records: list[Record], columns: Callable[[], pa.RecordBatch | None]) -> None:
        """`columns`: decodes the same bytes again."""
        self.records = records
        self.columns = columns

    def __repr__(self) -> str:
        return f"<FewRecords {len(self.records)}>"


def read_few(records: memoryview, start: int, *, check: bool = True) -> tuple[list[Record], int] | None:
    """Records with strictly increasing offsets, all >= `start`, at least one and at most FEW; and where to go on.

    None unless all bytes are whole, plain batches of magic 2: no codec, no control batch, nothing that `decode` would
    complain of. `check` compares their checksums. Never raises.
    """
    data = bytes(records)
    found: list[Record] = []
    low = next_offset = start
    at = count = 0
    while at < len(data):
        if len(data) - at < L.BATCH_HEADER:
            return None
        base, length, _, magic, crc, attributes, delta, first_time, max_time, _, _, _, rows = BATCH.unpack_from(
            data, at
        )
        end = at + L.LOG_OVERHEAD + length
        count += rows
        if (
            magic != 2
            or attributes & (L.CODEC_MASK | L.CONTROL)
            or length < L.BATCH_SIZE
            or end > len(data)
            or not 0 <= base <= L.MAX_OFFSET
            or delta < 0
            or not 0 <= rows <= count <= FEW
            or (check and crc32c(data[at + L.CHECKED_FROM : end]) != crc)
        ):
            return None
        last = base + delta
        try:
            body = data[at + L.BATCH_HEADER : end]
            for record in records_of_batch(body, attributes, base, last, first_time, max_time, rows):
                if record.offset >= low:
                    found.append(record)
                    low = record.offset + 1
        except Bad:
            return None
        next_offset = max(next_offset, last + 1)
        at = end
    return (found, next_offset) if found else None
