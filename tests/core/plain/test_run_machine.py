"""Members of a group that share a run, in random order, against a model of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer import runs
from kzconsumer.brokers.protocol.log_reads import LATEST, ListedOffset
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    NotFoundError,
    OffsetLostError,
    RunUnreadableError,
    UnsupportedVersionError,
)
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster import ClusterView
from kzconsumer.registry.group_records import GroupRun, TopicEnds, decode_group_run, registered
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.runs import Runs
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.extent import seeds
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
TOPICS = {"orders": Topic((0, 1, 2, 3), 7), "payments": Topic((0, 1), 9), "refunds": Topic((), 11)}
ENDS_OF = {name: [TopicPartition(name, n) for n in topic.partitions] for name, topic in TOPICS.items()}
SUBSCRIPTIONS: tuple[dict[str, Any], ...] = (
    {"topics": {"orders": 1}},
    {"topics": {"payments": 1, "refunds": 2}},
    {"include": "orders|payments"},
)
REGISTERED = ('["static","orders"]', '["static","payments","refunds"]', '["white_list","orders|payments"]')
SUBSCRIBED = (["orders"], ["payments", "refunds"], ["orders", "payments"])


class Shared:
    """What members see of the cluster. Each of `faults` is raised by one question."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self.ends = {partition: 3 for partitions in ENDS_OF.values() for partition in partitions}
        self.stored: dict[TopicPartition, int] = {}
        self.faults: list[KzConsumerError] = []
        self.there = True

    def runs(
        self, number: int, *, offsets: Mapping[str, str] = MappingProxyType({}), replayable: bool = True, **more: Any
    ) -> Runs:
        wanted = SUBSCRIPTIONS[number] | {"stop_at": "end"} | more
        tables = {"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}, "subscription": wanted, "offsets": offsets}
        settings = Settings.from_dict(tables)
        cluster = SimpleNamespace(settings=settings, session=self.session, topics=self, logs=lambda _: self)
        return Runs(cast(ClusterView, cluster), registered(settings.subscription), replayable=replayable)

    def _may_fail(self) -> None:
        if self.faults:
            raise self.faults.pop()

    async def all_topics(self) -> Collection[str]:
        return TOPICS.keys() if self.there else ()

    async def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        self._may_fail()
        return {name: TOPICS[name] for name in names if name in await self.all_topics()}

    async def incarnations(self, names: Collection[str]) -> dict[str, int]:
        return {name: TOPICS[name].incarnation for name in names}

    async def deleted(self) -> Collection[str]:
        return ()

    async def has_cluster(self) -> bool:
        return self.there

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int]:
        assert ms == LATEST
        return {each: self.ends[each] for each in partitions}

    async def once(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        return {each: ListedOffset(0, self.ends[each], -1) for each in wanted}

    async def commit(self, partition: TopicPartition, offset: int) -> None:
        await self.session.ensure(PATHS.offset(partition))
        await self.session.set(PATHS.offset(partition), b"%d" % offset, -1)
        self.stored[partition] = offset

    async def node(self) -> GroupRun | None:
        found = await self.session.find(PATHS.run)
        return None if found is None else decode_group_run(found.data)

    def ends_now(self, names: Collection[str]) -> dict[str, TopicEnds]:
        return {
            name: TopicEnds(
                f"{TOPICS[name].incarnation:#x}", {each.partition: self.ends[each] for each in ENDS_OF[name]}
            )
            for name in names
        }


def joined(run: GroupRun | None, number: int, found: GroupRun, world: Shared) -> GroupRun:
    """By the model: the run that a member finds, or makes, with its subscription."""
    key = REGISTERED[number]
    if run is None or run.finished is not None:
        assert found.id != (run.id if run is not None else "")
        run = GroupRun(id=found.id, stop_at=LATEST, began=found.began, subscriptions=(), topics={})
    if key in run.subscriptions:
        return run
    topics = {**world.ends_now(SUBSCRIBED[number]), **run.topics}
    return msgspec.structs.replace(run, subscriptions=(*run.subscriptions, key), topics=topics)


@pytest.mark.parametrize("seed", seeds(6, 200))
def test_every_member_has_the_run_of_the_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "AT_A_LOOK", 2)
    chance, clients = random.Random(seed), Clients(seed)

    async def script(session: ZooKeeperSession) -> None:
        world, model = Shared(session), cast(GroupRun | None, None)
        members = [world.runs(number) for number in range(3)]
        known: dict[int, GroupRun] = {}
        for _ in range(40):
            number = chance.randrange(3)
            match chance.choice(
                ("grow", "commit", "commit", "join", "join together", "look", "look", "look", "delete")
            ):
                case "grow":
                    world.ends[chance.choice(list(world.ends))] += chance.randint(1, 5)
                case "commit":
                    for at in chance.sample(list(world.ends), chance.choice((1, 6))):
                        end = model.ends.get(at, 0) if model is not None else 0
                        most = world.ends[at] if chance.random() < 0.2 else end
                        await world.commit(at, max(world.stored.get(at, 0), most - (chance.random() < 0.02)))
                case "join":
                    world.faults = [BrokersUnreachableError("none is up")] * chance.choice((0, 0, 2))
                    found = known[number] = await members[number].join()
                    world.faults = []
                    assert found == joined(model, number, found, world)
                    model = found
                case "join together":
                    both = await asyncio.gather(members[0].join(), members[1].join())
                    known[0], known[1] = both
                    first = both.index(min(both, key=lambda each: len(each.subscriptions)))
                    for either in (first, 1 - first):
                        model = joined(model, either, both[either], world)
                        assert both[either] == model
                case "look" if number in known:
                    mine, found = known[number], await members[number].look(known[number])
                    was_deleted, model = model is None, model or mine
                    run = model if model.id == mine.id else mine
                    is_due = not was_deleted and run.finished is None  # one that was deleted is made again
                    if is_due and all(world.stored.get(at, 0) >= end for at, end in run.ends.items()):
                        assert found.finished is not None
                        run = msgspec.structs.replace(run, finished=found.finished)
                    assert found == run
                    known[number] = run
                    model = run if model.id == run.id else model
                case "delete" if model is not None and chance.random() < 0.3:
                    await session.delete(PATHS.run, -1)
                    model = None
            assert await world.node() == model

    clients.play(script, limit=600)


