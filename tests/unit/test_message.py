"""Rows of a column batch as messages: every field, every null."""

from __future__ import annotations

import pyarrow as pa

from kzconsumer.records.decode import decode
from kzconsumer.streams.message import Message, messages
from kzconsumer.testing.record_sets import Record, message_set, record_batch


def decoded(data: bytes, start: int = 0) -> pa.RecordBatch:
    batch = decode(memoryview(data), topic="orders", partition=3, start=start).batch
    assert batch is not None
    return batch


def test_every_field() -> None:
    records = [
        Record(b"key", b"value", ((b"trace", b"\x00\x01"), (b"trace", b""), (b"none", None)), 1_700_000_000_123),
        Record(None, b"", (), -1),
        Record(b"", None, (), 0),
    ]
    assert messages(decoded(record_batch(records, base_offset=40)), "orders", 3) == [
        Message(
            topic="orders",
            partition=3,
            offset=40,
            key=b"key",
            value=b"value",
            timestamp=1_700_000_000_123,
            headers=(("trace", b"\x00\x01"), ("trace", b""), ("none", None)),
            timestamp_type=0,
        ),
        Message("orders", 3, 41, None, b"", None, (), 0),
        Message("orders", 3, 42, b"", None, 0, (), 0),
    ]


def test_the_brokers_clock() -> None:
    batch = decoded(record_batch([Record(None, b"v")], base_offset=0, log_append_time=1_800_000_000_000))
    (message,) = messages(batch, "orders", 3)
    assert (message.timestamp, message.timestamp_type) == (1_800_000_000_000, 1)


def test_before_there_were_timestamps() -> None:
    (message,) = messages(decoded(message_set([Record(b"k", b"v")], magic=0, base_offset=7)), "orders", 3)
    assert message == Message("orders", 3, 7, b"k", b"v", None, (), -1)


def test_rows_of_a_slice() -> None:
    """A stream makes a chunk's rows into messages piece by piece; headers must not slip to other rows."""
    records = [Record(None, b"%d" % n, ((b"n", b"%d" % n),) if n % 2 else ()) for n in range(6)]
    batch = decoded(record_batch(records, base_offset=10))
    found = messages(batch.slice(2, 3), "orders", 3)
    assert [(each.offset, each.value, each.headers) for each in found] == [
        (12, b"2", ()),
        (13, b"3", (("n", b"3"),)),
        (14, b"4", ()),
    ]
    without = messages(batch.slice(0, 1), "orders", 3)
    assert [each.headers for each in without] == [()]
    assert messages(batch.slice(0, 0), "orders", 3) == []
