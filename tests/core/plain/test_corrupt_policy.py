"""Corrupt batches: the stream fails, or the batch is skipped, and set aside on disk first if that is configured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import NONE, NOT_LEADER_OR_FOLLOWER
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchPosition, FetchRequest, FetchResponse
from kzconsumer.counters import Counters
from kzconsumer.errors import ConnectionLostError, CorruptRecordError, KzConsumerError
from kzconsumer.fetcher import decode_and_queue
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy, without_way
from kzconsumer.fetcher.decode_and_queue import Arrival, Delivery
from kzconsumer.fetcher.fetch_rules import Unusable, decoding
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.progress import Progress
from kzconsumer.records.decode import Corruption, Decoded
from kzconsumer.records.forms import NO_RECORDS
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.core.plain.test_corrupt_batch import FIRST, SECOND, THIRD, unusable
from tests.support.disk import watched_disk
from tests.support.plans import plan_of
from tests.support.record_sets import Record, message, record_batch

LOG = FIRST + SECOND + THIRD
CORRUPT = unusable(10, len(FIRST))
LARGE = message(1, 10, 5, None, bytes(1000))[:500]


async def skipped(
    settings: FetchSettings, found: Unusable = CORRUPT, log: bytes = LOG, *, leads_on: bool = True
) -> int | None:
    async def asked(offset: int) -> bool:
        return leads_on

    return await CorruptPolicy(settings).way_over(found, memoryview(log), 30, asked)


def setting_aside(directory: Path) -> FetchSettings:
    return FetchSettings(on_corrupt="quarantine", quarantine=str(directory))


async def test_without_a_policy_the_stream_fails() -> None:
    with pytest.raises(CorruptRecordError), capture_logs() as logs:
        await skipped(FetchSettings())
    assert logs == []


async def test_a_skipped_batch_is_reported_as_lost() -> None:
    with capture_logs() as logs:
        assert await skipped(FetchSettings(on_corrupt="skip")) == 20
    (line,) = logs
    assert [line[name] for name in ("log_level", "topic", "partition", "first", "until", "kept")] == [
        "error", "orders", 3, 10, 20, None,
    ]  # fmt: skip


async def test_a_batch_that_was_set_aside_is_on_disk_with_all_its_bytes(tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk, capture_logs() as logs:
        assert await skipped(setting_aside(tmp_path / "of" / "batches")) == 20
        (kept,) = (tmp_path / "of" / "batches").iterdir()
        disk.require(kept)
    assert (kept.name, kept.read_bytes()) == ("orders-3-10.bin", SECOND)
    assert logs[0]["kept"] == str(kept)
    assert await skipped(setting_aside(tmp_path / "of" / "batches")) == 20, "it is fetched again after a restart"


async def test_a_batch_that_cannot_be_set_aside_is_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "orders-3-10.bin").write_bytes(b"of an earlier topic")
    with pytest.raises(
        KzConsumerError, match=r"orders-3: the corrupt batch at offset 10 cannot be set aside: .*move it"
    ):
        await skipped(setting_aside(tmp_path))
    assert (tmp_path / "orders-3-10.bin").read_bytes() == b"of an earlier topic"


async def test_a_truncated_message_is_skipped_only_if_the_log_continues_after_it() -> None:
    cut_off = unusable(10, 0, cut_off=True)
    assert await skipped(FetchSettings(on_corrupt="skip"), cut_off, LARGE) == 11
    with pytest.raises(KzConsumerError, match="nothing after it can be read"):
        await skipped(FetchSettings(on_corrupt="skip"), cut_off, LARGE, leads_on=False)


@settings(max_examples=30)
@given(corrupt=st.lists(st.booleans(), min_size=1, max_size=12), skips=st.booleans())
async def test_a_batch_is_corrupt_if_it_is_so_three_times_in_a_row(corrupt: list[bool], skips: bool) -> None:
    """An intact answer in between sets the count back to 0."""

    async def way_over(_: object, found: Unusable, *__: object) -> int:
        if not skips:
            raise without_way(found)
        return found.offset + 5

    broken: list[bool] = []

    def read(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        if broken[0]:
            return Decoded(NO_RECORDS, start, corrupt=Corruption(start, "its checksum is wrong", 0))
        return Decoded(NO_RECORDS, start + 1)

    state = FetchState(Progress(TopicPartition("orders", 0), 7), ChunkQueue(1 << 20), 7, 1 << 20)
    delivering = Delivery(Broker(1, "localhost", 9092), cast(Brokers, None), FetchSettings(), read, Counters())
    position, in_a_row = 7, 0
    with mock.patch.object(CorruptPolicy, "way_over", way_over):
        for each in corrupt:
            broken[:] = [each]
            state.queue.reserve(1)
            part = FetchedPartition(state.topic_partition, 0, 100, -1, -1, (), memoryview(b"?"))
            done = await delivering.deliver([Arrival(state, part, position, 1)])
            in_a_row = in_a_row + 1 if each else 0
            if not each:
                expected = (position, position + 1)
            elif in_a_row == 3:
                expected, in_a_row = (position, position + 5 if skips else position), 0
            else:
                assert (done.send_back, done.forget, state.position) == ([state], [], position)
                assert state.queue.get_nowait() is None
                continue
            chunk = state.queue.get_nowait()
            assert chunk is not None
            assert ((chunk.first, chunk.until), state.position, done.send_back) == (expected, expected[1], [])
            assert (chunk.error is not None, state.failed, bool(done.forget)) == (each and not skips,) * 3
            if state.failed:
                return
            position = expected[1]


class Control:
    """The broker's other connection, on which it says what it has at an offset."""

    def __init__(self, answer: FetchedPartition | ConnectionLostError) -> None:
        self.answer = answer
        self.asked: list[Mapping[TopicPartition, FetchPosition]] = []

    async def connection(self, broker: Broker, purpose: str) -> Control:
        assert purpose == "control", "answers on the other may be held back"
        return self

    async def call(self, request: FetchRequest, *, timeout: float) -> FetchResponse:
        self.asked.append(request.partitions)
        assert request.max_wait_ms == 0
        if isinstance(self.answer, ConnectionLostError):
            raise self.answer
        return FetchResponse(NONE, 0, [self.answer])


