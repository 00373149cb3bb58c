"""What `decode` returns for valid record sets of every kind."""

from __future__ import annotations

import ctypes
import gc
import struct
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from kzconsumer.records._native import allocated_bytes, join
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.decode import Decoded, decode, scan_next_offset
from kzconsumer.records.forms import NO_RECORDS, DecodedRecords
from tests.support.record_sets import (
    LEGACY_CODECS,
    Codec,
    Record,
    control_batch,
    message_set,
    record_batch,
)

RECORDS = [
    Record(b"k0", b"value 0", ((b"trace", b"\x00\x01"), (b"empty", b""), (b"none", None)), 1_700_000_000_000),
    Record(None, b"", (), 1_700_000_000_005),
    Record(b"", None, ((b"", b"x"),), 1_699_999_999_999),
    Record(None, None, (), -1),
    Record(b"long" * 50, b"z" * 1000, (), 1_700_000_000_001),
]


def run(data: bytes, start: int = 0) -> Decoded:
    decoded = decode(memoryview(data), topic="events", partition=7, start=start)
    batch = decoded.records.columns()
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert (decoded.size > 0) == (len(decoded.records) > 0)
    return decoded


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    batch = decoded.records.columns()
    timestamps = batch.column("timestamp").cast(pa.int64())
    return [row | {"timestamp": time} for row, time in zip(batch.to_pylist(), timestamps.to_pylist(), strict=True)]


def expected(
    records: list[Record],
    offsets: Any,
    *,
    magic: int = 2,
    append_time: int | None = None,
) -> list[dict[str, Any]]:
    return [
        {
            "topic": "events",
            "partition": 7,
            "offset": offset,
            "key": record.key,
            "value": record.value,
            "timestamp": None
            if magic == 0
            else append_time
            if append_time is not None
            else None
            if record.timestamp == -1
            else record.timestamp,
            "headers": [{"key": key.decode(), "value": value} for key, value in record.headers] if magic == 2 else [],
            "timestamp_type": -1 if magic == 0 else int(append_time is not None),
        }
        for offset, record in zip(offsets, records, strict=True)
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "snappy-raw", "lz4", "zstd"])
def test_a_batch_of_magic_2(codec: Codec) -> None:
    decoded = run(record_batch(RECORDS, base_offset=100, codec=codec), 100)
    assert rows(decoded) == expected(RECORDS, range(100, 105))
    assert (decoded.next_offset, decoded.incomplete, decoded.corrupt) == (105, False, None)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_a_message_set(magic: int, codec: Codec) -> None:
    decoded = run(message_set(RECORDS, magic=magic, base_offset=100, codec=codec), 100)
    assert rows(decoded) == expected(RECORDS, range(100, 105), magic=magic)
    assert decoded.next_offset == 105


def test_inner_offsets_are_relative_in_magic_1_and_absolute_in_magic_0() -> None:
    absolute_in_1 = message_set(RECORDS, magic=1, base_offset=100, codec="gzip", relative=False)
    assert [row["offset"] for row in rows(run(absolute_in_1))] == list(range(100, 105))
    compacted = message_set(RECORDS[:3], magic=1, base_offset=0, codec="gzip", offsets=[100, 107, 190])
    decoded = run(compacted)
    assert [row["offset"] for row in rows(decoded)] == [100, 107, 190]
    assert decoded.next_offset == 191


def test_log_append_time() -> None:
    decoded = run(record_batch(RECORDS, base_offset=0, log_append_time=5))
    assert rows(decoded) == expected(RECORDS, range(5), append_time=5)
    for codec in ("none", "gzip"):
        decoded = run(message_set(RECORDS, magic=1, base_offset=0, codec=codec, log_append_time=5))
        assert rows(decoded) == expected(RECORDS, range(5), magic=1, append_time=5)


