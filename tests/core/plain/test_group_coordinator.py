"""A group coordinator that has become unreachable: the next commit looks it up again."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import repeat, tee
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.brokers.leaders import KnownBrokers
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    CoordinatedMember,
    Coordinator,
    CoordinatorOffset,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupState,
    OffsetCommitRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.versions import CONSUMER_GROUP_DESCRIBE
from kzconsumer.errors import BrokerError, ConnectionLostError, CoordinatorError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets import coordinator as module
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.start_rules import WithBrokers
from tests.support.simulated.virtual_time import BEGINNING, World

UP, AWAY = Broker(1, "up", 9092), Broker(2, "away", 9092)
OFFSETS = {TopicPartition("orders", 0): WithBrokers(7, 0)}


class Cluster:
    """Two brokers, of which only the first is reachable; `leads` is the coordinator. Implements all that is called."""

    def __init__(self) -> None:
        self.leads = AWAY
        self.broker = UP
        self.versions = self
        self.ranges: dict[int, tuple[int, int]] = {}
        self.has: dict[TopicPartition, CoordinatorOffset] = {}
        self.version = 1
        self.hidden: set[TopicPartition] = set()
        self.refuses: int = error_codes.NONE

    def choose(self, api_key: int) -> int:
        return self.version

    async def brokers(self) -> list[Broker]:
        return [UP]

    async def connection(self, broker: Broker, purpose: str) -> Cluster:
        if broker == AWAY:
            await anyio.sleep_forever()
        return self

    async def call(self, request: object, *, timeout: float) -> Coordinator | StoredOffsets | dict[TopicPartition, int]:
        if isinstance(request, FindCoordinatorRequest):
            return Coordinator(error_codes.NONE, self.leads, None)
        if isinstance(request, OffsetFetchRequest):
            if self.refuses:
                return StoredOffsets(self.refuses, {})
            if request.partitions is not None:
                return StoredOffsets(error_codes.NONE, {each: self._of(each) for each in request.partitions})
            if self.version < 2:  # null was no array in that version
                raise ConnectionLostError("closed by the broker, which cannot read the request")
            seen = {each: at for each, at in self.has.items() if each not in self.hidden}
            return StoredOffsets(error_codes.NONE, seen)
        return dict.fromkeys(OFFSETS, error_codes.NONE)

    def _of(self, partition: TopicPartition) -> CoordinatorOffset:
        if partition in self.hidden:
            return CoordinatorOffset(error_codes.TOPIC_AUTHORIZATION_FAILED, -1)
        return self.has.get(partition, CoordinatorOffset(error_codes.NONE, -1))


async def test_an_unreachable_coordinator_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 0.1)
    with pytest.raises(CoordinatorError):
        await group.store(OFFSETS)
    cluster.leads = UP
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 10.0)
    assert await group.store(OFFSETS) == {}


async def test_an_offset_missing_from_the_response_is_not_taken_for_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition would begin by the reset policy, although an offset is stored."""
    cluster = Cluster()
    cluster.leads = UP
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    (asked,), other = OFFSETS, TopicPartition("orders", 1)
    cluster.has = {asked: CoordinatorOffset(error_codes.NONE, 7), other: CoordinatorOffset(error_codes.NONE, -1)}
    assert {partition: each.offset for partition, each in (await group.stored([asked, other])).items()} == {asked: 7}

    async def left_out(request: object, *, timeout: float) -> Any:
        if isinstance(request, OffsetFetchRequest):
            return StoredOffsets(error_codes.NONE, {asked: cluster.has[asked]})
        return await Cluster.call(cluster, request, timeout=timeout)

    monkeypatch.setattr(cluster, "call", left_out)
    monkeypatch.setattr(module, "READ_PATIENCE", 0.1)
    with pytest.raises(CoordinatorError, match="left orders-1 out of its answer"):
        await group.stored([asked, other])


