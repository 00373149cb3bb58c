"""Ranges are read whatever brokers answer: each record once and in order, or an error that says why."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import anyio
import anyio.lowlevel
import pytest

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.protocol.error_codes import (
    CORRUPT_MESSAGE,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_SERVER_ERROR,
)
from kzconsumer.brokers.protocol.log_reads import FetchedPartition, FetchRequest, FetchResponse
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    CorruptRecordError,
    UnusableBatchError,
)
from kzconsumer.fetcher import range_reader
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.decode_and_queue import ATTEMPTS_AT_A_BATCH
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.settings.sections import FetchSettings
from tests.support.record_sets import Record, message, record_batch
from tests.support.simulated.virtual_time import World, clock_of

LIMIT = 10.0
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
OTHER = TopicPartition("payments", 0)
BROKERS = Broker(1, "a", 9092), Broker(2, "b", 9092)
END = 40
BATCH = len(record_batch([Record(None, b"v")] * 5, base_offset=0))

Answer = Callable[[Broker, FetchRequest], FetchResponse]


@pytest.fixture(autouse=True)
def without_threads() -> Iterator[None]:
    async def run(call: Callable[..., object], *arguments: object) -> object:
        await anyio.lowlevel.checkpoint()
        return call(*arguments)

    with mock.patch.object(range_reader, "in_thread", run):
        yield


class Connection:
    """`answer` has each request; it returns the answer or raises."""

    def __init__(self, broker: Broker, answer: Answer) -> None:
        self.broker, self._answer = broker, answer
        self.timed_out, self.begun = False, 0

    async def call(self, request: FetchRequest, timeout: float) -> FetchResponse:
        await anyio.sleep(0.01)
        try:
            return self._answer(self.broker, request)
        except SlowLine as slow:
            await anyio.sleep(timeout)
            self.timed_out, self.begun = True, slow.begun
            raise ConnectionLostError("no answer in time") from slow


class SlowLine(Exception):
    """As many bytes of the answer have come in time."""

    begun = 4096


class Pool:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.dropped = 0

    async def connection(self, broker: Broker, purpose: str) -> Connection:
        assert purpose == "fetch"
        return Connection(broker, self._answer)

    def present(self, broker: Broker, purpose: str) -> Connection | None:
        return None

    def drop(self, connection: Connection) -> None:
        self.dropped += 1


class Led(Leaders):
    """`leaders` of this moment, or why there is none."""

    def __init__(self, leaders: Callable[[TopicPartition], Broker | str]) -> None:
        self.leader = leaders

    async def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        return {each: self.leader(each) for each in partitions}


def part(partition: TopicPartition, offset: int, *, error: int = 0, records: bytes | None = None) -> FetchedPartition:
    """What the log has from an offset on: batches of five records."""
    if records is None:
        whole = [record_batch([Record(None, b"v")] * 5, base_offset=first) for first in range(0, END, 5)]
        records = b"".join(whole[offset // 5 : offset // 5 + 2])
    return FetchedPartition(partition, error, END, END, 0, (), memoryview(b"" if error else records))


def play(script: Callable[[World], Any], within: float = 600.0) -> Any:
    world = World(0)
    process = world.process("reader")
    with clock_of(world):
        task = process.create_task(script(world))
        assert world.pass_time(within, task.done)
        world.end(process)
    return task.result()


def reader_of(answer: Answer, leader: Callable[[TopicPartition], Broker | str], **more: Any) -> RangeReader:
    settings = more.pop("settings", FetchSettings(request_timeout=LIMIT))
    reader = RangeReader(settings, SimpleNamespace(), Pool(answer), **more)  # type: ignore[arg-type]
    reader.leaders = Led(leader)
    return reader


async def read(reader: RangeReader, *spans: OffsetRange) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    async for partition, rows in reader.read(spans):
        offsets: list[Any] = rows["offset"].to_pylist()
        found.setdefault(partition, []).extend(offsets)
    return found


FAULTS = (
    "left out",
    "not leader",
    "unreadable",
    "other partition",
    "throttled",
    "refused",
    "lost",
    "slow",
    "no broker",
)


@pytest.mark.parametrize("seed", range(12))
def test_each_record_comes_once_and_in_order_through_any_faults(seed: int) -> None:
    chance = random.Random(seed)
    met: list[str] = []
    until = [0.0]

    def fault(time: float, *kinds: str) -> str:
        if time > until[0] and chance.random() < 0.4:
            until[0] = time + 1.0
            met.append(chance.choice(FAULTS))
        return met[-1] if met and time <= until[0] and met[-1] in kinds else ""

    spans = [OffsetRange(*each, chance.randrange(END), END) for each in PARTITIONS]

    async def script(world: World) -> Mapping[TopicPartition, list[int]]:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            happened = fault(world.now, *FAULTS)
            if happened == "lost":
                raise ConnectionLostError("reset")
            parts = [part(each, at.offset) for each, at in request.partitions.items()]
            if happened == "left out":
                parts.pop(chance.randrange(len(parts)))
            elif happened in ("not leader", "unreadable"):
                error = NOT_LEADER_OR_FOLLOWER if happened == "not leader" else CORRUPT_MESSAGE
                parts[0] = part(parts[0].topic_partition, 0, error=error)
            elif happened == "other partition":
                parts.insert(0, part(OTHER, 0))
            elif happened == "throttled":
                return FetchResponse(0, 500, [])
            return FetchResponse(UNKNOWN_SERVER_ERROR if happened == "refused" else 0, 0, parts)

        def leader(partition: TopicPartition) -> Broker | str:
            if fault(world.now, "no broker"):
                raise BrokersUnreachableError("none")
            return BROKERS[partition.partition % 2]

        return await read(reader_of(answer, leader), *spans)

    assert play(script) == {span.topic_partition: [*range(span.first, span.until)] for span in spans}
    assert met


def test_a_line_that_is_too_slow_is_asked_for_less() -> None:
    """For half of what came in time, until answers come soon again; no record is lost or comes twice."""
    sizes: list[int] = []

    async def script(world: World) -> Mapping[TopicPartition, list[int]]:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            sizes.append(request.max_bytes)
            if len(sizes) in (1, 2):
                raise SlowLine
            return FetchResponse(0, 0, [part(each, at.offset) for each, at in request.partitions.items()])

        return await read(reader_of(answer, lambda each: BROKERS[0]), OffsetRange(*PARTITIONS[0], 3, END))

    assert play(script) == {PARTITIONS[0]: [*range(3, END)]}
    assert sizes[0] == FetchSettings().response_bytes
    assert all(each <= SlowLine.begun for each in sizes[1:3])


ALWAYS: dict[str, tuple[Callable[[TopicPartition], FetchedPartition | None], int, type[Exception], str]] = {
    "left out": (lambda each: None, 0, ConnectionLostError, "left orders-0 out of its answer"),
    "unreadable": (
        lambda each: part(each, 0, error=CORRUPT_MESSAGE),
        0,
        BrokerError,
        "orders-0: CORRUPT_MESSAGE",
    ),
    "refused": (
        lambda each: part(each, 0),
        UNKNOWN_SERVER_ERROR,
        ConnectionLostError,
        "fetch refused: UNKNOWN_SERVER_ERROR",
    ),
}


@pytest.mark.parametrize("kind", ALWAYS)
def test_what_does_not_end_is_the_error_after_the_time_for_an_answer(kind: str) -> None:
    answered, error, raised, said = ALWAYS[kind]

    async def script(world: World) -> float:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            parts = [found for each in request.partitions if (found := answered(each)) is not None]
            return FetchResponse(error, 0, parts)

        began = world.now
        with pytest.raises(raised, match=said):
            await read(reader_of(answer, lambda each: BROKERS[0]), OffsetRange(*PARTITIONS[0], 3, 9))
        return world.now - began

    assert LIMIT <= play(script) <= LIMIT + 3


def test_whether_there_is_any_record() -> None:
    async def script(world: World) -> list[bool]:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            return FetchResponse(
                0,
                0,
                [
                    part(
                        each,
                        at.offset,
                        records=None if each.partition == 0 else record_batch([], base_offset=3, last_offset_delta=5),
                    )
                    for each, at in request.partitions.items()
                ],
            )

        reader = reader_of(answer, lambda each: BROKERS[0])
        return [await reader.any_record("orders", 0, 3, 9), await reader.any_record("orders", 0, 9, 9)]

    assert play(script) == [True, False]


@pytest.mark.parametrize(
    ("answered", "leader", "raised", "said"),
    [
        (lambda each: part(each, 0, error=NOT_LEADER_OR_FOLLOWER), BROKERS[0], BrokerError, "orders-0: NOT_LEADER"),
        (lambda each: None, BROKERS[0], ConnectionLostError, r"a:9092\) left orders-0 out of its answer"),
        (lambda each: part(each, 0), "its leader is not up", Exception, "orders-0.*its leader is not up"),
    ],
)
def test_a_corrupt_batch_is_not_passed_over_if_it_cannot_be_read_again(
    answered: Callable[[TopicPartition], FetchedPartition | None],
    leader: Broker | str,
    raised: type[Exception],
    said: str,
) -> None:
    async def script(world: World) -> None:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            return FetchResponse(0, 0, [found for each in request.partitions if (found := answered(each)) is not None])

        settings = FetchSettings(on_corrupt="skip", request_timeout=LIMIT)
        reader = reader_of(answer, lambda each: leader, settings=settings)
        with pytest.raises(raised, match=said):
            await reader.way_over(OffsetRange(*PARTITIONS[0], 0, 9), CorruptPolicy(settings))

    play(script)


@pytest.mark.parametrize(("largest", "follows"), [(1024, True), (1024, False), (8192, True)])
def test_a_batch_that_is_too_large_is_asked_for_whole_and_passed_over_only_if_something_follows(
    largest: int, follows: bool
) -> None:
    """From a broker before 0.10.1, which sends only its beginning."""
    large, behind = message(1, 0, 5, None, bytes(5000)), message(1, 1, 5, None, b"v")
    sizes: list[int] = []

    async def script(world: World) -> int:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            parts = []
            for each, at in request.partitions.items():
                sizes.append(at.max_bytes)
                records = large[: at.max_bytes] if at.offset == 0 else behind * follows
                parts.append(part(each, 0, records=records))
            return FetchResponse(0, 0, parts)

        settings = FetchSettings(on_corrupt="skip", max_bytes=1024, largest_batch=largest, request_timeout=LIMIT)
        reader = reader_of(answer, lambda each: BROKERS[0], settings=settings)
        return await reader.way_over(OffsetRange(*PARTITIONS[0], 0, 9), CorruptPolicy(settings))

    if largest == 8192:
        assert play(script) == 0, "it can be read"
        assert sizes == [1024, 2048, 4096, 8192]
    elif follows:
        assert play(script) == 1
    else:
        with pytest.raises(UnusableBatchError, match="is larger than largest_batch = 1024"):
            play(script)
    assert max(sizes) <= largest
    assert math.isfinite(sum(sizes))


@pytest.mark.parametrize("times", [*itertools.product((0, 2, 3), repeat=2)])
def test_a_batch_is_passed_over_if_it_is_corrupt_three_times_whatever_the_one_before_is(times: tuple[int, int]) -> None:
    asked: list[int] = []

    async def script(world: World) -> int:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            (at,) = [each.offset for each in request.partitions.values()]
            asked.append(at)
            found = part(PARTITIONS[0], at)
            if at < 10 and asked.count(at) <= times[at // 5]:
                damaged = bytearray(found.records)
                damaged[BATCH - 1] ^= 1
                found = part(PARTITIONS[0], at, records=bytes(damaged))
            return FetchResponse(0, 0, [found])

        settings = FetchSettings(on_corrupt="skip", request_timeout=LIMIT)
        reader = reader_of(answer, lambda each: BROKERS[0], settings=settings)
        return await reader.way_over(OffsetRange(*PARTITIONS[0], 0, 10), CorruptPolicy(settings))

    passed = 0 if times[0] < 3 else 1 if times[1] < 3 else 2
    assert play(script) == 5 * passed
    assert asked == [0] * min(times[0] + 1, 3) + [5] * min(times[1] + 1, 3) * (passed > 0)


def test_a_corrupt_batch_is_not_passed_over_unless_it_is_seen_what_follows_it() -> None:
    """It is asked for again, each time for more bytes, up to the largest batch. Then nobody knows where to go on."""
    sizes: list[int] = []
    whole = record_batch([Record(None, b"v")] * 5, base_offset=0)
    damaged = whole[:-1] + bytes([whole[-1] ^ 1])

    async def script(world: World) -> int:
        def answer(broker: Broker, request: FetchRequest) -> FetchResponse:
            sizes.extend(at.max_bytes for at in request.partitions.values())
            return FetchResponse(0, 0, [part(each, 0, records=damaged) for each in request.partitions])

        settings = FetchSettings(on_corrupt="skip", max_bytes=1024, largest_batch=3000, request_timeout=LIMIT)
        reader = reader_of(answer, lambda each: BROKERS[0], settings=settings)
        return await reader.way_over(OffsetRange(*PARTITIONS[0], 0, 9), CorruptPolicy(settings))

    with pytest.raises(CorruptRecordError) as raised:
        play(script, 60.0)
    assert (raised.value.topic_partition, raised.value.offset) == (PARTITIONS[0], 0)
    assert sizes == [*[1024] * ATTEMPTS_AT_A_BATCH, 2048, 3000]
