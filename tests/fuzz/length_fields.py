"""Finds the length fields of a record set, and gives one of them another value: what a mutation of bytes seldom does.

They are those that the oracle reads, so nothing else has to know the formats. The other lengths stay as they are: the
parser comes to the changed one, and to nothing behind it.
"""

from __future__ import annotations

import random
import struct
from typing import Any, NamedTuple
from unittest import mock

from kzconsumer.records import compression as L
from tests.fuzz import record_oracle
from tests.fuzz.record_oracle import Reader, Transactions
from tests.support.record_sets import CODECS, compress, message, varint

MAGIC_AT, LENGTH_AT, ATTRIBUTES_AT = 16, 8, 21
LAST = 8
"""Half of the changes are of one of so many at the end: what it reaches lies outside of everything."""


class Length(NamedTuple):
    at: int
    size: int
    """Bytes of the field itself."""
    is_varint: bool
    value: int
    left: int
    """Bytes behind it in what it is a field of."""


class _Placed(bytes):
    """Bytes that know where in the record set they are."""

    at = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if not isinstance(key, slice):
            return part
        placed = _Placed(part)
        placed.at = self.at + (key.start or 0)
        return placed


def lengths(data: bytes) -> list[Length]:
    """Those that the oracle reads before it finds a fault, sizes, counts and offset deltas among them.

    Not those of a compressed body.
    """
    found: list[Length] = []

    class Tracing(Reader):
        def varint(self, most: int) -> int:
            before = self.data
            number = super().varint(most)
            if most == 5:
                self._note(before, len(before) - len(self.data), number, is_varint=True)
            return number

        def unpack(self, fields: str) -> tuple[Any, ...]:
            before = self.data
            values = super().unpack(fields)
            if fields.endswith("i"):
                self._note(before, struct.calcsize(">" + fields), values[-1], is_varint=False)
            return values

        def _note(self, before: bytes, read: int, value: int, *, is_varint: bool) -> None:
            if isinstance(before, _Placed):
                size = read if is_varint else 4
                found.append(Length(before.at + read - size, size, is_varint, value, len(self.data)))

    with mock.patch.object(record_oracle, "Reader", Tracing):
        record_oracle.reference(_Placed(data), 0, Transactions([(producer, 0) for producer in (1, 2, 1 << 40)]))
    return found


def with_another_length(data: bytes, rng: random.Random) -> bytes:
    """One length is negative, or reaches about the end of what it is in, or of everything; or two that may be a field's
    and its record's are longer by the same. Sometimes all of it is in a compressed body then."""
    if found := lengths(data):
        first = rng.randrange(max(len(found) - LAST, 0) if rng.random() < 0.5 else 0, len(found))
        field = found[first]
        behind = len(data) - field.at - field.size
        near = rng.choice([-2, -1, 0, 1, 2])
        if rng.random() < 0.4:
            for each in (field, rng.choice(found[first + 1 : first + 6] or [field])):
                data = _changed(data, each, each.value + (1 if near >= 0 else -1))
        else:
            ends = (-1, -2, -2, 0, 1, field.left + near, field.left + near, behind + near, rng.randrange(200))
            data = _changed(data, field, rng.choice(ends))
    return compressed(data) if rng.random() < 0.4 else data


def _changed(data: bytes, field: Length, number: int) -> bytes:
    """The same if the number takes more bytes, or fewer."""
    if not field.is_varint and not -(1 << 31) <= number < 1 << 31:
        return data
    encoded = varint(number) if field.is_varint else struct.pack(">i", number)
    return data[: field.at] + encoded + data[field.at + field.size :] if len(encoded) == field.size else data


def compressed(data: bytes) -> bytes:
    """One batch, or a message set, as a batch or wrapper with that body; other record sets as they are."""
    if len(data) <= MAGIC_AT or (magic := data[MAGIC_AT]) > 2:
        return data
    if magic < 2:
        return message(magic, 1000, 7, None, compress("snappy-raw", data), CODECS["snappy"])
    size = int.from_bytes(data[LENGTH_AT : LENGTH_AT + 4], "big")
    attributes = int.from_bytes(data[ATTRIBUTES_AT : ATTRIBUTES_AT + 2], "big")
    if size != len(data) - LENGTH_AT - 4 or attributes & 7 or len(data) < L.BATCH_HEADER:
        return data
    body = compress("snappy-raw", data[L.BATCH_HEADER :])
    header = bytearray(data[: L.BATCH_HEADER])
    header[LENGTH_AT : LENGTH_AT + 4] = struct.pack(">i", len(header) - LENGTH_AT - 4 + len(body))
    header[ATTRIBUTES_AT : ATTRIBUTES_AT + 2] = struct.pack(">H", attributes | CODECS["snappy"])
    return bytes(header) + body
