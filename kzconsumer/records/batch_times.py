"""Timestamps in the framing of batches, read without decoding them."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from kzconsumer.records import layout as L

# Offset, size; [leader epoch or crc]; magic.
_BEGIN = Struct(">qi4xb")
# Of magic 1, after the magic: attributes, timestamp.
_MESSAGE = Struct(">bq")
# Of magic 2, after the magic: crc, attributes, last offset delta, first and largest timestamp.
_BATCH = Struct(">4xhiqq")
# Batches of one response that are looked at: the framing of small ones is not worth a walk through all of them.
MOST = 32


def batch_times(records: memoryview) -> Iterator[tuple[int, int]]:
    """(offset, timestamp in ms since 1970) of the first and last record of each of the first MOST batches, ascending.

    A message of the old format is a batch of one; in a compressed one the last record has the timestamp. Without
    timestamps (magic 0, before 0.10) there are none. Malformed bytes end it.
    """
    at = 0
    for _ in range(MOST):
        if at + L.LOG_OVERHEAD + L.MESSAGE_SIZE_V0 > len(records):
            return
        offset, size, magic = _BEGIN.unpack_from(records, at)
        rest = at + _BEGIN.size
        at += L.LOG_OVERHEAD + size
        if size <= 0 or at > len(records) or offset < 0:
            return
        if magic == 1 and rest + _MESSAGE.size <= at:
            _, time = _MESSAGE.unpack_from(records, rest)
            if time != L.NO_TIMESTAMP:
                yield offset, time
        elif magic == 2 and rest + _BATCH.size <= at:
            attributes, delta, first, largest = _BATCH.unpack_from(records, rest)
            if largest != L.NO_TIMESTAMP and delta >= 0:
                yield offset, largest if attributes & L.LOG_APPEND_TIME else first
                if delta:
                    yield offset + delta, largest