def behind(error: int, records: bytes) -> FetchedPartition:
    return FetchedPartition(TopicPartition("orders", 0), error, 30, 30, -1, (), memoryview(records))


@pytest.mark.parametrize(
    ("end", "answer", "goes_on"),
    [
        (11, behind(NONE, b""), True),  # it is the last one
        (30, behind(NONE, b"more"), True),
        (30, behind(NONE, b""), False),
        (30, behind(NOT_LEADER_OR_FOLLOWER, b"more"), False),
        (30, ConnectionLostError("lost"), None),
    ],
)
async def test_a_message_beyond_the_largest_is_passed_over_if_its_broker_has_what_follows(
    end: int, answer: FetchedPartition | ConnectionLostError, goes_on: bool | None
) -> None:
    """None: nothing is known, and it is fetched again."""
    fetch, control = FetchSettings(on_corrupt="skip", max_bytes=1024, largest_batch=1024), Control(answer)
    state = FetchState(Progress(TopicPartition("orders", 0), 10), ChunkQueue(1 << 20), 10, 1024, end)
    delivering = Delivery(
        Broker(1, "localhost", 9092), cast(Brokers, control), fetch, decoding(fetch.largest_body), Counters()
    )
    cut = message(1, 10, 5, None, bytes(5000))[:1024]
    state.queue.reserve(len(cut))
    part = FetchedPartition(state.topic_partition, NONE, end, end, -1, (), memoryview(cut))
    delivered = delivering.deliver([Arrival(state, part, 10, len(cut))])
    if goes_on is None:
        with pytest.raises(ConnectionLostError):
            await delivered
        assert (state.position, state.failed) == (10, False)
        return
    done = await delivered
    assert control.asked == ([] if end == 11 else [{state.topic_partition: FetchPosition(11, 1024)}])
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert ((chunk.first, chunk.until), chunk.error is None) == ((10, 11 if goes_on else 10), goes_on)
    assert (state.position, state.failed, done.forget == [state]) == (11 if goes_on else 10, not goes_on, not goes_on)


async def test_skipping_a_corrupt_batch_does_not_leave_the_planned_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a compacted log the next batch may begin far behind it: the range is still written as planned."""

    def corrupt(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        return Decoded(NO_RECORDS, 7, corrupt=Corruption(7, "its checksum is wrong", 0))

    monkeypatch.setattr(decode_and_queue, "ATTEMPTS_AT_A_BATCH", 1)
    claim = Progress(TopicPartition("orders", 0), 5, replay=plan_of(5, 9))
    state = FetchState(claim, ChunkQueue(1 << 20), 5, 1 << 20)
    state.queue.reserve(1)
    state.high_watermark = 100
    log = b"".join(record_batch([Record(None, b"v")], base_offset=first) for first in (7, 40))
    part = FetchedPartition(state.topic_partition, 0, 100, -1, -1, (), memoryview(log))
    settings = FetchSettings(on_corrupt="skip")
    delivering = Delivery(Broker(1, "localhost", 9092), cast(Brokers, None), settings, corrupt, Counters())
    with capture_logs() as logs:
        assert await delivering.deliver([Arrival(state, part, 5, len(log))]) == ([], [], [])
    chunks = [state.queue.get_nowait(), state.queue.get_nowait()]
    assert [(chunk.first, chunk.until) for chunk in chunks if chunk is not None] == [(5, 7), (7, 9)]
    assert [(line["first"], line["until"]) for line in logs] == [(7, 9)]
    assert state.position == 9