def test_a_log_whose_format_changed_is_decoded_into_one_batch() -> None:
    data = (
        message_set(RECORDS, magic=0, base_offset=0)
        + message_set(RECORDS, magic=1, base_offset=5, codec="snappy")
        + message_set(RECORDS, magic=1, base_offset=10)
        + record_batch(RECORDS, base_offset=15)
        + message_set(RECORDS, magic=1, base_offset=20, log_append_time=9)
        + record_batch(RECORDS, base_offset=25, codec="zstd")
    )
    decoded = run(data)
    assert rows(decoded) == (
        expected(RECORDS, range(5), magic=0)
        + expected(RECORDS * 2, range(5, 15), magic=1)
        + expected(RECORDS, range(15, 20))
        + expected(RECORDS, range(20, 25), magic=1, append_time=9)
        + expected(RECORDS, range(25, 30))
    )
    assert decoded.next_offset == scan_next_offset(memoryview(data), 0) == 30


@pytest.mark.parametrize("start", [0, 99, 100, 102, 104, 105, 107, 109, 110, 500])
def test_records_before_start_are_left_out(start: int) -> None:
    for data in (
        record_batch(RECORDS, base_offset=100) + record_batch(RECORDS, base_offset=105, codec="lz4"),
        message_set(RECORDS, magic=1, base_offset=100, codec="lz4") + message_set(RECORDS, magic=1, base_offset=105),
    ):
        decoded = run(data, start)
        assert [row["offset"] for row in rows(decoded)] == list(range(max(start, 100), 110))
        headers = [row["headers"] for row in rows(decoded)]
        if data[16] == 2:
            assert headers == [
                row["headers"] for row in expected(RECORDS * 2, range(100, 110)) if row["offset"] >= start
            ]
        assert decoded.next_offset == max(start, 110) == scan_next_offset(memoryview(data), start)


def test_control_batches_yield_no_rows_and_are_skipped() -> None:
    data = (
        record_batch(RECORDS, base_offset=0, transactional=True, producer_id=9)
        + control_batch(5, producer_id=9, commit=True)
        + record_batch(RECORDS, base_offset=6)
        + control_batch(11, producer_id=9, commit=False)
    )
    decoded = run(data)
    assert [row["offset"] for row in rows(decoded)] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert decoded.next_offset == 12
    only = run(control_batch(11, producer_id=9, commit=False), 11)
    assert (len(only.records), only.next_offset, only.incomplete, only.size) == (0, 12, False, 0)


def test_the_next_offset_follows_the_bounds_of_a_compacted_batch() -> None:
    data = record_batch(RECORDS[:2], base_offset=100, offset_deltas=[3, 6], last_offset_delta=9)
    decoded = run(data, 100)
    assert [row["offset"] for row in rows(decoded)] == [103, 106]
    assert decoded.next_offset == 110
    empty = record_batch([], base_offset=110, last_offset_delta=4)
    assert run(empty, 110).next_offset == 115
    assert run(data + empty, 108) == Decoded(NO_RECORDS, 115, False, None, 0, epochs=((108, 0),))


def test_a_partial_batch_at_the_end_is_normal() -> None:
    whole, partial = record_batch(RECORDS, base_offset=0), record_batch(RECORDS, base_offset=5)
    for size in range(1, len(partial)):
        decoded = run(whole + partial[:size])
        assert (decoded.next_offset, decoded.incomplete, decoded.corrupt) == (5, False, None)
        assert len(rows(decoded)) == 5
        assert run(partial[:size], 5) == Decoded(NO_RECORDS, 5, True, None, 0)


def test_the_filler_of_a_down_converting_broker_is_a_partial_batch() -> None:
    """`LazyDownConversionRecords` (from Kafka 2.0 on) fills up the promised size with the beginning of a batch."""
    filler = struct.pack(">qi", -1, 101) + bytes(88)
    decoded = run(message_set(RECORDS, magic=1, base_offset=0) + filler)
    assert (decoded.next_offset, decoded.corrupt) == (5, None)


def test_no_bytes() -> None:
    assert run(b"", 17) == Decoded(NO_RECORDS, 17, False, None, 0)


def test_the_record_bytes_are_not_kept() -> None:
    class Buffer(bytearray):
        """Bytes that can be observed."""

    for codec in ("none", "gzip"):
        data = record_batch(RECORDS * 100, base_offset=0, codec=codec)
        buffer = Buffer(data)
        watch = weakref.ref(buffer)
        decoded = decode(memoryview(buffer), topic="t", partition=0, start=0)
        del buffer
        gc.collect()
        assert watch() is None
        decoded.records.columns().validate(full=True)


class Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (*"abcdefg", "in_use", *"ij")]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="another C library")
@pytest.mark.parametrize("found", ["good", "corrupt", "hidden", "no room", "cut off"])
def test_nothing_that_a_call_has_allocated_is_left(found: str) -> None:
    """Neither memory of C, not only of columns, which `allocated_bytes` counts, nor Python objects."""
    many = b"".join(
        record_batch(
            [Record(b"k", b"v", ((b"\xff", b"h"),))], base_offset=n, codec="snappy", transactional=True, producer_id=1
        )
        for n in range(200)
    )
    data = many[:-5] if found == "cut off" else many + b"\xff" * 80 if found == "corrupt" else many
    aborted, room = ([(1, 0)] * 50 if found == "hidden" else []), 100 if found == "no room" else None

    def call() -> None:
        records = decode(memoryview(data), topic="t", partition=0, start=0, aborted=aborted, room=room).records
        assert scan_next_offset(memoryview(data), 0) > 0
        assert records.columns().num_rows == sum(1 for _ in records.messages()) == len(records.slice(0))
        if isinstance(records, DecodedRecords):
            assert len(records.slice(1).joined([])) + 1 == len(records)
            for other in (records.decoded, b""):
                with suppress(ValueError, TypeError):
                    join([records.decoded, other])  # type: ignore[list-item]

    def in_use() -> tuple[int, int]:
        gc.collect()
        mallinfo = ctypes.CDLL(None).mallinfo2
        mallinfo.restype = Mallinfo
        return int(mallinfo().in_use), sys.getallocatedblocks()

    for _ in range(3):
        call()
    before = in_use()
    for _ in range(50):
        call()
    memory, objects = (now - then for now, then in zip(in_use(), before, strict=True))
    assert memory < 50 * 200  # the decoder's smallest table of them takes eighty times as many
    assert objects < 50


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("headers", [(), ((b"name" * 100, b"content" * 100),)], ids=["plain", "headers"])
def test_the_size_is_that_of_the_memory_held(codec: Codec, headers: tuple[tuple[bytes, bytes], ...]) -> None:
    """Keys and values each get room for all bytes of the records, since their lengths are not known in advance."""
    records = [Record(b"key", b"value" * 200, headers)] * 500
    data = memoryview(record_batch(records, base_offset=0, codec=codec))
    before = allocated_bytes()
    decoded = decode(data, topic="events", partition=7, start=0)
    assert len(data) // 1000 < allocated_bytes() - before < 1.01 * decoded.size


def test_memory_that_was_freed_is_used_again() -> None:
    """For what is about as large: a page that the kernel has to clear costs more than decoding into it."""
    others = [
        decode(
            memoryview(record_batch([Record(None, bytes(size))], base_offset=0)), topic="events", partition=7, start=0
        )
        for size in range(400_000, 2_000_000, 25_000)
    ]
    del others  # they are more than are kept
    held = []
    for less in range(6):
        data = memoryview(record_batch([Record(None, bytes(200_000 - 100 * less))], base_offset=0))
        before = allocated_bytes()
        decoded = decode(data, topic="events", partition=7, start=0)
        held.append(allocated_bytes() - before)
        del decoded
    assert len(set(held)) == 1


def test_a_batch_without_room_is_not_decoded_at_all() -> None:
    data = record_batch(RECORDS, base_offset=0)
    data += record_batch([Record(None, bytes(10_000))], base_offset=len(RECORDS), codec="zstd")
    found = decode(memoryview(data), topic="events", partition=7, start=0, room=10_000)
    assert (found.no_room, len(found.records), found.next_offset, found.corrupt) == (True, 0, 0, None)
    found = decode(memoryview(data), topic="events", partition=7, start=0, room=11_000)
    assert (found.no_room, found.next_offset) == (False, len(RECORDS) + 1)
    assert 10_000 < found.decompressed < 10_100


def test_threads_do_not_disturb_each_other() -> None:
    codecs: list[Codec] = ["none", "snappy", "lz4", "zstd", "gzip"]
    data = [record_batch(RECORDS * 40, base_offset=n, codec=codec) for n, codec in enumerate(codecs)]
    wanted = [rows(run(one)) for one in data]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda n: rows(run(data[n % 5])), range(40)))
    assert got == wanted * 8
