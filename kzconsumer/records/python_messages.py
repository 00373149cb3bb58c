"""The kernels of `message_kernels` in plain Python: message sets (magic 0 and 1)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, Table
from kzconsumer.records.python_records import Bad, Record, int64, read_rows

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def count_messages(address: int, size: int, magic: int) -> tuple[int, int, int, int]:
    """(status, position, messages, last offset as written) of the message set inside a wrapper.

    A partial message at its end is not counted and no fault, as in Java.
    """
    data = ctypes.string_at(address, size)
    position = count = last = 0
    try:
        for position, _ in _messages(data, magic):
            (last,) = _INT64.unpack_from(data, position)
            count += 1
    except Bad as bad:
        return bad.status, bad.position, count, last
    return L.OK, position, count, last


def read_messages(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
    """As `python_batches.read_batches`, for magic 0 and 1: runs of messages, and wrappers with their set unpacked."""
    return read_rows(table, first, until, outputs, state, _records_of_messages, legacy=True)


def _records_of_messages(entry: list[int]) -> Iterator[Record]:
    data = ctypes.string_at(entry[L.ADDRESS], entry[L.LENGTH])
    magic = entry[L.MAGIC]
    wrapper = entry[L.ATTRIBUTES] & L.CODEC_MASK
    append_time = entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME
    for position, end in _messages(data, magic):
        offset = int64(_INT64.unpack_from(data, position)[0] + entry[L.BASE])
        if not 0 <= offset <= entry[L.LAST]:
            raise Bad(L.BAD_OFFSET, position)
        timestamp, kind = L.NO_TIMESTAMP, L.NO_TIMESTAMP_TYPE
        if magic:
            (timestamp,) = _INT64.unpack_from(data, position + 18)
            kind = L.APPEND_TIME if append_time else L.CREATE_TIME
            if wrapper and append_time:
                timestamp = entry[L.MAX_TIMESTAMP]
        try:
            key, value = two_fields(data, position + (26 if magic else 18), end)
        except Bad:
            raise Bad(L.BAD_FIELD, position) from None
        yield Record(offset, timestamp, kind, key, value, [])


def _messages(data: bytes, magic: int) -> Iterator[tuple[int, int]]:
    position = 0
    while len(data) - position >= L.MAGIC_END:
        (length,) = _INT32.unpack_from(data, position + 8)
        if length < (L.MESSAGE_SIZE_V1 if magic else L.MESSAGE_SIZE_V0):
            raise Bad(L.BAD_SIZE, position)
        end = position + L.LOG_OVERHEAD + length
        if end > len(data):
            return
        if data[position + L.MAGIC_AT] != magic:
            raise Bad(L.BAD_MAGIC, position)
        if data[position + 17] & L.CODEC_MASK:
            raise Bad(L.BAD_NESTING, position)
        yield position, end
        position = end


def two_fields(data: bytes, at: int, end: int) -> tuple[bytes | None, bytes | None]:
    """Key and value of a message, which must end at `end`. That the 8 bytes of lengths are there is known."""
    fields: list[bytes | None] = []
    for still_needed in (4, 0):
        (length,) = _INT32.unpack_from(data, at)
        at += 4
        if length < -1 or length > end - at - still_needed:
            raise Bad(L.BAD_FIELD, at)
        fields.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    if at != end:
        raise Bad(L.BAD_FIELD, at)
    return fields[0], fields[1]
