"""A parser of record sets in plain Python, strict and slow: the decoder has to agree with it.

It shares nothing with the decoder but the decompression. Checksums are ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from kzconsumer.records import compression as L
from kzconsumer.records.compression import BadCompression, Scratch, decompress


class Bad(Exception):
    """The only error of the reference parser."""


class Reader:
    """Bytes read from the front; Bad when they do not suffice."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data):
            raise Bad
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def unpack(self, fields: str) -> tuple[Any, ...]:
        return struct.unpack(">" + fields, self.take(struct.calcsize(">" + fields)))

    def varint(self, most: int) -> int:
        number = 0
        for n in range(most):
            byte = self.take(1)[0]
            number += (byte % 128) << (7 * n)
            if byte < 128:
                number %= 1 << 64
                return -(number + 1) // 2 if number % 2 else number // 2
        raise Bad

    def field(self) -> bytes | None:
        size = self.varint(5)
        return None if size == -1 else self.take(size)

    def field32(self) -> bytes | None:
        (size,) = self.unpack("i")
        return None if size == -1 else self.take(size)


Row = tuple[int, int | None, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def opened(codec: int, magic: int, body: bytes) -> bytes:
    try:
        return decompress(codec, magic, memoryview(body), Scratch()).tobytes() if codec else body
    except BadCompression:
        raise Bad from None


class Transactions:
    """The aborted transactions of a response, as Kafka's own consumer follows them from batch to batch."""

    def __init__(self, named: Sequence[tuple[int, int]]) -> None:
        self.producers = {producer for producer, _ in named}
        self.to_come = list(named)
        self.open: set[int] = set()
        self.hidden = 0
        """Batches that belong to one of them."""

    def hide(self, last: int, producer: int, attributes: int, count: int, body: bytes) -> bool:
        """Whether the batch belongs to one of them; Bad for a marker that cannot be read."""
        if producer < 0:
            return False
        self.open.update(each for each, first in self.to_come if first <= last)
        self.to_come = [(each, first) for each, first in self.to_come if first > last]
        if producer not in self.producers:
            return False
        if attributes & 0x20:
            if count > 0 and self.kind_of_marker(attributes, Reader(body)) == 0:
                self.open.discard(producer)
            return False
        hidden = bool(attributes & 0x10) and producer in self.open
        self.hidden += hidden
        return hidden

    @staticmethod
    def kind_of_marker(attributes: int, body: Reader) -> int:
        if attributes & 7:
            raise Bad
        record = Reader(body.take(body.varint(5)))
        record.take(1)
        record.varint(10)
        record.varint(5)
        key = record.field()
        if key is None or len(key) < 4:
            raise Bad
        return int.from_bytes(key[2:4], "big")


def batch_rows(base: int, whole: Reader, transactions: Transactions) -> tuple[int, int, Callable[[], Iterator[Row]]]:
    """(last offset, leader epoch, rows)"""
    epoch, _, _, attributes, last, first_time, latest_time, producer, _, _, count = whole.unpack("ibIhiqqqhii")
    if last < 0:
        raise Bad
    hidden = transactions.hide(base + last, producer, attributes, count, whole.data)

    def rows() -> Iterator[Row]:
        codec = attributes & 7
        body = whole.data if codec and not whole.data else opened(codec, 2, whole.data)
        if not 0 <= count * 7 <= len(body):
            raise Bad
        reader = Reader(body)
        for _ in range(count):
            record = Reader(reader.take(reader.varint(5)))
            record.take(1)
            time, delta = record.varint(10), record.varint(5)
            key, value = record.field(), record.field()
            headers = []
            number = record.varint(5)
            if not 0 <= number <= len(record.data) // 2:
                raise Bad
            for _ in range(number):
                name = record.field()
                if name is None:
                    raise Bad
                headers.append((name.decode("utf-8", "replace"), record.field()))
            if record.data or not 0 <= delta <= last:
                raise Bad
            time = latest_time if attributes & 8 else wrapped(first_time + time)
            yield base + delta, None if time == -1 else time, attributes >> 3 & 1, key, value, headers
        if reader.data:
            raise Bad

    return base + last, epoch, (lambda: iter(())) if hidden or attributes & 0x20 else rows


def message_fields(magic: int, whole: Reader) -> tuple[int, int, bytes | None, bytes | None]:
    _, own_magic, attributes = whole.unpack("IbB")
    if own_magic != magic:
        raise Bad
    time = whole.unpack("q")[0] if magic else -1
    key, value = whole.field32(), whole.field32()
    if whole.data:
        raise Bad
    return attributes, time, key, value


def message_rows(offset: int, magic: int, whole: Reader) -> Callable[[], Iterator[Row]]:
    attributes, time, key, value = message_fields(magic, whole)
    kind = attributes >> 3 & 1 if magic else -1
    if not attributes & 7:
        return lambda: iter([(offset, None if time == -1 else time, kind, key, value, [])])
    if value is None:
        raise Bad

    def rows() -> Iterator[Row]:
        inner = Reader(opened(attributes & 7, magic, value))
        found: list[Row] = []
        while len(inner.data) >= 12:
            inner_offset, size = inner.unpack("qi")
            if size < 14:
                raise Bad
            if size > len(inner.data):
                break
            if size < 14 + 8 * magic:
                raise Bad
            inner_attributes, inner_time, inner_key, inner_value = message_fields(magic, Reader(inner.take(size)))
            if inner_attributes & 7:
                raise Bad
            stamp = time if magic and kind else inner_time
            found.append((inner_offset, None if stamp == -1 else stamp, kind, inner_key, inner_value, []))
        if not found:
            raise Bad
        base = offset - found[-1][0] if magic else 0
        if not 0 <= base <= L.MAX_OFFSET:  # beyond it would overflow, which Java accepts
            raise Bad
        for row in found:
            if not 0 <= row[0] + base <= offset:
                raise Bad
            yield row[0] + base, *row[1:]

    return rows


Read: TypeAlias = tuple[list[Row], int, bool, bool, tuple[tuple[int, int], ...]]
"""Rows, next offset, incomplete, corrupt; the first offset and leader epoch of each run of batches of one epoch."""


def reference(data: bytes, start: int, transactions: Transactions) -> Read:
    out: list[Row] = []
    epochs: dict[int, int] = {}
    low = next_offset = start
    reader = Reader(data)
    any_batch = False
    try:
        while len(reader.data) >= 17:
            offset, size = reader.unpack("qi")
            if size < 14:
                raise Bad
            if size > len(reader.data):
                return out, next_offset, not any_batch, False, tuple(epochs.items())
            magic = reader.data[4]
            if magic > 2 or not 0 <= offset <= L.MAX_OFFSET:
                raise Bad
            whole = Reader(reader.take(size))
            if magic == 2:
                last, epoch, rows = batch_rows(offset, whole, transactions)
            else:
                last, epoch, rows = offset, -1, message_rows(offset, magic, whole)
            any_batch = True
            good = list(rows()) if last >= start else []
            for row in good:
                if row[0] >= low:
                    out.append(row)
                    low = row[0] + 1
            if last >= next_offset and list(epochs.values())[-1:] != [epoch]:
                epochs[next_offset] = epoch
            next_offset = max(next_offset, last + 1)
    except Bad:
        return out, next_offset, False, True, tuple(epochs.items())
    return out, next_offset, bool(reader.data) and not any_batch, False, tuple(epochs.items())
