"""When a run ends early, or fails, because logs do not have what it reads: against a model, with faults."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from kzconsumer import runs
from kzconsumer.brokers.leaders import END_PATIENCE, LogOffsets
from kzconsumer.brokers.protocol.log_reads import EpochEnd, ListedOffset
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    OffsetLostError,
    SessionExpiredError,
)
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster_topics import TopicSource
from kzconsumer.registry.group_records import DELETED, GroupRun, TopicEnds
from kzconsumer.runs import LOG_LOOK, RunLosses

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
RUN = GroupRun(
    id="r",
    stop_at=-1,
    began=0,
    subscriptions=('["static","orders"]',),
    topics={"orders": TopicEnds("0x7", {0: 100, 1: 200})},
)
STORED = {A: 40, B: 50}


async def committed(run: GroupRun, topics: Collection[str]) -> Mapping[TopicPartition, int]:
    assert (run, topics) == (RUN, {"orders"})
    return STORED


class World:
    """Topics and logs as they are now; `fault` is raised by the next question about the one or the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        self.incarnation: int | None = 7
        self.deleted_topics: set[str] = set()
        self.there = True
        self.ends: dict[TopicPartition, int | KzConsumerError] = {A: 100, B: 200}
        self.epoch_ends_of: dict[TopicPartition, EpochEnd | KzConsumerError] = {}
        self.fault: tuple[str, KzConsumerError] | None = None
        self.asked = 0
        monkeypatch.setattr(runs, "now", lambda: self.time)

    def losses(self, reset: str, truncated: str | None) -> RunLosses:
        return RunLosses(cast(TopicSource, self), cast(LogOffsets, self), reset, truncated)

    def _may_fail(self, what: str) -> None:
        self.asked += 1
        if self.fault is not None and self.fault[0] == what:
            raise self.fault[1]

    async def incarnations(self, topics: Collection[str]) -> dict[str, int]:
        self._may_fail("topics")
        return {} if self.incarnation is None else dict.fromkeys(topics, self.incarnation)

    async def deleted(self) -> Collection[str]:
        return self.deleted_topics

    async def has_cluster(self) -> bool:
        return self.there

    async def once(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset | KzConsumerError]:
        self._may_fail("logs")
        found = {each: self.ends[each] for each in wanted}
        return {each: ListedOffset(0, at, -1) if isinstance(at, int) else at for each, at in found.items()}

    async def epoch_ends(self, known: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        return {each: self.epoch_ends_of[each] for each in known if each in self.epoch_ends_of}


@pytest.mark.parametrize("seed", range(15))
async def test_a_log_ends_the_run_there_once_it_has_been_too_short_for_a_while(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look is seconds after the one before, and nothing is asked between; what is not answered changes nothing."""
    chance, world = random.Random(seed), World(monkeypatch)
    losses = world.losses("smallest", None)
    since: dict[TopicPartition, float] = {}
    looked = -1e9
    for _ in range(60):
        world.time += chance.choice((0.5, 1.0, LOG_LOOK, 3.0))
        if chance.random() < 0.2:
            world.ends = {A: chance.choice((60, 99, 100, 101)), B: chance.choice((199, 200, ConnectionLostError("x")))}
        what = chance.choice(("topics", "logs"))
        world.fault = None
        if chance.random() < 0.2:
            world.fault = what, BrokersUnreachableError("x") if what == "topics" else ConnectionLostError("x")
        before = world.asked
        found = await losses.reachable(RUN, STORED, committed)
        if world.time - looked < LOG_LOOK:
            assert (found, world.asked) == (RUN, before)
            continue
        looked = world.time
        if world.fault is not None:
            assert found == RUN
            continue
        ends = {each: at for each, at in world.ends.items() if isinstance(at, int) and at < RUN.ends[each]}
        since = {each: since.get(each, world.time) for each in ends}
        over = {each: at for each, at in ends.items() if world.time - since[each] >= END_PATIENCE}
        assert found == RUN.ending_at(over)


async def test_a_topic_that_is_gone_ends_where_it_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    for gone in ("missing", "another", "being deleted"):
        for reset in ("smallest", "fail"):
            world = World(monkeypatch)
            world.incarnation = {"missing": None, "another": 8, "being deleted": 7}[gone]
            world.deleted_topics = {"orders"} if gone == "being deleted" else set()
            losses = world.losses(reset, None)
            if reset == "smallest":
                found = await losses.reachable(RUN, STORED, committed)
                assert found.topics == {"orders": TopicEnds(DELETED, {0: 40, 1: 50})}
                continue
            with pytest.raises(OffsetLostError) as raised:
                await losses.reachable(RUN, STORED, committed)
            assert str(raised.value) == (
                "orders-0 is committed up to 40, and its topic was deleted; run r reads it up to 100. "
                'Set [offsets] reset = "smallest" to end the run without these records'
            )


@pytest.mark.parametrize("reset", ["smallest", "fail"])
async def test_a_zookeeper_that_has_lost_its_nodes_ends_no_run(reset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names no topic, which is no deletion."""
    world = World(monkeypatch)
    world.incarnation, world.there = None, False
    losses = world.losses(reset, None)
    assert await losses.reachable(RUN, STORED, committed) == RUN
    assert not await losses.hold(RUN, {each: (at, -1) for each, at in STORED.items()})


SETTINGS = [
    ("smallest", None, None),
    ("fail", None, 'reset = "smallest"'),
    ("smallest", "fail", 'truncated = "continue"'),
    ("fail", "continue", 'reset = "smallest"'),
]


@pytest.mark.parametrize(("reset", "truncated", "setting"), SETTINGS)
async def test_a_truncated_log_fails_the_run_if_the_settings_say_so(
    reset: str, truncated: str | None, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    world.ends = {A: 60, B: 150}
    losses = world.losses(reset, truncated)
    assert await losses.reachable(RUN, STORED, committed) == RUN
    world.time += END_PATIENCE
    if setting is None:
        assert (await losses.reachable(RUN, STORED, committed)).ends == {A: 60, B: 150}
        return
    with pytest.raises(OffsetLostError) as raised:
        await losses.reachable(RUN, STORED, committed)
    assert str(raised.value) == (
        "orders-0 has a log that ends at 60 now: it was truncated; run r reads it up to 100. "
        f"Set [offsets] {setting} to end the run without these records"
    )


@pytest.mark.parametrize("what", ["topics", "logs"])
async def test_the_end_of_the_session_is_no_answer_that_is_waited_for(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(monkeypatch)
    losses = world.losses("smallest", None)
    world.fault = what, SessionExpiredError("expired")
    with pytest.raises(SessionExpiredError):
        await losses.reachable(RUN, STORED, committed)
    with pytest.raises(SessionExpiredError):
        await losses.hold(RUN, {A: (40, -1)})


DIFFERENT: dict[str, tuple[int, EpochEnd | None, tuple[int, int] | None]] = {
    "as it was": (90, EpochEnd(0, 3, 95), None),
    "no epochs": (90, None, None),
    "unknown epoch": (90, EpochEnd(0, -1, -1), None),
    "exactly there": (90, EpochEnd(0, 3, 90), None),
    "shorter": (80, None, (80, 80)),
    "grown again": (120, EpochEnd(0, 2, 70), (70, 120)),
}
"""The log's end, where the epoch of the record before offset 90 ends, and where the log differs and ends."""


@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.parametrize(("reset", "truncated", "setting"), SETTINGS)
async def test_what_is_committed_beyond_the_ends_is_compared_with_the_log(
    kind: str, reset: str, truncated: str | None, setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that differs gets a while, in which its owner may begin again there; a log that is as it was none."""
    end, epoch_end, differs = DIFFERENT[kind]
    world = World(monkeypatch)
    world.ends = {A: end}
    world.epoch_ends_of = {} if epoch_end is None else {A: epoch_end}
    losses = world.losses(reset, truncated)
    reached = {A: (90, 3)}
    if differs is None:
        assert await losses.hold(RUN, reached)
        assert await losses.hold(RUN, reached), "it is compared again as soon as it is asked for"
        return
    assert not await losses.hold(RUN, reached)
    before = world.asked
    world.time += LOG_LOOK - 0.1
    assert not await losses.hold(RUN, reached)
    assert world.asked == before
    world.time += 0.1
    assert not await losses.hold(RUN, reached)
    assert world.asked > before
    world.time += END_PATIENCE
    first, log_end = differs
    if setting is not None:
        with pytest.raises(OffsetLostError) as raised:
            await losses.hold(RUN, reached)
        assert str(raised.value) == (
            f"orders-0 is committed up to 90 (leader epoch 3), and the log differs from {first} on: it was truncated,"
            f" and ends at {log_end}; run r reads it up to 100. "
            f"Set [offsets] {setting} to end the run without these records"
        )
        return
    with capture_logs() as logs:
        assert await losses.hold(RUN, reached), "what is lost does not hold up the run for ever"
    (line,) = logs
    assert (line["first"], line["until"], line["log_end"], line["continues_at"]) == (first, 90, log_end, 90)


@pytest.mark.parametrize("missing", ["topics", "logs", "one log", "one epoch"])
async def test_a_run_does_not_end_on_what_nobody_has_answered(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    losses = world.losses("smallest", None)
    lost = ConnectionLostError("x")
    if missing == "one log":
        world.ends[B], world.epoch_ends_of = lost, {B: EpochEnd(0, 2, 70)}
    elif missing == "one epoch":
        world.epoch_ends_of = {A: EpochEnd(0, 3, 95), B: lost}
    else:
        world.fault = missing, BrokersUnreachableError("x") if missing == "topics" else lost
    reached = {A: (90, 3), B: (90, 3)}
    assert not await losses.hold(RUN, reached)
    world.fault, world.ends[B], world.epoch_ends_of = None, 200, {}
    assert not await losses.hold(RUN, reached), "not before the next look"
    world.time += LOG_LOOK
    assert await losses.hold(RUN, reached)
    world.incarnation = 8
    assert await losses.hold(RUN, reached), "of another topic nothing is compared"
