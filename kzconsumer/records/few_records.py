"""Decodes a small response in plain Python, for a consumer that wants messages.

On a processor that has slept, columns for one record cost ten times what is in it, and they are part of the delay of a
message on an idle topic. What is not an ordinary small response, and whatever is wrong with one, is left to `decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.decode import Decoded
from kzconsumer.records.forms import Headers, Records, Rows
from kzconsumer.records.python_batches import records_of_batch
from kzconsumer.records.python_framing import BATCH
from kzconsumer.records.python_records import Bad, Record

MOST_RECORDS = 16
"""From about there columns cost less also where everything is warm."""

MOST_BYTES = 16 * 1024


class FewRecords(Records):
    """Decoded records one by one."""

    __slots__ = ("_partition", "_records", "_topic")

    def __init__(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        self._topic = topic
        self._partition = partition
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def nbytes(self) -> int:
        return self.columns().nbytes

    def slice(self, first: int, until: int | None = None) -> FewRecords:
        return FewRecords(self._topic, self._partition, self._records[first:until])

    def below(self, offset: int) -> FewRecords:
        return FewRecords(self._topic, self._partition, [each for each in self._records if each.offset < offset])

    def rows(self) -> Rows:
        records = self._records
        offsets = [record.offset for record in records]
        gapless = bool(records) and offsets[-1] - offsets[0] == len(offsets) - 1
        return Rows(
            range(offsets[0], offsets[-1] + 1) if gapless else offsets,
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp for record in records],
            [record.timestamp_type for record in records],
            [_headers(record) for record in records] if any(record.headers for record in records) else None,
        )

    def columns(self) -> pa.RecordBatch:
        n, records = len(self._records), self._records
        times = [None if record.timestamp == L.NO_TIMESTAMP else record.timestamp for record in records]
        columns: list[pa.Array[Any]] = [
            pa.DictionaryArray.from_arrays(np.zeros(n, np.int8), pa.array([self._topic], pa.string())),
            pa.array(np.full(n, self._partition, np.int32)),
            pa.array([record.offset for record in records], pa.int64()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(times, SCHEMA.field("timestamp").type),
            pa.array([_headers(record) for record in records], SCHEMA.field("headers").type),
            pa.array([record.timestamp_type for record in records], pa.int8()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _headers(record: Record) -> Headers:
    return tuple((str(key, "utf-8", "replace"), value) for key, value in record.headers)


def decode_few(records: memoryview, *, topic: str, partition: int, start: int, check: bool = True) -> Decoded | None:
    """The same records as `decode` gives, at least one and at most MOST_RECORDS. Never raises.

    None unless all bytes are whole, plain batches of magic 2: no codec, no control batch, nothing that `decode` would
    complain of. `check` compares their checksums.
    """
    if len(records) > MOST_BYTES:
        return None
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
            or not 0 <= rows <= count <= MOST_RECORDS
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
    return Decoded(FewRecords(topic, partition, found), next_offset, size=len(data)) if found else None