@pytest.mark.parametrize("version", [1, 2, 8])
@pytest.mark.parametrize("others", [False, True])
async def test_all_offsets_are_read_where_the_brokers_can_return_them(
    version: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_PATIENCE", 0.1)
    cluster = Cluster()
    cluster.leads, cluster.version = UP, version
    (asked,), other = OFFSETS, TopicPartition("bills", 1)
    cluster.has = dict.fromkeys((asked, other), CoordinatorOffset(error_codes.NONE, 7))
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    found: Collection[TopicPartition] = await (group.seen if others else group.stored)([asked])
    assert set(found) == ({asked, other} if others and version >= 2 else {asked})


@pytest.mark.parametrize("version", [1, 2])
async def test_an_offset_that_may_not_be_seen_is_not_taken_for_none(version: int) -> None:
    """Among all offsets of a group a broker leaves it out. Every tool took that for "never committed"."""
    cluster = Cluster()
    cluster.leads, cluster.version = UP, version
    (asked,), hidden, none = OFFSETS, TopicPartition("bills", 0), TopicPartition("bills", 1)
    cluster.has = dict.fromkeys((asked, hidden), CoordinatorOffset(error_codes.NONE, 7))
    cluster.hidden = {hidden}
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    found = await group.seen([asked, hidden, none])
    assert {each: str(at) for each, at in found.items() if isinstance(at, BrokerError)} == {
        hidden: "offsets of group g: TOPIC_AUTHORIZATION_FAILED (29)"
    }
    assert found.keys() == {asked, hidden}
    with pytest.raises(CoordinatorError, match="TOPIC_AUTHORIZATION_FAILED"):
        await group.stored([asked, hidden])
    cluster.refuses = 30
    assert set(map(str, (await group.seen([asked, none])).values())) == {
        "offsets of group g: GROUP_AUTHORIZATION_FAILED (30)"
    }
    if version > 1:
        with pytest.raises(CoordinatorError, match="GROUP_AUTHORIZATION_FAILED"):
            await group.seen([])


def test_a_loading_coordinator_is_asked_with_growing_pauses() -> None:
    """The first pause is 50 ms; each is twice the one before, up to a second."""
    world, asked = World(0), list[float]()

    class Loading(Cluster):
        async def call(self, request: object, *, timeout: float) -> Any:
            if isinstance(request, OffsetFetchRequest):
                asked.append(world.now - BEGINNING)
                return StoredOffsets(error_codes.COORDINATOR_LOAD_IN_PROGRESS, {})
            return await super().call(request, timeout=timeout)

    cluster = Loading()
    cluster.leads = UP
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    process = world.process("member")
    reading = process.create_task(group.stored(OFFSETS))
    assert world.pass_time(60.0, reading.done)
    with pytest.raises(CoordinatorError, match="tried for 10 s"):
        reading.result()
    world.end(process)
    assert asked == pytest.approx([0, 0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55, 4.55, 5.55, 6.55, 7.55, 8.55, 9.55])


RETRIED = (
    error_codes.NOT_COORDINATOR,
    error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.COORDINATOR_LOAD_IN_PROGRESS,
    error_codes.REQUEST_TIMED_OUT,
)
REFUSED = (error_codes.TOPIC_AUTHORIZATION_FAILED, error_codes.GROUP_ID_NOT_FOUND, error_codes.ILLEGAL_GENERATION)
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]


@given(
    st.lists(
        st.fixed_dictionaries(dict.fromkeys(PARTITIONS, st.sampled_from((error_codes.NONE, *RETRIED, *REFUSED)))),
        max_size=4,
    )
)
def test_each_offset_is_sent_until_it_is_stored_or_refused(answers: list[dict[TopicPartition, int]]) -> None:
    """`store` returns only then: what a coordinator has not taken yet would count as committed."""
    sent: list[set[TopicPartition]] = []

    class Scripted(Cluster):
        async def call(self, request: object, *, timeout: float) -> Any:
            if not isinstance(request, OffsetCommitRequest):
                return await super().call(request, timeout=timeout)
            sent.append(set(request.offsets))
            answer = answers[len(sent) - 1] if len(sent) <= len(answers) else {}
            return {partition: answer.get(partition, error_codes.NONE) for partition in request.offsets}

    left, refused, wanted = set(PARTITIONS), set[TopicPartition](), list[set[TopicPartition]]()
    for answer in [*answers, dict.fromkeys(PARTITIONS, error_codes.NONE)]:
        if left:
            wanted.append(set(left))
        refused |= {each for each in left if answer[each] in REFUSED}
        left = {each for each in left if answer[each] in RETRIED}

    cluster, world = Scripted(), World(0)
    cluster.leads = UP
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    process = world.process("member")
    storing = process.create_task(group.store({each: WithBrokers(7, 0) for each in PARTITIONS}))
    assert world.pass_time(60.0, storing.done)
    world.end(process)
    assert (set(storing.result()), sent) == (refused, wanted)


