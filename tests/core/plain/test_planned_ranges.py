"""Planned ranges before they are fetched: which of them wait for a lookup of their log, and where they end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer.brokers.leaders import LATE, Leaders, LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    NOT_LEADER_OR_FOLLOWER,
    TOPIC_AUTHORIZATION_FAILED,
)
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    LATEST,
    READ_UNCOMMITTED,
    EpochEnd,
    FetchedPartition,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH
from kzconsumer.counters import Counters
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    CoordinatorError,
    KzConsumerError,
)
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.records.decode import Decoded
from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.cluster_topics import TopicSource
from kzconsumer.runs import RunLosses
from kzconsumer.settings.sections import FetchSettings
from kzconsumer.settings.value_readers import FAIL, SMALLEST
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.plans import plan_of
from tests.support.simulated.virtual_time import in_virtual_time


def planned(partition: int, first: int, until: int) -> FetchState:
    claim = Progress(TopicPartition("orders", partition), first, replay=plan_of(first, until))
    return FetchState(claim, ChunkQueue(1 << 20), first, 1 << 20)


def read_nothing(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
    raise AssertionError("nothing is fetched here")


class Logs:
    """Offsets 0 to 100 of each partition that has a leader."""

    def __init__(self, leaderless: set[int]) -> None:
        self.leaderless = leaderless

    async def once(
        self, partitions: Mapping[TopicPartition, int], within: float = math.inf
    ) -> dict[TopicPartition, ListedOffset | ConnectionLostError | BrokerError]:
        return {
            each: ConnectionLostError("no leader")
            if each.partition in self.leaderless
            else ListedOffset(0, 0 if at == EARLIEST else 100, -1)
            for each, at in partitions.items()
        }

    async def look_up(self, partitions: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        found = await self.once(partitions)
        if self.leaderless.intersection(each.partition for each in partitions):
            raise ConnectionLostError("no leader was found in time")
        return {each: answer for each, answer in found.items() if isinstance(answer, ListedOffset)}


class SlowLogs(Logs):
    """Each reply takes longer than the previous one."""

    asked = 0

    async def once(
        self, partitions: Mapping[TopicPartition, int], within: float = math.inf
    ) -> dict[TopicPartition, ListedOffset | ConnectionLostError | BrokerError]:
        self.asked += 1
        await asyncio.sleep(0.004 * self.asked)
        return await super().once(partitions)


def manager_of(reset: object, log_offsets: object) -> FetcherManager:
    """It decides about planned ranges, and has no brokers to fetch from."""
    policy, logs = cast(OffsetReset, reset), cast(LogOffsets, log_offsets)
    leaders, brokers = cast(Leaders, None), cast(Brokers, None)
    return FetcherManager(leaders, brokers, FetchSettings(), policy, read_nothing, logs, None, Counters())


async def test_a_partition_without_leader_holds_up_no_planned_range_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    logs, states = Logs({1}), [planned(number, 5, 9) for number in range(3)]
    manager = manager_of(None, logs)
    manager.start(states)
    looking = asyncio.create_task(manager.check_replays())

    def found() -> list[bool]:
        return [manager.seeks_leader(state) for state in states]

    try:
        async with asyncio.timeout(5):
            while found() != [True, False, True]:
                await asyncio.sleep(0.001)
            logs.leaderless.clear()
            await looking
    finally:
        looking.cancel()
    assert found() == [True, True, True]


class Replaced(Logs):
    """Longer than the planned range; but the records of its epoch end before."""

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], within: float = math.inf
    ) -> dict[TopicPartition, EpochEnd | ConnectionLostError | BrokerError]:
        return {each: EpochEnd(0, epoch, 92) for each, epoch in epochs.items()}


async def test_a_planned_range_of_a_log_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not replayed with other records; and no time shows more."""
    for leader_epoch, ends in ((3, 92), (msgspec.UNSET, None)):
        claim = Progress(TopicPartition("orders", 0), 90, replay=plan_of(90, 95, leader_epoch=leader_epoch))
        state = FetchState(claim, ChunkQueue(1 << 20), 90, 1 << 20)
        asked: list[int] = []

        class Noting(GivingUp):
            async def end_early(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
                asked.append(end)  # noqa: B023
                return await super().end_early(state, plan, begin, end, log_end)

        manager = manager_of(Noting(), Replaced(set()))
        manager.start([state])
        async with asyncio.timeout(5):
            await manager.check_replays()
        assert asked == ([ends] if ends is not None else [])
        assert (state.progress.replay is None) == (ends is not None)


@pytest.mark.parametrize(
    ("refuses", "way_out"),
    [(False, 'truncated = "continue" to'), (True, 'truncated = "continue" and reset = "smallest" to')],
)
async def test_the_error_of_a_planned_range_names_the_whole_log_and_all_settings(refuses: bool, way_out: str) -> None:
    claim = Progress(TopicPartition("orders", 0), 90, replay=plan_of(90, 95, leader_epoch=3))
    state = FetchState(claim, ChunkQueue(1 << 20), 90, 1 << 20)
    policy = OffsetReset(FAIL if refuses else SMALLEST, cast(Committer, None), 1.0, READ_UNCOMMITTED, "fail")
    manager = manager_of(policy, Replaced(set()))
    manager.start([state])
    async with asyncio.timeout(5):
        await manager.check_replays()
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert "from 0 to 100, with other records from 92 on, has lost 92 to 95; " in str(chunk.error)
    assert f"Set [offsets] {way_out} go on without" in str(chunk.error)


async def test_a_log_that_is_not_compared_yet_is_not_taken_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader moves while it is asked."""
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    claim = Progress(TopicPartition("orders", 0), 90, replay=plan_of(90, 95, leader_epoch=3))
    state = FetchState(claim, ChunkQueue(1 << 20), 90, 1 << 20)
    answers: list[KzConsumerError | None] = [ConnectionLostError("closed"), BrokersUnreachableError("none"), None]

    class Moving(Replaced):
        async def epoch_ends(
            self, epochs: Mapping[TopicPartition, int], within: float = math.inf
        ) -> dict[TopicPartition, EpochEnd | ConnectionLostError | BrokerError]:
            answer = answers.pop(0)
            if isinstance(answer, ConnectionLostError):
                return dict.fromkeys(epochs, answer)
            if answer is not None:
                raise answer
            return {each: EpochEnd(0, epoch, 92) for each, epoch in epochs.items()}

    manager = manager_of(GivingUp(), Moving(set()))
    manager.start([state])
    async with asyncio.timeout(5):
        await manager.check_replays()
    assert (answers, state.progress.replay, state.progress.processed) == ([], None, 92)


async def test_a_log_that_seems_too_short_is_given_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader may learn only after some seconds how long its log is."""
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    monkeypatch.setattr(fetcher_manager, "END_PATIENCE", 60.0)

    class Growing(Logs):
        looks = 0

        async def once(
            self, partitions: Mapping[TopicPartition, int], within: float = math.inf
        ) -> dict[TopicPartition, ListedOffset | ConnectionLostError | BrokerError]:
            self.looks += 1
            found = await super().once(partitions)
            return {each: ListedOffset(0, 60, -1) for each in found} if 1 < self.looks < 12 else found

    state = planned(0, 90, 95)
    manager = manager_of(None, Growing(set()))
    manager.start([state])
    async with asyncio.timeout(5):
        await manager.check_replays()
    assert manager.seeks_leader(state)


class GivingUp:
    """Truncated logs are accepted."""

    async def end_early(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
        await asyncio.sleep(0.002)
        state.progress.give_up_replay(end)
        return True


async def test_two_concurrent_lookups_of_a_truncated_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each claim of planned ranges starts a lookup; the first one that ends has abandoned the plan."""
    monkeypatch.setattr(fetcher_manager, "END_PATIENCE", 0.005)
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    state = planned(0, 90, 120)
    manager = manager_of(GivingUp(), SlowLogs(set()))
    manager.start([state])
    async with asyncio.timeout(5):
        await asyncio.gather(*(manager.check_replays() for _ in range(3)))
    assert (manager.seeks_leader(state), state.progress.replay) == (True, None)


async def test_a_claim_that_was_closed_meanwhile_does_not_replace_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_manager, "END_PATIENCE", -1.0)
    whole, short, later, earlier = planned(0, 5, 9), planned(1, 90, 120), planned(0, 9, 10), planned(0, 9, 10)
    for each in (later, earlier):
        each.progress.give_up_replay(9)
    earlier.progress.close()

    class Meanwhile(GivingUp):
        async def end_early(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
            whole.progress.close()
            manager.start([later])
            manager.start([earlier])
            return await super().end_early(state, plan, begin, end, log_end)

    manager = manager_of(Meanwhile(), Logs(set()))
    manager.start([whole, short])
    async with asyncio.timeout(5):
        await manager.check_replays()
    assert [manager.seeks_leader(state) for state in (whole, short, later, earlier)] == [False, True, True, False]


class Away(GivingUp):
    """The group's coordinator rejects the copy of a new position twice."""

    asked = 0

    async def end_early(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
        self.asked += 1
        if self.asked < 3:
            raise CoordinatorError("offsets of group g: no broker answers")
        return await super().end_early(state, plan, begin, end, log_end)


async def test_an_unavailable_coordinator_does_not_end_the_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_manager, "END_PATIENCE", 0.005)
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    short, whole = planned(0, 90, 120), planned(1, 5, 9)
    manager = manager_of(Away(), Logs(set()))
    manager.start([short, whole])
    with capture_logs() as logs:
        async with asyncio.timeout(5):
            await manager.check_replays()
    assert [manager.seeks_leader(state) for state in (short, whole)] == [True, True]
    assert [each["event"] for each in logs] == ["planned range not abandoned, retrying"] * 2


class OneBroker:
    """Leads all partitions and omits some from its first replies; implements all that is called."""

    def __init__(self, *omitted: set[int]) -> None:
        self.omitted = list(omitted)
        self.versions = self
        self.epochs: dict[TopicPartition, int] = {}

    async def grouped(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[Broker, list[TopicPartition]], dict[TopicPartition, str]]:
        return {Broker(1, "localhost", 9092): list(partitions)}, {}

    async def connection(self, broker: Broker, purpose: str) -> OneBroker:
        return self

    def choose(self, api_key: int) -> int:
        return 1

    async def call(self, request: ListOffsetsRequest, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        gone = self.omitted.pop(0) if self.omitted else set()
        output = [*request.partitions.items(), (TopicPartition("others", 7), LATEST)]
        return {p: ListedOffset(0, 0 if at == EARLIEST else 100, -1) for p, at in output if p.partition not in gone}


async def test_a_broker_that_omits_a_partition_from_its_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher_manager, "PAUSE", 0.001)
    broker, states = OneBroker({1}, set(), set(), {0}), [planned(number, 5, 9) for number in range(3)]
    log_offsets = LogOffsets(cast(Leaders, broker), cast(Brokers, broker), 5.0, 0)
    manager = manager_of(None, log_offsets)
    manager.start(states)
    async with asyncio.timeout(5):
        await manager.check_replays()
    assert [manager.seeks_leader(state) for state in states] == [True, True, True]


class Refusing(OneBroker):
    """Answers all questions about leader epochs with an error."""

    ranges = frozenset({OFFSET_FOR_LEADER_EPOCH})

    def __init__(self, error: int) -> None:
        super().__init__()
        self.error = error

    async def call(self, request: Any, *, timeout: float) -> dict[TopicPartition, Any]:
        if isinstance(request, OffsetForLeaderEpochRequest):
            return dict.fromkeys(request.partitions, EpochEnd(self.error, -1, -1))
        return await super().call(request, timeout=timeout)


@pytest.mark.parametrize("error", [TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, NOT_LEADER_OR_FOLLOWER])
async def test_who_may_not_ask_about_epochs_does_not_wait_for_an_answer(error: int) -> None:
    """Before 2.3 that takes a right on the cluster, which few have: a run would never end. Another error passes."""
    broker, partition = Refusing(error), TopicPartition("orders", 0)
    log_offsets = LogOffsets(cast(Leaders, broker), cast(Brokers, broker), 5.0, 0)
    found = (await log_offsets.epoch_ends({partition: 3}))[partition]
    if error == NOT_LEADER_OR_FOLLOWER:
        assert isinstance(found, BrokerError)
    else:
        assert found == EpochEnd(0, -1, -1)
    topics = SimpleNamespace(incarnations=_incarnations, deleted=_none, has_cluster=_true)
    losses = RunLosses(cast(TopicSource, topics), log_offsets, "smallest", None)
    run: Any = SimpleNamespace(topics={"orders": SimpleNamespace(incarnation="0x1")})
    assert await losses.hold(run, {partition: (90, 3)}) is (error != NOT_LEADER_OR_FOLLOWER)


class Lower(OneBroker):
    """Of a log whose leader epochs are 0 to 2, or that has none."""

    ranges = frozenset({OFFSET_FOR_LEADER_EPOCH})

    def __init__(self, *, epochs: bool) -> None:
        super().__init__()
        self.has = range(3 if epochs else 0)

    async def call(self, request: Any, *, timeout: float) -> dict[TopicPartition, Any]:
        if isinstance(request, OffsetForLeaderEpochRequest):
            unknown = EpochEnd(0, -1, -1)
            asked = {each: at.epoch for each, at in request.partitions.items()}
            return {each: EpochEnd(0, at, 10 * at + 10) if at in self.has else unknown for each, at in asked.items()}
        return await super().call(request, timeout=timeout)


@pytest.mark.parametrize("epochs", [True, False])
async def test_a_log_whose_epochs_are_all_lower_differs(epochs: bool) -> None:
    """Its cluster was restored from a copy, too. A log of records without epochs says nothing."""
    broker, partition = Lower(epochs=epochs), TopicPartition("orders", 0)
    log_offsets = LogOffsets(cast(Leaders, broker), cast(Brokers, broker), 5.0, 0)
    assert await log_offsets.look_up_epochs({partition: 3}) == {partition: EpochEnd(0, -1, 0 if epochs else -1)}
    assert (await log_offsets.look_up_epochs({partition: 1})).get(partition) == EpochEnd(
        0, *((1, 20) if epochs else (-1, -1))
    )
    topics = SimpleNamespace(incarnations=_incarnations, deleted=_none, has_cluster=_true)
    losses = RunLosses(cast(Any, topics), log_offsets, "smallest", None)
    run: Any = SimpleNamespace(topics={"orders": SimpleNamespace(incarnation="0x1")})
    assert await losses.hold(run, {partition: (90, 3)}) is not epochs


async def _true() -> bool:
    return True


async def _incarnations(topics: Collection[str]) -> dict[str, int]:
    return dict.fromkeys(topics, 1)


async def _none() -> Collection[str]:
    return ()


async def test_lookups_return_exactly_the_requested_partitions() -> None:
    asked = {TopicPartition("orders", number): LATEST for number in range(2)}
    log_offsets = LogOffsets(cast(Leaders, (broker := OneBroker({1}, {1}))), cast(Brokers, broker), 5.0, 0)
    found = await log_offsets.once(asked)
    assert found.keys() == asked.keys()
    assert "left orders-1 out of its answer" in str(found[TopicPartition("orders", 1)])
    assert set(await log_offsets.look_up(asked)) == asked.keys()


class OneSilent(OneBroker):
    """A second broker leads partition 1 and does not take a connection."""

    silent = Broker(2, "localhost", 9093)

    async def grouped(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[Broker, list[TopicPartition]], dict[TopicPartition, str]]:
        self.last = {each: self.silent for each in partitions if each.partition == 1}
        led = {Broker(1, "localhost", 9092): [each for each in partitions if each.partition != 1]}
        return led | ({self.silent: list(self.last)} if self.last else {}), {}

    async def connection(self, broker: Broker, purpose: str) -> OneBroker:
        if broker == OneSilent.silent:
            await asyncio.sleep(60)
        return self


@in_virtual_time
async def test_a_leader_that_does_not_answer_is_named_and_the_others_are_not() -> None:
    asked = {TopicPartition("orders", number): LATEST for number in range(3)}
    log_offsets = LogOffsets(cast(Leaders, (broker := OneSilent())), cast(Brokers, broker), 5.0, 0)
    expected = r"no leader of orders-1 has answered: broker 2 \(localhost:9093\): no answer within 4.5 s"
    with pytest.raises(ConnectionLostError, match=expected):
        await log_offsets.look_up(asked)


@in_virtual_time
async def test_a_planned_range_does_not_wait_for_the_leader_of_another_that_hangs() -> None:
    """Nor for long if another broker leads it by then; a hung leader would be waited for half a minute, twice."""
    broker, states = OneSilent(), [planned(number, 5, 9) for number in range(3)]
    log_offsets = LogOffsets(cast(Leaders, broker), cast(Brokers, broker), 30.0, 0)
    manager = manager_of(None, log_offsets)
    manager.start(states)
    looking = asyncio.create_task(manager.check_replays())
    await asyncio.sleep(LATE + 1)
    assert [manager.seeks_leader(state) for state in states] == [True, False, True]
    broker.silent = Broker(3, "localhost", 9094)
    async with asyncio.timeout(3 * LATE):
        await looking
    assert manager.seeks_leader(states[1])


async def test_partitions_are_required_to_exist_before_a_broker_is_asked() -> None:
    asked = {TopicPartition("orders", number): LATEST for number in range(2)}
    log_offsets = LogOffsets(cast(Leaders, (broker := OneBroker({1}, {1}))), cast(Brokers, broker), 5.0, 0)
    checked = []

    async def require(partitions: Collection[TopicPartition]) -> None:
        checked.append(set(partitions))

    assert set(await log_offsets.look_up(asked, require)) == asked.keys()
    assert checked == [asked.keys()]
