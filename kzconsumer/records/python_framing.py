"""The kernels of `framing_kernels` in plain Python: framing and checksums, what to read."""

from __future__ import annotations

import ctypes
import struct
import zlib

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Table
from kzconsumer.records.python_messages import two_fields
from kzconsumer.records.python_records import Bad

BATCH = struct.Struct(">qiibIhiqqqhii")
_MESSAGE = struct.Struct(">qiIbB")
_INT64 = struct.Struct(">q")


def scan(
    address: int, size: int, check: bool, table: Table, crc_tables: npt.NDArray[np.uint32]
) -> tuple[int, int, int]:
    """Walk the framing of `size` bytes at `address` and fill the batch table.

    `check`: compare checksums (of all but large magic 2 batches, whose CRC is put into the table). `crc_tables`:
    `batches.TABLES`.
    Result: (status, position of the first byte not taken into the table, rows filled). After TABLE_FULL call again with
    a larger table; after PARTIAL or any BAD_ status the rows filled are whole and good.
    """
    data = ctypes.string_at(address, size)
    position = row = 0
    run: tuple[int, int] | None = None
    while True:
        left = size - position
        if left < L.MAGIC_END:
            return (L.PARTIAL if left else L.OK), position, row
        base, length, _, magic, _ = _MESSAGE.unpack_from(data + b"\0" if left == L.MAGIC_END else data, position)
        end = position + L.LOG_OVERHEAD + length
        if length < L.MESSAGE_SIZE_V0:
            return L.BAD_SIZE, position, row
        if end > size:
            return L.PARTIAL, position, row
        if magic not in (0, 1, 2):
            return L.BAD_MAGIC, position, row
        if not 0 <= base <= L.MAX_OFFSET:
            return L.BAD_OFFSET, position, row
        try:
            if magic == 2:
                if length < L.BATCH_SIZE:
                    return L.BAD_SIZE, position, row
                if row == len(table):
                    return L.TABLE_FULL, position, row
                table[row] = _batch_entry(data, position, end, check, address)
                run = None
            else:
                attributes, key_at = _check_message(data, position, end, check)
                _, value = two_fields(data, key_at, end)
                if run == (magic, attributes) and base > table[row - 1, L.LAST]:
                    entry = table[row - 1]
                    entry[L.END], entry[L.LAST] = end, base
                    entry[L.COUNT] += 1
                    entry[L.LENGTH] = end - entry[L.POSITION]
                    position = end
                    continue
                if row == len(table):
                    return L.TABLE_FULL, position, row
                table[row] = _message_entry(data, position, end, address, value)
                run = None if attributes & L.CODEC_MASK else (magic, attributes)
        except Bad as bad:
            return bad.status, position, row
        row += 1
        position = end


def _batch_entry(data: bytes, position: int, end: int, check: bool, address: int) -> list[int]:
    base, length, _, magic, crc, attributes, last_delta, first_timestamp, max_timestamp, _, _, _, count = (
        BATCH.unpack_from(data, position)
    )
    pending = check and length > L.SMALL_BATCH
    if check and not pending and crc32c(data[position + 21 : end]) != crc:
        raise Bad(L.BAD_CRC, position)
    crc = crc if pending else -1
    if last_delta < 0:
        raise Bad(L.BAD_OFFSET, position)
    body = position + L.BATCH_HEADER
    entry = [position, end, crc, magic, attributes, base, base + last_delta, first_timestamp, max_timestamp, count]
    return [*entry, address + body, end - body, 0, 0, 0]


def _check_message(data: bytes, position: int, end: int, check: bool) -> tuple[int, int]:
    _, length, crc, magic, attributes = _MESSAGE.unpack_from(data, position)
    if length < (L.MESSAGE_SIZE_V1 if magic else L.MESSAGE_SIZE_V0):
        raise Bad(L.BAD_SIZE, position)
    if check and zlib.crc32(data[position + 16 : end]) != crc:
        raise Bad(L.BAD_CRC, position)
    return attributes, position + (26 if magic else 18)


def _message_entry(data: bytes, position: int, end: int, address: int, value: bytes | None) -> list[int]:
    offset, _, _, magic, attributes = _MESSAGE.unpack_from(data, position)
    timestamp = _INT64.unpack_from(data, position + 18)[0] if magic else L.NO_TIMESTAMP
    body, count = position, 1
    if attributes & L.CODEC_MASK:
        if value is None:
            raise Bad(L.BAD_FIELD, position)
        body, count = end - len(value), -1
    entry = [position, end, -1, magic, attributes, 0, offset, timestamp, timestamp, count]
    return [*entry, address + body, end - body, 0, 0, 0]


def plan(table: Table, rows: int, start: int, limit: int) -> tuple[int, int, int, int]:
    """(rows to use, most records they can hold, bytes of their bodies, compressed ones among them).

    Sets SKIP of control batches and of those wholly below `start`; they count for nothing. The rows end before the one
    whose body would take the sum beyond `limit`, unless it is the first that counts.
    """
    records = size = compressed = 0
    for row, entry in enumerate(table[:rows].tolist()):
        legacy = entry[L.MAGIC] < 2
        skip = entry[L.LAST] < start or (not legacy and bool(entry[L.ATTRIBUTES] & L.CONTROL))
        table[row, L.SKIP], table[row, L.ROWS] = skip, 0
        if skip:
            continue
        length = entry[L.LENGTH]
        if size and size + length > limit:
            return row, records, size, compressed
        size += length
        smallest = L.LOG_OVERHEAD + L.MESSAGE_SIZE_V0 if legacy else L.SMALLEST_RECORD
        records += max(0, min(entry[L.COUNT], length // smallest))
        compressed += bool(entry[L.ATTRIBUTES] & L.CODEC_MASK)
    return rows, records, size, compressed
