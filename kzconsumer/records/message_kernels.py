"""Compiled kernels that read message sets (magic 0 and 1): counted inside a wrapper, and read into Arrow buffers.

The rules of `kernels` apply; arguments and results are documented in `python_messages`.
`read_messages` repeats the second half of `batch_kernels.read_batches`: its running totals must stay in registers.
"""

from __future__ import annotations

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, Table
from kzconsumer.records.pointers import copy, load_i8, load_i32, load_i64, load_u8, store_i8, store_i32, store_i64


def count_messages(address: int, size: int, magic: int) -> tuple[int, int, int, int]:
    position = 0
    count = 0
    last = 0
    while size - position >= L.MAGIC_END:
        at = address + position
        length = load_i32(at + 8)
        if length < L.MESSAGE_SIZE_V0 + 8 * magic:
            return L.BAD_SIZE, position, count, last
        if length > size - position - L.LOG_OVERHEAD:
            break
        if load_i8(at + L.MAGIC_AT) != magic:
            return L.BAD_MAGIC, position, count, last
        if load_u8(at + 17) & L.CODEC_MASK:
            return L.BAD_NESTING, position, count, last
        last = load_i64(at)
        count += 1
        position += L.LOG_OVERHEAD + length
    return L.OK, position, count, last


def read_messages(table: Table, first: int, until: int, outputs: Cells, state: Cells) -> tuple[int, int, int]:
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
    low = state[L.S_LOW]
    key_bits = 0
    value_bits = 0
    if n & 7:
        key_bits = load_u8(key_validity + (n >> 3))
        value_bits = load_u8(value_validity + (n >> 3))
    for row in range(first, until):
        entry = table[row]
        if entry[L.MAGIC] == 2:
            return L.OK, 0, row
        entry[L.LOW] = low
        entry[L.ROWS] = 0
        if entry[L.SKIP] != 0:
            continue
        begin = entry[L.ADDRESS]
        length = entry[L.LENGTH]
        magic = entry[L.MAGIC]
        last = entry[L.LAST]
        base = entry[L.BASE]
        wrapper = (entry[L.ATTRIBUTES] & L.CODEC_MASK) != 0
        append_time = wrapper and magic == 1 and (entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME) != 0
        timestamp_type = L.NO_TIMESTAMP_TYPE
        if magic == 1:
            timestamp_type = L.APPEND_TIME if (entry[L.ATTRIBUTES] & L.LOG_APPEND_TIME) != 0 else L.CREATE_TIME
        append_timestamp = entry[L.MAX_TIMESTAMP]
        if length > state[L.S_BYTE_CAPACITY] - key_bytes or length > state[L.S_BYTE_CAPACITY] - value_bytes:
            return L.BAD_COUNT, 0, row
        n_before = n
        position = 0
        while length - position >= L.MAGIC_END:
            at = begin + position
            size = load_i32(at + 8)
            if size < L.MESSAGE_SIZE_V0 + 8 * magic:
                return L.BAD_SIZE, position, row
            if size > length - position - L.LOG_OVERHEAD:
                break
            stop = at + L.LOG_OVERHEAD + size
            if load_i8(at + L.MAGIC_AT) != magic:
                return L.BAD_MAGIC, position, row
            if load_u8(at + 17) & L.CODEC_MASK:
                return L.BAD_NESTING, position, row
            offset = load_i64(at) + base
            if offset < 0 or offset > last:
                return L.BAD_OFFSET, position, row
            timestamp = L.NO_TIMESTAMP
            if magic == 1:
                timestamp = append_timestamp if append_time else load_i64(at + 18)
            at += 18 + 8 * magic
            key_length = load_i32(at)
            at += 4
            if key_length < -1 or key_length > stop - at - 4:
                return L.BAD_FIELD, position, row
            key = at
            if key_length > 0:
                at += key_length
            value_length = load_i32(at)
            at += 4
            if value_length < -1 or max(value_length, 0) != stop - at:
                return L.BAD_FIELD, position, row
            value = at
            position += L.LOG_OVERHEAD + size
            if offset < low:
                continue
            low = offset + 1
            if n >= state[L.S_ROW_CAPACITY]:
                return L.BAD_COUNT, position, row
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
        state[L.S_LOW] = low
    return L.OK, 0, until
