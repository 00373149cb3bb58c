"""Decoded records as messages: every field and every null, for each decoded form."""

from __future__ import annotations

import gc
import pickle

import pyarrow as pa
import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.records.decode import decode
from kzconsumer.records.few_records import MOST_RECORDS, decode_few
from kzconsumer.records.forms import Records
from kzconsumer.streams import message
from kzconsumer.streams.message import Message
from tests.support.record_sets import Record, control_batch, message_set, record_batch


def decoded(data: bytes, start: int = 0) -> Records:
    return decode(memoryview(data), topic="orders", partition=3, start=start).records


def messages(records: Records) -> list[Message]:
    return message.messages(records.rows(), TopicPartition("orders", 3))


def test_every_field() -> None:
    records = [
        Record(b"key", b"value", ((b"trace", b"\x00\x01"), (b"trace", b""), (b"none", None)), 1_700_000_000_123),
        Record(None, b"", (), -1),
        Record(b"", None, (), 0),
    ]
    assert messages(decoded(record_batch(records, base_offset=40))) == [
        Message.of(
            topic="orders",
            partition=3,
            offset=40,
            key=b"key",
            value=b"value",
            timestamp=1_700_000_000_123,
            headers=(("trace", b"\x00\x01"), ("trace", b""), ("none", None)),
            timestamp_type=0,
        ),
        Message.of("orders", 3, 41, None, b"", None, (), 0),
        Message.of("orders", 3, 42, b"", None, 0, (), 0),
    ]


def test_the_brokers_clock() -> None:
    batch = decoded(record_batch([Record(None, b"v")], base_offset=0, log_append_time=1_800_000_000_000))
    (only,) = messages(batch)
    assert (only.timestamp, only.timestamp_type) == (1_800_000_000_000, 1)


def test_records_without_timestamps() -> None:
    (only,) = messages(decoded(message_set([Record(b"k", b"v")], magic=0, base_offset=7)))
    assert only == Message.of("orders", 3, 7, b"k", b"v", None, (), -1)


def test_rows_of_a_slice() -> None:
    """A stream makes the rows of a chunk into messages in lots; headers must not shift to other rows."""
    records = [Record(None, b"%d" % n, ((b"n", b"%d" % n),) if n % 2 else ()) for n in range(6)]
    batch = decoded(record_batch(records, base_offset=10))
    found = messages(batch.slice(2, 5))
    assert [(each.offset, each.value, each.headers) for each in found] == [
        (12, b"2", ()),
        (13, b"3", (("n", b"3"),)),
        (14, b"4", ()),
    ]
    without = messages(batch.slice(0, 1))
    assert [each.headers for each in without] == [()]
    assert messages(batch.slice(0, 0)) == []


def test_a_compacted_log() -> None:
    """With gaps in the offsets, a message gets its own timestamp and headers, not its neighbour's."""
    records = [Record(b"k%d" % n, b"%d" % n, ((b"n", b"%d" % n),), 1000 + n) for n in range(5)]
    data = record_batch(records, base_offset=100, offset_deltas=[0, 3, 4, 9, 20])
    found = messages(decoded(data, 100))
    assert [(each.offset, each.key, each.timestamp, each.headers) for each in found] == [
        (100 + delta, b"k%d" % n, 1000 + n, (("n", b"%d" % n),)) for n, delta in enumerate([0, 3, 4, 9, 20])
    ]


def test_few_records_make_the_same_messages_as_columns() -> None:
    records = [
        Record(b"k", b"v", ((b"trace", b"\x00"), (b"caf\xe9", None)), 5),
        Record(None, b"", (), -1),
        Record(b"", None, (), 0),
    ]
    data = record_batch(records, base_offset=40, offset_deltas=[0, 7, 9])
    data += record_batch(records[1:], base_offset=60, log_append_time=77)
    for start in (0, 41, 49, 61):
        few = decode_few(memoryview(data), topic="orders", partition=3, start=start)
        assert few is not None
        assert messages(few.records) == messages(decoded(data, start))
        assert few.records.columns() == decoded(data, start).columns()
        assert few.next_offset == 62


def test_few_records_of_a_compacted_batch_end_where_the_batch_ends() -> None:
    """A fetch from an offset in between would return the same batch again, for ever."""
    data = record_batch([Record(None, b"v")] * 2, base_offset=40, offset_deltas=[0, 2], last_offset_delta=9)
    few = decode_few(memoryview(data), topic="orders", partition=3, start=40)
    assert few is not None
    assert few.next_offset == 50


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (record_batch([Record(None, b"v")], base_offset=3, codec="gzip"), 0),
        (control_batch(3, producer_id=1, commit=True), 0),
        (message_set([Record(None, b"v")], magic=1, base_offset=3), 0),
        (record_batch([Record(None, b"v")], base_offset=3)[:-1], 0),
        (record_batch([Record(None, b"v")], base_offset=3)[:-2] + b"w\0", 0),
        (record_batch([Record(None, b"v")], base_offset=3) + b"\0", 0),
        (record_batch([Record(None, b"v")] * (MOST_RECORDS + 1), base_offset=3), 0),
        (record_batch([Record(None, b"v")], base_offset=3), 4),
        (b"", 0),
    ],
    ids=["compressed", "control", "old", "cut off", "corrupt", "a tail", "many", "nothing wanted", "nothing"],
)
def test_unusual_records_are_decoded_as_columns(data: bytes, start: int) -> None:
    assert decode_few(memoryview(data), topic="orders", partition=3, start=start) is None


def test_only_the_checksum_detects_the_corrupt_value() -> None:
    """The case "corrupt" of the test above is refused for no other reason."""
    good = record_batch([Record(None, b"v")], base_offset=3)
    found = decode_few(memoryview(good[:-2] + b"w\0"), topic="orders", partition=3, start=0, check=False)
    assert found is not None
    assert [each.value for each in messages(found.records)] == [b"w"]


def test_a_retained_message_keeps_no_chunk_in_memory() -> None:
    gc.collect()  # objects left by earlier tests would be freed in between
    before = pa.total_allocated_bytes()
    batch = decoded(record_batch([Record(b"k", bytes(1000), (), n) for n in range(1000)], base_offset=0))
    kept = messages(batch.slice(500, 510))[4]
    del batch
    assert (kept.offset, kept.timestamp, kept.value) == (504, 504, bytes(1000))
    assert pa.total_allocated_bytes() == before


def test_messages_are_values() -> None:
    one, other = messages(decoded(record_batch([Record(b"k", b"v"), Record(b"k", b"w")], base_offset=0)))
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert hash(again) == hash(one)
    assert one != other
    assert one != (one.topic, one.partition, one.offset)
    assert repr(other) == (
        "Message(topic='orders', partition=3, offset=1, key=b'k', value=b'w', timestamp=1700000000000, headers=(), "
        "timestamp_type=0)"
    )
