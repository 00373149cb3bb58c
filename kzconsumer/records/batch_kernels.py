"""Compiled kernels that read record batches (magic 2): their records into Arrow buffers, and the headers of these.

The rules of `kernels` apply; arguments and results are documented in `python_batches`.
`read_batches` repeats the second half of `message_kernels.read_messages`: its running totals must stay in registers.
"""

from __future__ import annotations

from numba import njit

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, Table
from kzconsumer.records.pointers import copy, load_i16, load_u8, store_i8, store_i32, store_i64


@njit(nogil=True, error_model="numpy")
def _varint(at: int, end: int, last_shift: int) -> tuple[int, int]:
    """(value, next address) of a zigzag varint; next address 0 if it is cut off or overlong."""
    if at >= end:
        return 0, 0
    byte = load_u8(at)
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 127
    shift = 7
    while True:
        if at >= end or shift > last_shift:
            return 0, 0
        byte = load_u8(at)
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at
        shift += 7


@njit(nogil=True, error_model="numpy")
def _headers(at: int, end: int, count: int) -> tuple[int, int, int]:
    """(next address or 0, key bytes, value bytes) of `count` record headers."""
    key_bytes = 0
    value_bytes = 0
    for _ in range(count):
        length, at = _varint(at, end, 28)
        if at == 0 or length < 0 or length > end - at:
            return 0, 0, 0
        at += length
        key_bytes += length
        length, at = _varint(at, end, 28)
        if at == 0 or length < -1 or length > end - at:
            return 0, 0, 0
        if length > 0:
            at += length
            value_bytes += length
    return at, key_bytes, value_bytes


@njit(nogil=True, error_model="numpy")
def control_type(at: int, end: int) -> int:
    """The type of the control record at `at`, or NO_CONTROL_TYPE."""
    size, at = _varint(at, end, 28)
    if at == 0 or size < 0 or size > end - at:
        return L.NO_CONTROL_TYPE
    stop = at + size
    _, at = _varint(at + 1, stop, 63)
    if at == 0:
        return L.NO_CONTROL_TYPE
    _, at = _varint(at, stop, 28)
    if at == 0:
        return L.NO_CONTROL_TYPE
    length, at = _varint(at, stop, 28)
    if at == 0 or length < 4 or length > stop - at:
        return L.NO_CONTROL_TYPE
    return int(load_i16(at + 2))


