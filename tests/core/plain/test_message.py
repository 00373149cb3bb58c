"""Decoded records as messages: every field and every null, for each decoded form."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
import types
from collections.abc import Generator
from typing import Any

import pytest

from kzconsumer.offsets.progress import Message
from kzconsumer.records._native import Lot, MessageIterator, allocated_bytes
from kzconsumer.records._native import decode as decode_columns
from kzconsumer.records.decode import decode
from kzconsumer.records.forms import Records
from tests.support.chunks import messages
from tests.support.record_sets import Record, record_batch


def decoded(data: bytes, start: int = 0) -> Records:
    return decode(memoryview(data), topic="orders", partition=3, start=start).records


def test_every_field() -> None:
    records = [
        Record(b"key", b"value", ((b"trace", b"\x00\x01"), (b"trace", b""), (b"none", None)), 1_700_000_000_123),
        Record(None, b"", (), -1),
        Record(b"", None, (), 0),
    ]
    assert messages(decoded(record_batch(records, base_offset=40))) == [
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


def test_a_retained_message_keeps_no_chunk_in_memory() -> None:
    gc.collect()  # objects left by earlier tests would be freed in between
    before = allocated_bytes()
    batch = decoded(record_batch([Record(b"k", bytes(1000), (), n) for n in range(1000)], base_offset=0))
    kept = messages(batch.slice(500, 510))[4]
    del batch
    assert (kept.offset, kept.timestamp, kept.value) == (504, 504, bytes(1000))
    assert allocated_bytes() - before < 1000  # of a million


def test_a_retained_message_keeps_no_headers_of_others() -> None:
    tracemalloc.start()
    try:
        large = ((b"h", bytes(10_000)),)
        batch = decoded(record_batch([Record(None, b"v", large) for _ in range(300)], base_offset=0))
        kept = messages(batch)[7]
        del batch
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1_000_000, "of three million"
    finally:
        tracemalloc.stop()
    assert kept.headers == (("h", bytes(10_000)),)


@pytest.mark.parametrize(
    ("fields", "error", "reason"),
    [
        ({"key": "text"}, TypeError, "key and value must be bytes or None"),
        ({"value": []}, TypeError, "key and value must be bytes or None"),
        ({"headers": [("a", "text")]}, TypeError, "pairs of str and bytes or None"),
        ({"headers": {"a": b"x"}}, TypeError, "pairs of str and bytes or None"),
        ({"timestamp_type": 256}, ValueError, "timestamp_type must be 0, 1 or -1"),
        ({"partition": 1 << 40}, OverflowError, "greater than maximum"),
        ({"unknown": 1}, TypeError, "unknown"),
    ],
)
def test_what_no_message_has(fields: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        Message(**{"topic": "t", "partition": 0, "offset": 1, "key": None, "value": None, **fields})


def test_headers_by_hand_become_tuples() -> None:
    made = Message("t", 0, 1, None, None, headers=[["a", b"x"]])  # type: ignore[arg-type]
    assert made == Message("t", 0, 1, None, None, headers=(("a", b"x"),))
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))
    assert copy.copy(made) is copy.deepcopy(made) is made


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


def test_the_garbage_collector_sees_what_compiled_objects_hold() -> None:
    """Otherwise a cycle through them is never freed: a reference that it does not see is somebody else's."""
    claim, lot = [b"a claim"], Lot()

    async def allow_more() -> None: ...

    def nothing(codec: int, magic: int, body: memoryview) -> bytes:
        raise AssertionError("nothing is compressed")

    columns, *_ = decode_columns(record_batch([Record(None, b"v")], base_offset=0), 0, (), 1 << 20, None, nothing)
    assert columns is not None
    lot.load(columns, "t", 0, claim, 0)
    lot.allow(10.0)
    iterator = MessageIterator(lot, allow_more)
    waiting = iterator.__anext__()
    *types, origin = gc.get_referents(lot)
    assert types == [Lot, Message]
    assert gc.get_referents(origin) == [type(origin), claim]
    assert gc.get_referents(iterator) == [MessageIterator, lot, allow_more, type(waiting), waiting]
    assert gc.get_referents(waiting) == [type(waiting), lot, allow_more]


@pytest.mark.parametrize("begun", [False, True])
def test_a_wait_can_be_closed_before_and_after_its_end(begun: bool) -> None:
    @types.coroutine
    def allow_more() -> Generator[str, None, None]:
        try:
            yield "waiting"
        finally:
            ended.append(True)

    ended: list[bool] = []
    waiting: Any = MessageIterator(Lot(), allow_more).__anext__()
    if begun:
        assert waiting.send(None) == "waiting"
    assert [waiting.close() for _ in range(3)] == [None] * 3
    assert ended == [True] * begun
