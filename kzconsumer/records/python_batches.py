"""The kernels of `batch_kernels` in plain Python: record batches (magic 2) and their headers."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, Table
from kzconsumer.records.python_records import Bad, Record, append_fields, int64, read_rows, write


def read_batches(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
    """Append the records of the rows `first <= row < until` to the outputs, up to the first row that is not magic 2.

    `table`: rows with ADDRESS and LENGTH of uncompressed records; SKIP rows give none. LOW and ROWS are set here.
    `outputs`: addresses by the O_ cells: offsets and timestamps int64, timestamp types int8, the `_OFFSETS` of key and
    value int32 (one more than rows), their bytes, and Arrow validity bitmaps.
    `state`: the S_ cells, carried from call to call; capacities are the caller's. Records below S_LOW are left out.
    Result: (OK, 0, first row not read), or (status, position in the row's records, row) of the first bad batch; the
    outputs and the state then hold everything before that batch and nothing of it.
    """
    return read_rows(table, first, until, outputs, state, _records_of_entry, legacy=False)


def _records_of_entry(entry: list[int]) -> Iterator[Record]:
    return records_of_batch(ctypes.string_at(entry[L.ADDRESS], entry[L.LENGTH]), *entry[L.ATTRIBUTES : L.COUNT + 1])


def records_of_batch(
    data: bytes, attributes: int, base: int, last: int, first_timestamp: int, max_timestamp: int, count: int
) -> Iterator[Record]:
    """The records in the uncompressed body of a batch whose header says the rest. Raises Bad on the way."""
    if not 0 <= count <= len(data) // L.SMALLEST_RECORD:
        raise Bad(L.BAD_COUNT, 0)
    at = 0
    for _ in range(count):
        record = at
        size, at = _varint(data, at, len(data), 5, record)
        if not L.SMALLEST_RECORD - 1 <= size <= len(data) - at:
            raise Bad(L.BAD_RECORD, record)
        stop = at + size
        timestamp_delta, at = _varint(data, at + 1, stop, 10, record)
        delta, at = _varint(data, at, stop, 5, record)
        if not 0 <= delta <= last - base:
            raise Bad(L.BAD_OFFSET, record)
        key, at = _field(data, at, stop, record, L.BAD_FIELD)
        value, at = _field(data, at, stop, record, L.BAD_FIELD)
        header_count, at = _varint(data, at, stop, 5, record)
        headers: list[tuple[bytes, bytes | None]] = []
        if not 0 <= header_count <= (stop - at) // 2:
            raise Bad(L.BAD_HEADER, record)
        for _ in range(header_count):
            try:
                name, at = _field(data, at, stop, record, L.BAD_HEADER)
                content, at = _field(data, at, stop, record, L.BAD_HEADER)
            except Bad:
                raise Bad(L.BAD_HEADER, record) from None
            if name is None:
                raise Bad(L.BAD_HEADER, record)
            headers.append((name, content))
        if at != stop:
            raise Bad(L.BAD_RECORD, record)
        if attributes & L.LOG_APPEND_TIME:
            timestamp, kind = max_timestamp, L.APPEND_TIME
        else:
            timestamp, kind = int64(first_timestamp + timestamp_delta), L.CREATE_TIME
        yield Record(base + delta, timestamp, kind, key, value, headers)
    if at != len(data):
        raise Bad(L.BAD_TAIL, at)


def control_type(entry: list[int]) -> int:
    """The type of the first record of an uncompressed control batch, or NO_CONTROL_TYPE.

    As `org.apache.kafka.common.record.ControlRecordType` (3.9) reads it, of whatever key version.
    """
    data = ctypes.string_at(entry[L.ADDRESS], entry[L.LENGTH])
    try:
        size, at = _varint(data, 0, len(data), 5, 0)
        if not 0 <= size <= len(data) - at:
            return L.NO_CONTROL_TYPE
        stop = at + size
        _, at = _varint(data, at + 1, stop, 10, 0)
        _, at = _varint(data, at, stop, 5, 0)
        key, _ = _field(data, at, stop, 0, L.BAD_FIELD)
    except Bad:
        return L.NO_CONTROL_TYPE
    return L.NO_CONTROL_TYPE if key is None or len(key) < 4 else int.from_bytes(key[2:4], "big", signed=True)


def _field(data: bytes, at: int, stop: int, record: int, fault: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at, stop, 5, record)
    if not -1 <= length <= stop - at:
        raise Bad(fault, record)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


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
    raise Bad(L.BAD_VARINT, record)


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
        if entry[L.MAGIC] < 2:
            ends.extend([len(names)] * entry[L.ROWS])
            continue
        low = entry[L.LOW]
        for record in _records_of_entry(entry):
            if record.offset >= low:
                low = record.offset + 1
                for name, content in record.headers:
                    names.append(name)
                    contents.append(content)
                ends.append(len(names))
    write(list_offsets, ends.tobytes())
    scratch = ctypes.create_string_buffer((len(names) + 7) // 8)
    append_fields(names, 0, 0, key_offsets, keys, ctypes.addressof(scratch))
    append_fields(contents, 0, 0, value_offsets, values, value_validity)
    return contents.count(None)