class Line(Cluster):
    """A connection to the coordinator, which executes what was sent on it, also when nobody waits for the answer."""

    def __init__(self, brokers: Late) -> None:
        super().__init__()
        self.leads = UP
        self.open = True
        self._brokers = brokers

    async def call(self, request: object, *, timeout: float) -> Any:
        fate = self._brokers.fate(request)
        if isinstance(request, FindCoordinatorRequest):
            known = fate != "no coordinator"
            return Coordinator(error_codes.NONE if known else error_codes.COORDINATOR_NOT_AVAILABLE, self.leads, None)
        assert isinstance(request, OffsetCommitRequest)
        ((partition, offset),) = request.offsets.items()
        if fate == "late":
            self._brokers.world.after(20.0, lambda: self._execute(offset))
            await anyio.sleep_forever()
        if fate == "request lost":
            raise ConnectionLostError("closed by the broker")
        if fate == "moved":
            return {partition: error_codes.NOT_COORDINATOR}
        self._execute(offset)
        if fate == "answer lost":
            raise ConnectionLostError("closed by the broker")
        return {partition: error_codes.NONE}

    def _execute(self, offset: int) -> None:
        if self.open:
            self._brokers.stored.append(offset)


class Late:
    """Brokers that store what the fates of the requests say; those after the last are executed."""

    def __init__(self, world: World, fates: Iterable[str]) -> None:
        self.world = world
        self.stored: list[int] = []
        self.group = GroupCoordinator("g", cast(KnownBrokers, self), cast(Brokers, self), 60.0)
        self._fates = iter(fates)
        self._line: Line | None = None

    def fate(self, request: object) -> str:
        """Those of commits are used up; a lookup has the first one's."""
        if isinstance(request, FindCoordinatorRequest):
            self._fates, ahead = tee(self._fates)
            return next(ahead, "")
        return next(self._fates, "")

    async def brokers(self) -> list[Broker]:
        return [UP]

    async def connection(self, broker: Broker, purpose: str) -> Line:
        if self._line is None:
            self._line = Line(self)
        return self._line

    def drop(self, connection: Line) -> None:
        connection.open = False
        self._line = None

    def commit(self, offsets: Iterable[int]) -> list[CoordinatorError]:
        """One after the other. What fails; nothing of it is repeated."""
        failed: list[CoordinatorError] = []

        async def store() -> None:
            for offset in offsets:
                try:
                    assert await self.group.store({PARTITIONS[0]: WithBrokers(offset, 0)}) == {}
                    assert self.stored[-1] == offset
                except CoordinatorError as error:
                    failed.append(error)

        process = self.world.process("member")
        storing = process.create_task(store())
        assert self.world.pass_time(60.0, storing.done)
        storing.result()
        self.world.pass_time(60.0)
        self.world.end(process)
        return failed


@given(st.lists(st.sampled_from(("", "late", "request lost", "answer lost", "moved")), max_size=5))
def test_no_commit_is_executed_after_a_later_one(fates: list[str]) -> None:
    """A coordinator may be slow: what it has not answered in time must not move an offset back."""
    brokers = Late(World(0), fates)
    assert len(brokers.commit(range(7))) == fates.count("late")
    assert brokers.stored == sorted(brokers.stored)
    assert brokers.stored[-1] == 6


@pytest.mark.parametrize(
    ("fate", "reason"),
    [
        ("late", f"{UP} does not answer"),
        ("request lost", "closed by the broker"),
        ("moved", f"{UP}: NOT_COORDINATOR (16)"),
        ("no coordinator", f"coordinator of group g, asked of {UP}: COORDINATOR_NOT_AVAILABLE (15)"),
    ],
)
def test_a_commit_that_fails_says_how_its_last_attempt_ended(fate: str, reason: str) -> None:
    brokers = Late(World(0), repeat(fate))
    assert list(map(str, brokers.commit([7]))) == [f"offsets of group g: {reason} (tried for 2 s)"]
    assert brokers.stored == []


MEMBER = CoordinatedMember("m", "client", "/127.0.0.1", (), ())
DEAD, NOT_FOUND = GroupState(error_codes.NONE, "Dead", ()), GroupState(error_codes.GROUP_ID_NOT_FOUND, "", ())


