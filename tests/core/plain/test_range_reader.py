"""Reading ranges without a group, where brokers do not answer as usual."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final, Literal

import anyio
import pytest
from structlog.testing import capture_logs

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import UNKNOWN_SERVER_ERROR
from kzconsumer.errors import (
    BrokerError,
    ConnectionLostError,
    CorruptRecordError,
    OffsetLostError,
    UnusableBatchError,
)
from kzconsumer.fetcher import range_reader
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.settings.sections import FetchSettings
from tests.support.log_broker import log_broker
from tests.support.record_sets import Record, message, record_batch


class Known:
    """Each lookup finds the next of these brokers, and at the end the last one."""

    unusable: Final[Mapping[int, str]] = {}

    def __init__(self, *found: Broker) -> None:
        self.found = list(found)

    async def brokers(self) -> Sequence[Broker]:
        return [self.found.pop(0) if len(self.found) > 1 else self.found[0]]


@asynccontextmanager
async def reading(known: Known, timeout: float) -> AsyncIterator[RangeReader]:
    async with Brokers(client_id="reader", timeout=timeout) as brokers:
        yield RangeReader(FetchSettings(request_timeout=timeout, isolation="read_committed"), known, brokers)


async def offsets(reader: RangeReader, span: OffsetRange) -> list[object]:
    return [offset async for _, rows in reader.read([span]) for offset in rows["offset"].to_pylist()]


class Led(Leaders):
    """One broker leads everything. `looks`: how often it was looked up."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.looks = 0

    async def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        self.looks += 1
        found: dict[TopicPartition, Broker | str] = {}
        return found | dict.fromkeys(partitions, self._broker)


END = 9
TAIL = [Record(None, b"v")] * 5
"""Of a log that ends at END: what was behind them was compacted away."""


def tail_is_gone(partition: int, offset: int) -> bytes:
    return record_batch(TAIL, base_offset=0) if offset < len(TAIL) else b""


