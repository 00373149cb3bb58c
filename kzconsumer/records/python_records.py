"""What the plain-Python kernels of both formats share: records, faults, the walk over the batch table, Arrow output."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from kzconsumer.records import layout as L
from kzconsumer.records.kernel_set import Cells, Table


class Bad(Exception):
    """(status, position)"""

    def __init__(self, status: int, position: int) -> None:
        self.status = status
        self.position = position


class Record(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


RecordsOf: TypeAlias = Callable[[list[int]], Iterator[Record]]


def int64(number: int) -> int:
    """Java's and the processor's overflow."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def read_rows(
    table: Table, first: int, until: int, outputs: Cells, state: Cells, records_of: RecordsOf, *, legacy: bool
) -> tuple[int, int, int]:
    """What `read_batches` and `read_messages` do, with `records_of` a row as the format."""
    low = int(state[L.S_LOW])
    room = int(state[L.S_ROW_CAPACITY] - state[L.S_ROWS])
    bytes_left = int(state[L.S_BYTE_CAPACITY] - max(state[L.S_KEY_BYTES], state[L.S_VALUE_BYTES]))
    good: list[Record] = []
    result = L.OK, 0, until
    for row in range(first, until):
        entry = table[row].tolist()
        if (entry[L.MAGIC] < 2) != legacy:
            result = L.OK, 0, row
            break
        table[row, L.LOW], table[row, L.ROWS] = low, 0
        if entry[L.SKIP]:
            continue
        wanted: list[Record] = []
        next_low = low
        try:
            if entry[L.LENGTH] > bytes_left:
                raise Bad(L.BAD_COUNT, 0)
            for record in records_of(entry):
                if record.offset >= next_low:
                    if len(good) + len(wanted) == room:
                        raise Bad(L.BAD_COUNT, 0)
                    wanted.append(record)
                    next_low = record.offset + 1
        except Bad as bad:
            result = bad.status, bad.position, row
            break
        low = next_low
        table[row, L.ROWS] = len(wanted)
        good += wanted
        bytes_left -= entry[L.LENGTH]
    _append(good, outputs, state)
    state[L.S_LOW] = low
    return result


def _append(records: list[Record], outputs: Cells, state: Cells) -> None:
    n = int(state[L.S_ROWS])
    write(int(outputs[L.O_OFFSETS]) + 8 * n, array("q", [record.offset for record in records]).tobytes())
    write(int(outputs[L.O_TIMESTAMPS]) + 8 * n, array("q", [record.timestamp for record in records]).tobytes())
    write(int(outputs[L.O_TIMESTAMP_TYPES]) + n, bytes(record.timestamp_type & 255 for record in records))
    keys = [record.key for record in records]
    values = [record.value for record in records]
    key_outputs = outputs[L.O_KEY_OFFSETS : L.O_KEY_VALIDITY + 1].tolist()
    value_outputs = outputs[L.O_VALUE_OFFSETS : L.O_VALUE_VALIDITY + 1].tolist()
    state[L.S_KEY_BYTES] = append_fields(keys, n, int(state[L.S_KEY_BYTES]), *key_outputs)
    state[L.S_VALUE_BYTES] = append_fields(values, n, int(state[L.S_VALUE_BYTES]), *value_outputs)
    state[L.S_KEY_NULLS] += keys.count(None)
    state[L.S_VALUE_NULLS] += values.count(None)
    state[L.S_TIMESTAMP_NULLS] += sum(record.timestamp == L.NO_TIMESTAMP for record in records)
    for record in records:
        for key, value in record.headers:
            state[L.S_HEADERS] += 1
            state[L.S_HEADER_KEY_BYTES] += len(key)
            state[L.S_HEADER_VALUE_BYTES] += len(value or b"")
    state[L.S_ROWS] = n + len(records)


def append_fields(fields: list[bytes | None], n: int, used: int, offsets: int, data: int, validity: int) -> int:
    """Write an Arrow binary column from row `n`, byte `used` on; the bytes used then."""
    write(data + used, b"".join(field for field in fields if field))
    ends = array("i", [used])
    for field in fields:
        used += len(field or b"")
        ends.append(used)
    write(offsets + 4 * n, ends.tobytes())
    present = [False] * (n & 7) + [field is not None for field in fields]
    bits = bytearray(np.packbits(np.array(present, np.bool_), bitorder="little").tobytes())
    if n & 7:
        bits[0] |= ctypes.string_at(validity + (n >> 3), 1)[0]
    write(validity + (n >> 3), bytes(bits))
    return used


def write(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))