@pytest.mark.parametrize(
    ("classic", "newer", "members"),
    [
        (GroupState(error_codes.NONE, "Stable", (MEMBER,)), None, ("m",)),
        (DEAD, None, ()),  # brokers before 4.0
        (DEAD, GroupState(error_codes.NONE, "Stable", (MEMBER,)), ("m",)),
        (DEAD, GroupState(error_codes.NONE, "Empty", ()), ()),
        (DEAD, NOT_FOUND, ()),
        (DEAD, GroupState(error_codes.UNSUPPORTED_VERSION, "", ()), ()),  # the newer protocol is disabled
    ],
)
async def test_members_of_both_protocols(
    classic: GroupState, newer: GroupState | None, members: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the older request a group of the newer one does not exist."""
    cluster = Cluster()
    cluster.leads = UP
    cluster.ranges = {CONSUMER_GROUP_DESCRIBE: (0, 1)} if newer is not None else {}
    call = cluster.call

    async def described(request: object, *, timeout: float) -> object:
        match request:
            case DescribeGroupsRequest():
                return {"g": classic}
            case ConsumerGroupDescribeRequest():
                return {"g": newer}
            case _:
                return await call(request, timeout=timeout)

    monkeypatch.setattr(cluster, "call", described)
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    assert await group.members() == members


class Refusing(Cluster):
    """A coordinator that answers the first requests with errors."""

    def __init__(self, errors: Iterable[int]) -> None:
        super().__init__()
        self.leads, self.version = UP, 2
        self.errors = list(errors)
        self.found = 0
        self.groups: dict[str, tuple[CoordinatedMember, ...]] = {"g": (MEMBER,)}

    async def call(self, request: object, *, timeout: float) -> Any:
        if isinstance(request, FindCoordinatorRequest):
            self.found += 1
            return await super().call(request, timeout=timeout)
        error = self.errors.pop(0) if self.errors else error_codes.NONE
        if isinstance(request, OffsetFetchRequest):
            has = {} if error else dict.fromkeys(OFFSETS, CoordinatorOffset(error_codes.NONE, 7, "{}", 3))
            return StoredOffsets(error, has)
        if isinstance(request, DescribeGroupsRequest):
            return {group: GroupState(error, "Stable", members) for group, members in self.groups.items()}
        return dict.fromkeys(OFFSETS, error)


MOVED, LOADING, FORBIDDEN = error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_LOAD_IN_PROGRESS, 30
CALLS = ["store", "stored", "seen", "members"]


async def answer(cluster: Refusing, call: str) -> object:
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    match call:
        case "store":
            return await group.store(OFFSETS)
        case "members":
            return await group.members()
        case _:
            return await (group.stored if call == "stored" else group.seen)([*OFFSETS])


@pytest.mark.parametrize("errors", [(), (LOADING,), (MOVED,), (LOADING, MOVED, LOADING)])
@pytest.mark.parametrize("call", CALLS)
async def test_a_coordinator_that_moves_or_loads_is_asked_again(
    call: str, errors: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one that has moved is looked up again."""
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    cluster = Refusing(errors)
    expected: dict[str, object] = {"store": {}, "members": ("m",)}
    assert await answer(cluster, call) == expected.get(call, {each: WithBrokers.read(7, "{}", 3) for each in OFFSETS})
    assert cluster.found == 1 + errors.count(MOVED)


@pytest.mark.parametrize("call", CALLS)
async def test_what_the_coordinator_forbids_is_its_answer(call: str) -> None:
    refused = "GROUP_AUTHORIZATION_FAILED"
    if call in ("stored", "members"):
        with pytest.raises(CoordinatorError, match=refused):
            await answer(Refusing([FORBIDDEN]), call)
        return
    found = await answer(Refusing([FORBIDDEN]), call)
    assert isinstance(found, dict)
    assert found.keys() == OFFSETS.keys()
    assert all(refused in str(each) for each in found.values())


@pytest.mark.parametrize("call", ["store", "stored"])
async def test_brokers_that_would_use_zookeeper_store_no_offsets(call: str) -> None:
    cluster = Refusing(())
    cluster.version = 0
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    with pytest.raises(CoordinatorError, match=r"offsets of group g: .*before 0\.8\.2 do not store offsets"):
        await (group.store(OFFSETS) if call == "store" else group.stored(list(OFFSETS)))


async def test_a_group_that_is_missing_from_the_answer_is_not_one_without_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_PATIENCE", 0.1)
    cluster = Refusing(())
    cluster.groups = {"other": ()}
    group = GroupCoordinator("g", cast(KnownBrokers, cluster), cast(Brokers, cluster), 60.0)
    with pytest.raises(CoordinatorError, match="left group g out of its answer"):
        await group.members()