def test_a_run_of_a_name_is_made_once() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        world = Shared(session)
        run = await world.runs(1, run="monday").join()
        assert (run.id, run.topics) == ("monday", world.ends_now(SUBSCRIBED[1]))
        for partition, end in run.ends.items():
            await world.commit(partition, end)
        member = world.runs(1, run="monday")
        over = await member.look(run)
        assert over.finished is not None
        with capture_logs() as logs:
            assert await member.join() == over
        assert [(line["event"], line["run"], line["topics"], line["partitions"]) for line in logs] == [
            ("run already finished", "monday", 2, 2)
        ]
        assert (await world.runs(1, run="tuesday").join()).id == "tuesday"

    clients.play(script)


def test_a_run_with_the_ends_of_the_last_one_is_not_finished_by_what_was_committed_then() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        world = Shared(session)
        member = world.runs(1)
        run = await member.join()
        for partition, end in run.ends.items():
            await world.commit(partition, end)
        assert (await member.look(run)).finished is not None
        again = await member.join()
        assert again.topics == run.topics
        await world.commit(partition, 1)  # its owner found that the log was cut off; it has grown again
        assert (await member.look(again)).finished is None

    clients.play(script)


@pytest.mark.parametrize(
    ("offsets", "replayable", "setting"),
    [
        ({"reset": "fail", "truncated": "continue"}, True, 'reset = "smallest"'),
        ({"reset": "smallest", "truncated": "fail"}, True, 'truncated = "continue"'),
        ({"reset": "smallest", "truncated": "fail"}, False, None),
        ({"reset": "smallest", "truncated": "continue"}, True, None),
    ],
)
def test_a_log_that_is_too_short_ends_the_run_as_the_settings_say(
    offsets: dict[str, str], replayable: bool, setting: str | None
) -> None:
    """What that means for each of them, `test_run_losses.py` has."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        world = Shared(session)
        member = world.runs(1, offsets=offsets, replayable=replayable)
        run = began = await member.join()
        short, other = began.ends
        world.ends[short] = 1
        await world.commit(other, 3)
        fails = pytest.raises(OffsetLostError, match=f"{setting} to end the run without these records$")
        with nullcontext() if setting is None else fails:
            for _ in range(60):
                await asyncio.sleep(1)
                run = await member.look(run)
        assert run == (began if setting is not None else began.ending_at({short: 1})) == await world.node()
        if setting is None:
            await world.commit(short, 1)
            assert (await member.look(run)).finished is not None

    clients.play(script, limit=600)


def test_a_run_of_a_pattern_waits_for_a_broker() -> None:
    """Without one ZooKeeper may have lost its nodes: a run of no topics would be over at once."""
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        world = Shared(session)
        world.there = False
        joining = asyncio.create_task(world.runs(2).join())
        await asyncio.sleep(20)
        assert await world.node() is None
        world.there = True
        assert (await joining).topics == world.ends_now(SUBSCRIBED[2])

    clients.play(script)


def test_what_no_run_can_begin_with_is_an_error() -> None:
    clients = Clients()

    async def script(session: ZooKeeperSession) -> None:
        world = Shared(session)
        misspelt = world.runs(0, topics={"ordres": 1, "payments": 1})
        with pytest.raises(NotFoundError, match=r"^/brokers/topics/ordres: no such topic; did you mean orders\?$"):
            await misspelt.join()
        assert await world.node() is None
        world.faults = [UnsupportedVersionError("before 0.10.1"), ConnectionLostError("cut")]
        with capture_logs() as logs, pytest.raises(UnsupportedVersionError, match=r"before 0\.10\.1"):
            await world.runs(0).join()
        assert [(line["event"], line["reason"]) for line in logs] == [("run ends unavailable", "cut")]
        await session.ensure(PATHS.run)
        with pytest.raises(RunUnreadableError, match=f"^{PATHS.run}: not a group's run: "):
            await world.runs(0).join()

    clients.play(script)