def read_batches(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
    offsets = outputs[L.O_OFFSETS]
    timestamps = outputs[L.O_TIMESTAMPS]
    key_offsets = outputs[L.O_KEY_OFFSETS]
    keys = outputs[L.O_KEYS]
    key_validity = outputs[L.O_KEY_VALIDITY]
    value_offsets = outputs[L.O_VALUE_OFFSETS]
    values = outputs[L.O_VALUES]
    value_validity = outputs[L.O_VALUE_VALIDITY]
    timestamp_types = outputs[L.O_TIMESTAMP_TYPES]
    n = state[L.S_ROWS]
    key_bytes = state[L.S_KEY_BYTES]
    value_bytes = state[L.S_VALUE_BYTES]
    key_nulls = state[L.S_KEY_NULLS]
    value_nulls = state[L.S_VALUE_NULLS]
    timestamp_nulls = state[L.S_TIMESTAMP_NULLS]
    headers = state[L.S_HEADERS]
    header_key_bytes = state[L.S_HEADER_KEY_BYTES]
    header_value_bytes = state[L.S_HEADER_VALUE_BYTES]
    low = state[L.S_LOW]
    key_bits = 0
    value_bits = 0
    if n & 7:
        key_bits = load_u8(key_validity + (n >> 3))
        value_bits = load_u8(value_validity + (n >> 3))
    for row in range(first, until):
        entry = table[row]
        if entry[L.MAGIC] != 2:
            return L.OK, 0, row
        entry[L.LOW] = low
        entry[L.ROWS] = 0
        if entry[L.SKIP] != 0:
            continue
        begin = entry[L.ADDRESS]
        length = entry[L.LENGTH]
        count = entry[L.COUNT]
        base = entry[L.BASE]
        last_delta = entry[L.LAST] - base
        append_time = (entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME) != 0
        timestamp_type = L.APPEND_TIME if append_time else L.CREATE_TIME
        first_timestamp = entry[L.FIRST_TIMESTAMP]
        max_timestamp = entry[L.MAX_TIMESTAMP]
        end = begin + length
        if count < 0 or count > length // L.SMALLEST_RECORD or count > state[L.S_ROW_CAPACITY] - n:
            return L.BAD_COUNT, 0, row
        if length > state[L.S_BYTE_CAPACITY] - key_bytes or length > state[L.S_BYTE_CAPACITY] - value_bytes:
            return L.BAD_COUNT, 0, row
        n_before = n
        at = begin
        for _ in range(count):
            record = at
            size, at = _varint(at, end, 28)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            if size < L.SMALLEST_RECORD - 1 or size > end - at:
                return L.BAD_RECORD, record - begin, row
            stop = at + size
            timestamp_delta, at = _varint(at + 1, stop, 63)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            delta, at = _varint(at, stop, 28)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            if delta < 0 or delta > last_delta:
                return L.BAD_OFFSET, record - begin, row
            key_length, at = _varint(at, stop, 28)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            if key_length < -1 or key_length > stop - at:
                return L.BAD_FIELD, record - begin, row
            key = at
            if key_length > 0:
                at += key_length
            value_length, at = _varint(at, stop, 28)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            if value_length < -1 or value_length > stop - at:
                return L.BAD_FIELD, record - begin, row
            value = at
            if value_length > 0:
                at += value_length
            header_count, at = _varint(at, stop, 28)
            if at == 0:
                return L.BAD_VARINT, record - begin, row
            k = 0
            v = 0
            if header_count != 0:
                if header_count < 0 or header_count > (stop - at) // 2:
                    return L.BAD_HEADER, record - begin, row
                at, k, v = _headers(at, stop, header_count)
                if at == 0:
                    return L.BAD_HEADER, record - begin, row
            if at != stop:
                return L.BAD_RECORD, record - begin, row
            at = stop  # the next record depends on the length only: the processor need not wait for the fields
            offset = base + delta
            if offset < low:
                continue
            low = offset + 1
            headers += header_count
            header_key_bytes += k
            header_value_bytes += v
            timestamp = max_timestamp if append_time else first_timestamp + timestamp_delta
            if timestamp == L.NO_TIMESTAMP:
                timestamp_nulls += 1
            store_i64(offsets + 8 * n, offset)
            store_i64(timestamps + 8 * n, timestamp)
            store_i8(timestamp_types + n, timestamp_type)
            store_i32(key_offsets + 4 * n, key_bytes)
            store_i32(value_offsets + 4 * n, value_bytes)
            bit = n & 7
            if key_length >= 0:
                key_bits |= 1 << bit
                if key_length > 0:
                    copy(keys + key_bytes, key, key_length)
                    key_bytes += key_length
            else:
                key_nulls += 1
            if value_length >= 0:
                value_bits |= 1 << bit
                if value_length > 0:
                    copy(values + value_bytes, value, value_length)
                    value_bytes += value_length
            else:
                value_nulls += 1
            if bit == 7:
                store_i8(key_validity + (n >> 3), key_bits)
                store_i8(value_validity + (n >> 3), value_bits)
                key_bits = 0
                value_bits = 0
            n += 1
        if at != end:
            return L.BAD_TAIL, at - begin, row
        entry[L.ROWS] = n - n_before
        if n & 7:
            store_i8(key_validity + (n >> 3), key_bits)
            store_i8(value_validity + (n >> 3), value_bits)
        store_i32(key_offsets + 4 * n, key_bytes)
        store_i32(value_offsets + 4 * n, value_bytes)
        state[L.S_ROWS] = n
        state[L.S_KEY_BYTES] = key_bytes
        state[L.S_VALUE_BYTES] = value_bytes
        state[L.S_KEY_NULLS] = key_nulls
        state[L.S_VALUE_NULLS] = value_nulls
        state[L.S_TIMESTAMP_NULLS] = timestamp_nulls
        state[L.S_HEADERS] = headers
        state[L.S_HEADER_KEY_BYTES] = header_key_bytes
        state[L.S_HEADER_VALUE_BYTES] = header_value_bytes
        state[L.S_LOW] = low
    return L.OK, 0, until


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
    n = 0
    header = 0
    key_bytes = 0
    value_bytes = 0
    nulls = 0
    bits = 0
    for row in range(until):
        entry = table[row]
        if entry[L.ROWS] == 0:
            continue
        if entry[L.MAGIC] < 2:
            for _ in range(entry[L.ROWS]):
                store_i32(list_offsets + 4 * n, header)
                n += 1
            continue
        at = entry[L.ADDRESS]
        end = at + entry[L.LENGTH]
        low = entry[L.LOW]
        for _ in range(entry[L.COUNT]):
            size, at = _varint(at, end, 28)
            stop = at + size
            _, at = _varint(at + 1, stop, 63)
            delta, at = _varint(at, stop, 28)
            offset = entry[L.BASE] + delta
            if offset < low:
                at = stop
                continue
            low = offset + 1
            length, at = _varint(at, stop, 28)
            at += max(length, 0)
            length, at = _varint(at, stop, 28)
            at += max(length, 0)
            count, at = _varint(at, stop, 28)
            store_i32(list_offsets + 4 * n, header)
            n += 1
            for _ in range(count):
                store_i32(key_offsets + 4 * header, key_bytes)
                store_i32(value_offsets + 4 * header, value_bytes)
                length, at = _varint(at, stop, 28)
                if length > 0:
                    copy(keys + key_bytes, at, length)
                    key_bytes += length
                    at += length
                length, at = _varint(at, stop, 28)
                if length >= 0:
                    bits |= 1 << (header & 7)
                    if length > 0:
                        copy(values + value_bytes, at, length)
                        value_bytes += length
                        at += length
                else:
                    nulls += 1
                if header & 7 == 7:
                    store_i8(value_validity + (header >> 3), bits)
                    bits = 0
                header += 1
    if header & 7:
        store_i8(value_validity + (header >> 3), bits)
    store_i32(list_offsets + 4 * n, header)
    store_i32(key_offsets + 4 * header, key_bytes)
    store_i32(value_offsets + 4 * header, value_bytes)
    return nulls