@pytest.mark.parametrize("local", [0, 5, None])
async def test_a_hole_at_the_end_of_the_log_ends_a_range(monkeypatch: pytest.MonkeyPatch, local: int | None) -> None:
    """If the broker would have read it from its own disks. Of an old one this is not known, so it takes a second."""
    timeout = 1.0 if local is None else 60.0
    async with (
        log_broker(tail_is_gone, end=lambda partition: END, local=local) as broker,
        reading(Known(broker), timeout) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        with anyio.fail_after(30):
            assert await offsets(reader, OffsetRange("orders", 0, 2, END)) == [2, 3, 4]


async def test_holes_of_two_partitions_of_one_leader_end_their_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [OffsetRange("orders", number, 3, END) for number in range(2)]
    async with (
        log_broker(tail_is_gone, end=lambda partition: END, local=0) as broker,
        reading(Known(broker), 60.0) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        with anyio.fail_after(30):
            found = [(each.partition, rows["offset"].to_pylist()) async for each, rows in reader.read(spans)]
    assert found == [(0, [3, 4]), (1, [3, 4])]


BATCHES = [record_batch(TAIL, base_offset=first) for first in range(0, 25, 5)]
DAMAGED = [batch[:-1] + bytes([batch[-1] ^ 1]) for batch in BATCHES]
# Two that follow each other, and the last one.
WITH_DAMAGE = [BATCHES[0], DAMAGED[1], DAMAGED[2], BATCHES[3], DAMAGED[4]]


def with_damage(partition: int, offset: int) -> bytes:
    return b"".join(WITH_DAMAGE[offset // 5 :])


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
async def test_corrupt_batches_of_a_range_are_passed_over_or_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: Literal["skip", "quarantine"]
) -> None:
    kept = tmp_path / "kept"
    settings = FetchSettings(on_corrupt=policy, quarantine=str(kept) if policy == "quarantine" else None)
    whole = OffsetRange("orders", 0, 2, 25)
    monkeypatch.setattr(range_reader, "PAUSE", 0.01)
    async with (
        log_broker(with_damage, end=lambda partition: 25) as broker,
        Brokers(client_id="reader", timeout=30.0) as brokers,
    ):
        reader = RangeReader(settings, Known(broker), brokers, on_corrupt=CorruptPolicy(settings))
        alone = RangeReader(settings, Known(broker), brokers)
        for each in (reader, alone):
            monkeypatch.setattr(each, "leaders", Led(broker))
        with capture_logs() as logs:
            assert await offsets(reader, whole) == [2, 3, 4, *range(15, 20)]
        passed = [(line["first"], line["until"]) for line in logs if "records are lost" in line["event"]]
        assert passed == [(5, 10), (10, 15), (20, 25)]
        with pytest.raises(CorruptRecordError) as raised:
            await offsets(alone, whole)
        error = raised.value
        assert (error.topic_partition, error.offset) == (TopicPartition("orders", 0), 5)
        with capture_logs():
            assert await alone.way_over(whole._replace(first=5), CorruptPolicy(settings)) == 15
            assert await alone.way_over(whole._replace(first=5, until=12), CorruptPolicy(settings)) == 12
        assert await alone.way_over(whole._replace(first=15), CorruptPolicy(FetchSettings())) == 15
        with pytest.raises(CorruptRecordError):
            await alone.way_over(whole._replace(first=5), CorruptPolicy(FetchSettings()))
    found = sorted(file.read_bytes() for file in kept.iterdir()) if kept.exists() else []
    assert found == (sorted(DAMAGED[n] for n in (1, 2, 4)) if policy == "quarantine" else [])


async def test_a_corrupt_batch_across_two_ranges_is_kept_once_and_each_offset_is_lost_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As tasks read the parts of a range, or a member the ranges of a plan."""
    settings = FetchSettings(on_corrupt="quarantine", quarantine=str(tmp_path))
    monkeypatch.setattr(range_reader, "PAUSE", 0.01)
    async with (
        log_broker(with_damage, end=lambda partition: 25) as broker,
        Brokers(client_id="reader", timeout=30.0) as brokers,
    ):
        reader = RangeReader(settings, Known(broker), brokers, on_corrupt=CorruptPolicy(settings))
        monkeypatch.setattr(reader, "leaders", Led(broker))
        with capture_logs() as logs:
            for first, until in ((7, 12), (2, 7), (12, 20)):  # tasks are not in order
                await offsets(reader, OffsetRange("orders", 0, first, until))
    lost = [offset for line in logs if "kept" in line for offset in range(line["first"], line["until"])]
    assert sorted(lost) == list(range(5, 15))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["orders-0-10.bin", "orders-0-5.bin"]


async def test_a_batch_beyond_the_largest_is_left_to_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from brokers before 0.10.1, which send only its beginning."""
    large = message(1, 0, 5, None, bytes(5000))
    behind = message(1, 1, 5, None, b"v")

    def log(partition: int, offset: int) -> bytes:
        return large[:1024] if offset == 0 else behind

    settings = FetchSettings(on_corrupt="skip", max_bytes=1024, largest_batch=1024)
    async with (
        log_broker(log, end=lambda partition: 2) as broker,
        Brokers(client_id="reader", timeout=30.0) as brokers,
    ):
        for policy in (CorruptPolicy(settings), None):
            reader = RangeReader(settings, Known(broker), brokers, on_corrupt=policy)
            monkeypatch.setattr(reader, "leaders", Led(broker))
            if policy is not None:
                assert await offsets(reader, OffsetRange("orders", 0, 0, 2)) == [1]
                continue
            with pytest.raises(UnusableBatchError, match="is larger than largest_batch = 1024"):
                await offsets(reader, OffsetRange("orders", 0, 0, 2))


async def test_a_read_takes_as_long_as_its_rate_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is over at once, for others follow it; without a limit nothing waits."""
    size = len(BATCHES[0])
    time = 100.0

    async def sleep(seconds: float) -> None:
        nonlocal time
        time += seconds

    monkeypatch.setattr(range_reader, "now", lambda: time)
    monkeypatch.setattr(range_reader, "anyio", SimpleNamespace(sleep=sleep))
    async with (
        log_broker(lambda partition, offset: BATCHES[offset // 5]) as broker,
        Brokers(client_id="reader", timeout=30.0) as brokers,
    ):
        for rate, taken in ((size / 2.0, 6.0), (None, 0.0)):
            reader = RangeReader(FetchSettings(), Known(broker), brokers, rate_limit=rate)
            monkeypatch.setattr(reader, "leaders", Led(broker))
            began = time
            assert await offsets(reader, OffsetRange("orders", 0, 0, 15)) == [*range(15)]
            assert time - began == pytest.approx(taken)


async def test_empty_answers_of_tiered_storage_are_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker gives up a read of 0.3 s unless it may hold the answer back that long."""
    waits: list[int] = []
    left = {0, 5}

    def log(partition: int, offset: int) -> bytes:
        if waits[-1] < 300 and offset in left:
            return b""
        left.discard(offset)
        return record_batch(TAIL, base_offset=offset)

    async with (
        log_broker(log, end=lambda partition: 10, local=10, waiting=waits.append) as broker,
        reading(Known(broker), 30.0) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        assert await offsets(reader, OffsetRange("orders", 0, 0, 10)) == [*range(10)]
        assert waits == [100, 200, 400, 100, 400], "the next remote read takes as long"


async def test_what_was_waited_for_in_vain_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        log_broker(tail_is_gone, end=lambda partition: END, local=END) as broker,
        reading(Known(broker), 0.1) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        said = r"orders-0: offsets 5 to 9: the answers have no records, though the log goes on to 9 .*; waited 1 s"
        with pytest.raises(ConnectionLostError, match=said):
            await offsets(reader, OffsetRange("orders", 0, 2, END))


@pytest.mark.parametrize(
    ("end", "stable", "error", "said"),
    [
        (8, 8, OffsetLostError, "orders-0: the log ends at 8, before 9"),
        (9, 8, ConnectionLostError, "orders-0: offsets 5 to 9: a transaction that begins at 8 has not ended; waited 1"),
    ],
)
async def test_a_range_that_is_not_readable_to_its_end(
    monkeypatch: pytest.MonkeyPatch, end: int, stable: int, error: type[Exception], said: str
) -> None:
    async with (
        log_broker(tail_is_gone, end=lambda _: end, stable=lambda _: stable, local=0) as broker,
        reading(Known(broker), 0.1) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        with pytest.raises(error, match=said):
            await offsets(reader, OffsetRange("orders", 0, 2, 9))


async def test_leaders_are_looked_up_once_while_they_send_records(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record_batch([Record(None, b"v")] * 2, base_offset=offset) for offset in (0, 2, 4, 6)]
    nothing_at = {4}

    def log(partition: int, offset: int) -> bytes:
        if offset in nothing_at:
            nothing_at.remove(offset)
            return b""
        return records[offset // 2]

    async with log_broker(log) as broker, reading(Known(broker), 30) as reader:
        leaders = Led(broker)
        monkeypatch.setattr(reader, "leaders", leaders)
        assert await offsets(reader, OffsetRange("orders", 0, 0, 8)) == [*range(8)]
        assert leaders.looks == 2  # the second after the answer without records


async def test_a_partition_that_is_read_alone_is_asked_for_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second request on, between `[fetch] max_bytes` and eight times that."""
    most, size = FetchSettings().max_bytes, 2_000_000
    sizes: list[int] = []

    def log(partition: int, offset: int) -> bytes:
        return record_batch([Record(None, bytes(size))], base_offset=offset)

    async with log_broker(log, asking=sizes.append) as broker, reading(Known(broker), 30) as reader:
        monkeypatch.setattr(reader, "leaders", Led(broker))
        assert await offsets(reader, OffsetRange("orders", 0, 3, 9)) == [*range(3, 9)]
        three, two = (9 * n * (size + 100) // 8 for n in (3, 2))
        most_of_all = 8 * most - 1000
        assert sizes[0] == most
        assert all(most_of_all < asked <= 8 * most for asked in sizes[1:3])
        assert three - 1000 < sizes[3] <= three
        assert two - 1000 < sizes[4] <= two
        assert 2 * most < sizes[5] < 2.2 * most
        sizes.clear()
        both = [OffsetRange("orders", number, 0, 2) for number in range(2)]
        assert [rows.num_rows async for _, rows in reader.read(both)] == [1] * 4
        assert sizes == [most] * 4


async def test_a_partition_is_asked_for_less_if_its_records_are_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they take in memory counts. Here that is four times what is in the log."""
    most, quarter = FetchSettings().max_bytes, 250_000
    value = Random(1).randbytes(quarter) + bytes(3 * quarter)
    sizes: list[int] = []

    def log(partition: int, offset: int) -> bytes:
        return record_batch([Record(None, value)], base_offset=offset, codec="gzip")

    async with log_broker(log, asking=sizes.append) as broker, reading(Known(broker), 30) as reader:
        monkeypatch.setattr(reader, "leaders", Led(broker))
        assert await offsets(reader, OffsetRange("orders", 0, 0, 12)) == [*range(12)]
    assert sizes[0] == most
    assert 0.98 < sizes[1] / (2 * most) < 1.02


async def test_batches_that_an_old_broker_cuts_off_are_asked_for_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 0.10.1 a response has no more than was asked for: the size that one batch needs is kept for the next."""
    most, size = FetchSettings().max_bytes, 9 * FetchSettings().max_bytes
    sizes: list[int] = []

    def log(partition: int, offset: int) -> bytes:
        return record_batch([Record(None, bytes(size))], base_offset=offset)[: sizes[-1]]

    async with log_broker(log, asking=sizes.append) as broker, reading(Known(broker), 30) as reader:
        monkeypatch.setattr(reader, "leaders", Led(broker))
        assert await offsets(reader, OffsetRange("orders", 0, 3, 6)) == [3, 4, 5]
    assert sizes == [most, 2 * most, 4 * most, 8 * most, *[16 * most] * 3]


async def test_what_a_broker_cannot_read_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the reader would wait for records that do not exist yet."""
    async with (
        log_broker(lambda partition, offset: b"", error=UNKNOWN_SERVER_ERROR) as broker,
        reading(Known(broker), 0.3) as reader,
    ):
        monkeypatch.setattr(reader, "leaders", Led(broker))
        with pytest.raises(BrokerError, match="orders-0: UNKNOWN_SERVER_ERROR"), anyio.fail_after(30):
            async for _ in reader.read([OffsetRange("orders", 0, 0, 9)], follow=True):
                pass
