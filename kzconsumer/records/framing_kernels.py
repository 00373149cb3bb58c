"""Compiled kernels for framing and checksums, and for planning what to read.

The rules of `kernels` apply; arguments and results are documented in `python_framing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Table
from kzconsumer.records.pointers import load_i8, load_i16, load_i32, load_i64, load_u8, load_u32, load_u32_little


@njit(nogil=True, error_model="numpy")
def _crc(table: Any, address: int, size: int) -> int:
    """Slicing by 8, for either polynomial."""
    crc: Any = 0xFFFFFFFF
    end = address + size
    while end - address >= 8:
        low = crc ^ load_u32_little(address)
        high = load_u32_little(address + 4)
        first = table[7, low & 255] ^ table[6, low >> 8 & 255] ^ table[5, low >> 16 & 255] ^ table[4, low >> 24]
        second = table[3, high & 255] ^ table[2, high >> 8 & 255] ^ table[1, high >> 16 & 255] ^ table[0, high >> 24]
        crc = np.int64(first ^ second)
        address += 8
    while address < end:
        crc = crc >> 8 ^ np.int64(table[0, (crc ^ load_u8(address)) & 255])
        address += 1
    return int(crc ^ 0xFFFFFFFF)


def scan(address: int, size: int, check: bool, table: Table, crc_tables: Any) -> tuple[int, int, int]:
    position = 0
    row = -1
    capacity = table.shape[0]
    open_run = False
    while True:
        left = size - position
        if left < L.MAGIC_END:
            return (L.PARTIAL if left > 0 else L.OK), position, row + 1
        at = address + position
        length = load_i32(at + 8)
        if length < L.MESSAGE_SIZE_V0:
            return L.BAD_SIZE, position, row + 1
        if length > left - L.LOG_OVERHEAD:
            return L.PARTIAL, position, row + 1
        end = position + L.LOG_OVERHEAD + length
        base = load_i64(at)
        magic = load_i8(at + L.MAGIC_AT)
        if magic < 0 or magic > 2:
            return L.BAD_MAGIC, position, row + 1
        if base < 0 or base > L.MAX_OFFSET:
            return L.BAD_OFFSET, position, row + 1

        if magic == 2:
            if length < L.BATCH_SIZE:
                return L.BAD_SIZE, position, row + 1
            if row + 1 >= capacity:
                return L.TABLE_FULL, position, row + 1
            crc = -1
            if check:
                if length > L.SMALL_BATCH:
                    crc = load_u32(at + 17)
                elif load_u32(at + 17) != _crc(crc_tables[0], at + 21, length - 9):
                    return L.BAD_CRC, position, row + 1
            last_delta = load_i32(at + 23)
            if last_delta < 0:
                return L.BAD_OFFSET, position, row + 1
            row += 1
            entry = table[row]
            entry[L.POSITION] = position
            entry[L.END] = end
            entry[L.MAGIC] = 2
            entry[L.ATTRIBUTES] = load_i16(at + 21)
            entry[L.BASE] = base
            entry[L.LAST] = base + last_delta
            entry[L.FIRST_TIMESTAMP] = load_i64(at + 27)
            entry[L.MAX_TIMESTAMP] = load_i64(at + 35)
            entry[L.COUNT] = load_i32(at + 57)
            entry[L.ADDRESS] = at + L.BATCH_HEADER
            entry[L.LENGTH] = length - L.BATCH_SIZE
            entry[L.CRC] = crc
            open_run = False
        else:
            if length < L.MESSAGE_SIZE_V0 + 8 * magic:
                return L.BAD_SIZE, position, row + 1
            if check and load_u32(at + 12) != _crc(crc_tables[1], at + 16, length - 4):
                return L.BAD_CRC, position, row + 1
            attributes = load_u8(at + 17)
            wrapper = (attributes & L.CODEC_MASK) != 0
            # Fields are checked here and not only when they are read, so that a fault ends a run at the right message.
            field = position + 22 + 8 * magic
            key_length = load_i32(address + field - 4)
            if key_length < -1 or key_length > end - field - 4:
                return L.BAD_FIELD, position, row + 1
            body = field + max(key_length, 0) + 4
            body_length = load_i32(address + body - 4)
            if body_length < -1 or max(body_length, 0) != end - body or (wrapper and body_length < 0):
                return L.BAD_FIELD, position, row + 1
            if (
                not wrapper
                and open_run
                and table[row, L.MAGIC] == magic
                and table[row, L.ATTRIBUTES] == attributes
                and base > table[row, L.LAST]
            ):
                entry = table[row]
                entry[L.END] = end
                entry[L.LAST] = base
                entry[L.COUNT] += 1
                entry[L.LENGTH] = end - entry[L.POSITION]
            else:
                if row + 1 >= capacity:
                    return L.TABLE_FULL, position, row + 1
                if not wrapper:
                    body = position
                    body_length = end - position
                row += 1
                entry = table[row]
                entry[L.POSITION] = position
                entry[L.END] = end
                entry[L.MAGIC] = magic
                entry[L.ATTRIBUTES] = attributes
                entry[L.BASE] = 0
                entry[L.LAST] = base
                entry[L.FIRST_TIMESTAMP] = load_i64(at + 18) if magic == 1 else L.NO_TIMESTAMP
                entry[L.MAX_TIMESTAMP] = entry[L.FIRST_TIMESTAMP]
                entry[L.COUNT] = -1 if wrapper else 1
                entry[L.ADDRESS] = address + body
                entry[L.LENGTH] = body_length
                entry[L.CRC] = -1
            open_run = not wrapper
        position = end


def plan(table: Table, rows: int, start: int, limit: int) -> tuple[int, int, int, int]:
    records = 0
    size = 0
    compressed = 0
    for row in range(rows):
        entry = table[row]
        entry[L.ROWS] = 0
        entry[L.SKIP] = 0
        legacy = entry[L.MAGIC] < 2
        if entry[L.LAST] < start or (not legacy and (entry[L.ATTRIBUTES] & L.CONTROL) != 0):
            entry[L.SKIP] = 1
            continue
        length = entry[L.LENGTH]
        if length > limit - size and size > 0:
            return row, records, size, compressed
        size += length
        smallest = L.LOG_OVERHEAD + L.MESSAGE_SIZE_V0 if legacy else L.SMALLEST_RECORD
        records += max(0, min(entry[L.COUNT], length // smallest))
        if (entry[L.ATTRIBUTES] & L.CODEC_MASK) != 0:
            compressed += 1
    return rows, records, size, compressed
