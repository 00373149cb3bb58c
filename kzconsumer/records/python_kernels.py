"""The kernels in plain Python: for small inputs before numba is loaded, where numba does not work, and as test oracle.

Owns nothing. Every function takes and gives what its namesake in `kernels` does, addresses included, and this is where
both are documented. Written on its own, not translated: a shared mistake would escape the comparison in the tests.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, KernelSet, Table

_BATCH = struct.Struct(">qiibIhiqqqhii")
_MESSAGE = struct.Struct(">qiIbB")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class _Bad(Exception):
    """(status, position)"""

    def __init__(self, status: int, position: int) -> None:
        self.status = status
        self.position = position


class _Record(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


def _int64(number: int) -> int:
    """Java's and the processor's overflow."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def scan(
    address: int, size: int, check: bool, table: Table, crc_tables: npt.NDArray[np.uint32]
) -> tuple[int, int, int]:
    """Walk the framing of `size` bytes at `address` and fill the batch table.

    `check`: compare checksums (of all but large magic 2 batches, whose CRC is put into the table). `crc_tables`:
    `checksum.TABLES`.
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
                _, value = _two_fields(data, key_at, end)
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
        except _Bad as bad:
            return bad.status, position, row
        row += 1
        position = end


def _batch_entry(data: bytes, position: int, end: int, check: bool, address: int) -> list[int]:
    base, length, _, magic, crc, attributes, last_delta, first_timestamp, max_timestamp, _, _, _, count = (
        _BATCH.unpack_from(data, position)
    )
    pending = check and length > L.SMALL_BATCH
    if check and not pending and crc32c(data[position + 21 : end]) != crc:
        raise _Bad(L.BAD_CRC, position)
    crc = crc if pending else -1
    if last_delta < 0:
        raise _Bad(L.BAD_OFFSET, position)
    body = position + L.BATCH_HEADER
    entry = [position, end, crc, magic, attributes, base, base + last_delta, first_timestamp, max_timestamp, count]
    return [*entry, address + body, end - body, 0, 0, 0]


def _check_message(data: bytes, position: int, end: int, check: bool) -> tuple[int, int]:
    _, length, crc, magic, attributes = _MESSAGE.unpack_from(data, position)
    if length < (L.MESSAGE_SIZE_V1 if magic else L.MESSAGE_SIZE_V0):
        raise _Bad(L.BAD_SIZE, position)
    if check and zlib.crc32(data[position + 16 : end]) != crc:
        raise _Bad(L.BAD_CRC, position)
    return attributes, position + (26 if magic else 18)


def _message_entry(data: bytes, position: int, end: int, address: int, value: bytes | None) -> list[int]:
    offset, _, _, magic, attributes = _MESSAGE.unpack_from(data, position)
    timestamp = _INT64.unpack_from(data, position + 18)[0] if magic else L.NO_TIMESTAMP
    body, count = position, 1
    if attributes & L.CODEC_MASK:
        if value is None:
            raise _Bad(L.BAD_FIELD, position)
        body, count = end - len(value), -1
    entry = [position, end, -1, magic, attributes, 0, offset, timestamp, timestamp, count]
    return [*entry, address + body, end - body, 0, 0, 0]


def _two_fields(data: bytes, at: int, end: int) -> tuple[bytes | None, bytes | None]:
    """Key and value of a message, which must end at `end`. That the 8 bytes of lengths are there is known."""
    fields: list[bytes | None] = []
    for still_needed in (4, 0):
        (length,) = _INT32.unpack_from(data, at)
        at += 4
        if length < -1 or length > end - at - still_needed:
            raise _Bad(L.BAD_FIELD, at)
        fields.append(None if length < 0 else data[at : at + length])
        at += max(length, 0)
    if at != end:
        raise _Bad(L.BAD_FIELD, at)
    return fields[0], fields[1]


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
    except _Bad as bad:
        return bad.status, bad.position, count, last
    return L.OK, position, count, last


def _messages(data: bytes, magic: int) -> Iterator[tuple[int, int]]:
    position = 0
    while len(data) - position >= L.MAGIC_END:
        (length,) = _INT32.unpack_from(data, position + 8)
        if length < (L.MESSAGE_SIZE_V1 if magic else L.MESSAGE_SIZE_V0):
            raise _Bad(L.BAD_SIZE, position)
        end = position + L.LOG_OVERHEAD + length
        if end > len(data):
            return
        if data[position + L.MAGIC_AT] != magic:
            raise _Bad(L.BAD_MAGIC, position)
        if data[position + 17] & L.CODEC_MASK:
            raise _Bad(L.BAD_NESTING, position)
        yield position, end
        position = end


def read_batches(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
    """Append the records of the rows `first <= row < until` to the outputs, up to the first row that is not magic 2.

    `table`: rows with ADDRESS and LENGTH of uncompressed records; SKIP rows give none. LOW and ROWS are set here.
    `outputs`: addresses by the O_ cells: offsets and timestamps int64, timestamp types int8, the `_OFFSETS` of key and
    value int32 (one more than rows), their bytes, and Arrow validity bitmaps.
    `state`: the S_ cells, carried from call to call; capacities are the caller's. Records below S_LOW are left out.
    Result: (OK, 0, first row not read), or (status, position in the row's records, row) of the first bad batch; the
    outputs and the state then hold everything before that batch and nothing of it.
    """
    return _read(table, first, until, outputs, state, legacy=False)


def read_messages(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
    """As `read_batches`, for rows of magic 0 and 1: runs of messages, and wrappers with their set decompressed."""
    return _read(table, first, until, outputs, state, legacy=True)


def _read(table: Table, first: int, until: int, outputs: Cells, state: Cells, *, legacy: bool) -> tuple[int, int, int]:
    records_of = _records_of_messages if legacy else _records_of_batch
    low = int(state[L.S_LOW])
    room = int(state[L.S_ROW_CAPACITY] - state[L.S_ROWS])
    bytes_left = int(state[L.S_BYTE_CAPACITY] - max(state[L.S_KEY_BYTES], state[L.S_VALUE_BYTES]))
    good: list[_Record] = []
    result = L.OK, 0, until
    for row in range(first, until):
        entry = table[row].tolist()
        if (entry[L.MAGIC] < 2) != legacy:
            result = L.OK, 0, row
            break
        table[row, L.LOW], table[row, L.ROWS] = low, 0
        if entry[L.SKIP]:
            continue
        wanted: list[_Record] = []
        next_low = low
        try:
            if entry[L.LENGTH] > bytes_left:
                raise _Bad(L.BAD_COUNT, 0)
            for record in records_of(entry):
                if record.offset >= next_low:
                    if len(good) + len(wanted) == room:
                        raise _Bad(L.BAD_COUNT, 0)
                    wanted.append(record)
                    next_low = record.offset + 1
        except _Bad as bad:
            result = bad.status, bad.position, row
            break
        low = next_low
        table[row, L.ROWS] = len(wanted)
        good += wanted
        bytes_left -= entry[L.LENGTH]
    _append(good, outputs, state)
    state[L.S_LOW] = low
    return result


def _append(records: list[_Record], outputs: Cells, state: Cells) -> None:
    n = int(state[L.S_ROWS])
    _write(int(outputs[L.O_OFFSETS]) + 8 * n, array("q", [record.offset for record in records]).tobytes())
    _write(int(outputs[L.O_TIMESTAMPS]) + 8 * n, array("q", [record.timestamp for record in records]).tobytes())
    _write(int(outputs[L.O_TIMESTAMP_TYPES]) + n, bytes(record.timestamp_type & 255 for record in records))
    keys = [record.key for record in records]
    values = [record.value for record in records]
    key_outputs = outputs[L.O_KEY_OFFSETS : L.O_KEY_VALIDITY + 1].tolist()
    value_outputs = outputs[L.O_VALUE_OFFSETS : L.O_VALUE_VALIDITY + 1].tolist()
    state[L.S_KEY_BYTES] = _append_fields(keys, n, int(state[L.S_KEY_BYTES]), *key_outputs)
    state[L.S_VALUE_BYTES] = _append_fields(values, n, int(state[L.S_VALUE_BYTES]), *value_outputs)
    state[L.S_KEY_NULLS] += keys.count(None)
    state[L.S_VALUE_NULLS] += values.count(None)
    state[L.S_TIMESTAMP_NULLS] += sum(record.timestamp == L.NO_TIMESTAMP for record in records)
    for record in records:
        for key, value in record.headers:
            state[L.S_HEADERS] += 1
            state[L.S_HEADER_KEY_BYTES] += len(key)
            state[L.S_HEADER_VALUE_BYTES] += len(value or b"")
    state[L.S_ROWS] = n + len(records)


def _append_fields(fields: list[bytes | None], n: int, used: int, offsets: int, data: int, validity: int) -> int:
    """Write an Arrow binary column from row `n`, byte `used` on; the bytes used then."""
    _write(data + used, b"".join(field for field in fields if field))
    ends = array("i", [used])
    for field in fields:
        used += len(field or b"")
        ends.append(used)
    _write(offsets + 4 * n, ends.tobytes())
    present = [False] * (n & 7) + [field is not None for field in fields]
    bits = bytearray(np.packbits(np.array(present, np.bool_), bitorder="little").tobytes())
    if n & 7:
        bits[0] |= ctypes.string_at(validity + (n >> 3), 1)[0]
    _write(validity + (n >> 3), bytes(bits))
    return used


def _write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def _varint(data: bytes, at: int, end: int, most_bytes: int, record: int) -> tuple[int, int]:
    if at < end and data[at] < 0x80:
        return (data[at] >> 1) ^ -(data[at] & 1), at + 1
    value = 0
    for i in range(most_bytes):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            value &= (1 << 64) - 1
            return (value >> 1) ^ -(value & 1), at
    raise _Bad(L.BAD_VARINT, record)


def _records_of_batch(entry: list[int]) -> Iterator[_Record]:
    data = ctypes.string_at(entry[L.ADDRESS], entry[L.LENGTH])
    base, count = entry[L.BASE], entry[L.COUNT]
    if not 0 <= count <= len(data) // L.SMALLEST_RECORD:
        raise _Bad(L.BAD_COUNT, 0)
    at = 0
    for _ in range(count):
        record = at
        size, at = _varint(data, at, len(data), 5, record)
        if not L.SMALLEST_RECORD - 1 <= size <= len(data) - at:
            raise _Bad(L.BAD_RECORD, record)
        stop = at + size
        timestamp_delta, at = _varint(data, at + 1, stop, 10, record)
        delta, at = _varint(data, at, stop, 5, record)
        if not 0 <= delta <= entry[L.LAST] - base:
            raise _Bad(L.BAD_OFFSET, record)
        key, at = _field(data, at, stop, record, L.BAD_FIELD)
        value, at = _field(data, at, stop, record, L.BAD_FIELD)
        header_count, at = _varint(data, at, stop, 5, record)
        headers: list[tuple[bytes, bytes | None]] = []
        if not 0 <= header_count <= (stop - at) // 2:
            raise _Bad(L.BAD_HEADER, record)
        for _ in range(header_count):
            try:
                name, at = _field(data, at, stop, record, L.BAD_HEADER)
                content, at = _field(data, at, stop, record, L.BAD_HEADER)
            except _Bad:
                raise _Bad(L.BAD_HEADER, record) from None
            if name is None:
                raise _Bad(L.BAD_HEADER, record)
            headers.append((name, content))
        if at != stop:
            raise _Bad(L.BAD_RECORD, record)
        if entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME:
            timestamp, kind = entry[L.MAX_TIMESTAMP], L.APPEND_TIME
        else:
            timestamp, kind = _int64(entry[L.FIRST_TIMESTAMP] + timestamp_delta), L.CREATE_TIME
        yield _Record(base + delta, timestamp, kind, key, value, headers)
    if at != len(data):
        raise _Bad(L.BAD_TAIL, at)


def _field(data: bytes, at: int, stop: int, record: int, fault: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at, stop, 5, record)
    if not -1 <= length <= stop - at:
        raise _Bad(fault, record)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _records_of_messages(entry: list[int]) -> Iterator[_Record]:
    data = ctypes.string_at(entry[L.ADDRESS], entry[L.LENGTH])
    magic = entry[L.MAGIC]
    wrapper = entry[L.ATTRIBUTES] & L.CODEC_MASK
    append_time = entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME
    for position, end in _messages(data, magic):
        offset = _int64(_INT64.unpack_from(data, position)[0] + entry[L.BASE])
        if not 0 <= offset <= entry[L.LAST]:
            raise _Bad(L.BAD_OFFSET, position)
        timestamp, kind = L.NO_TIMESTAMP, L.NO_TIMESTAMP_TYPE
        if magic:
            (timestamp,) = _INT64.unpack_from(data, position + 18)
            kind = L.APPEND_TIME if append_time else L.CREATE_TIME
            if wrapper and append_time:
                timestamp = entry[L.MAX_TIMESTAMP]
        try:
            key, value = _two_fields(data, position + (26 if magic else 18), end)
        except _Bad:
            raise _Bad(L.BAD_FIELD, position) from None
        yield _Record(offset, timestamp, kind, key, value, [])


def read_headers(
    table: Table,
    until: int,
    list_offsets: int,
    key_offsets: int,
    keys: int,
    value_offsets: int,
    values: int,
    value_validity: int,
) -> int:
    """Write the headers of all records that `read_batches` and `read_messages` gave out; the number of null values.

    Other arguments are addresses: int32 list offsets (records + 1), and two Arrow binary columns of S_HEADERS cells.
    """
    ends = array("i", [0])
    names: list[bytes | None] = []
    contents: list[bytes | None] = []
    for entry in table[:until].tolist():
        if not entry[L.ROWS]:
            continue
        low = entry[L.LOW]
        for record in (_records_of_batch if entry[L.MAGIC] == 2 else _records_of_messages)(entry):
            if record.offset >= low:
                low = record.offset + 1
                for name, content in record.headers:
                    names.append(name)
                    contents.append(content)
                ends.append(len(names))
    _write(list_offsets, ends.tobytes())
    scratch = ctypes.create_string_buffer((len(names) + 7) // 8)
    _append_fields(names, 0, 0, key_offsets, keys, ctypes.addressof(scratch))
    _append_fields(contents, 0, 0, value_offsets, values, value_validity)
    return contents.count(None)


PYTHON_KERNELS = KernelSet(scan, plan, count_messages, read_batches, read_messages, read_headers)
