"""What consecutive records of a partition are, in few bytes: their number, and checksums of offsets, keys and values.

Two reads of one range are compared by it. However the records are divided into batches, and into parts that are read
apart, the whole has the same contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from crc32c import crc32c

if TYPE_CHECKING:
    import pyarrow as pa  # loaded by those who have columns

_NULL: Final = -1  # in place of a length: a null key differs from an empty one
_POLYNOMIAL: Final = 0x82F63B78  # of CRC-32C, its lowest bit being the highest power
_ONE: Final = 1 << 31
_EIGHTH_POWER: Final = 1 << 23


class Contents(msgspec.Struct, frozen=True, array_like=True):
    """Of `records` records in offset order. Sizes are in bytes, all others are CRC-32C.

    Of keys and values there is one of the lengths (4 bytes each, -1 for null) and one of the bytes; of offsets one of 8
    bytes each. All are little-endian.
    """

    records: int = 0
    offsets: int = 0
    key_lengths: int = 0
    value_lengths: int = 0
    keys: int = 0
    values: int = 0
    key_size: int = 0
    value_size: int = 0

    @property
    def checksum(self) -> str:
        """40 hexadecimal digits."""
        checksums = (self.offsets, self.key_lengths, self.value_lengths, self.keys, self.values)
        return "".join(f"{each:08x}" for each in checksums)

    def then(self, batch: pa.RecordBatch) -> Contents:
        """With the records of the batch behind these. Columns: `kzconsumer.records.columns.SCHEMA`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from kzconsumer.records.columns import one_number

        if not batch.num_rows:
            return self
        lengths = {"key": self.key_lengths, "value": self.value_lengths}
        contents = {"key": self.keys, "value": self.values}
        sizes = {"key": self.key_size, "value": self.value_size}
        for name in lengths:
            column = batch.column(name)
            _, ends_buffer, data = column.buffers()
            if ends_buffer is None:
                continue
            each = pc.coalesce(pc.binary_length(cast("pa.BinaryArray", column)), one_number(_NULL, pa.int32()))
            lengths[name] = crc32c(_numbers(cast("pa.Int32Array", each), 4), lengths[name])
            if data is not None:
                ends = memoryview(ends_buffer).cast("B").cast("i")
                begin, end = ends[column.offset], ends[column.offset + len(column)]
                contents[name] = crc32c(memoryview(data)[begin:end], contents[name])
                sizes[name] += end - begin
        return Contents(
            self.records + batch.num_rows,
            crc32c(_numbers(batch.column("offset"), 8), self.offsets),
            *lengths.values(),
            *contents.values(),
            *sizes.values(),
        )

    def joined(self, after: Contents) -> Contents:
        """Of these records and those behind them."""
        if not self.records:
            return after
        return Contents(
            self.records + after.records,
            _joined(self.offsets, after.offsets, 8 * after.records),
            _joined(self.key_lengths, after.key_lengths, 4 * after.records),
            _joined(self.value_lengths, after.value_lengths, 4 * after.records),
            _joined(self.keys, after.keys, after.key_size),
            _joined(self.values, after.values, after.value_size),
            self.key_size + after.key_size,
            self.value_size + after.value_size,
        )


def contents_of(batches: Iterable[pa.RecordBatch]) -> Contents:
    """Of batches in offset order."""
    found = Contents()
    for batch in batches:
        found = found.then(batch)
    return found


def _joined(before: int, after: int, size: int) -> int:
    """The CRC of what has the CRC `before`, followed by `size` bytes that have the CRC `after`."""
    return _product(_power(size), before) ^ after


@cache
def _squares() -> tuple[int, ...]:
    """What appending 1, 2, 4, ... bytes multiplies a CRC by."""
    found = [_EIGHTH_POWER]
    while len(found) < 64:
        found.append(_product(found[-1], found[-1]))
    return tuple(found)


def _power(size: int) -> int:
    """What appending `size` bytes multiplies a CRC by."""
    found = _ONE
    for bit, square in enumerate(_squares()):
        if size >> bit & 1:
            found = _product(found, square)
    return found


def _product(a: int, b: int) -> int:
    """Of polynomials over GF(2), modulo that of CRC-32C."""
    found = 0
    for power in range(31, -1, -1):
        if a >> power & 1:
            found ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return found


def _numbers(column: pa.Array[Any], size: int) -> memoryview:
    """The bytes of a column of numbers of `size` bytes."""
    _, data = column.buffers()
    begin = size * column.offset
    return memoryview(data if data is not None else b"")[begin : begin + size * len(column)]
