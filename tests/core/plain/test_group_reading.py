"""Ranges that are read from the brokers of a simulated group, and what is asked about logs: as the logs have it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar, cast

import pytest
from msgspec import structs

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.cluster_state import MetadataResponse
from kzconsumer.brokers.protocol.error_codes import CORRUPT_MESSAGE, UNKNOWN_SERVER_ERROR
from kzconsumer.brokers.protocol.primitives import Request
from kzconsumer.errors import (
    BrokerError,
    ConfigError,
    ConnectionLostError,
    KzConsumerError,
    NotFoundError,
    OffsetLostError,
)
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.range_reader import ClusterReader, RangeReader, range_reader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.registry.cluster import ClusterView, broker_pool, open_session
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.settings import Settings
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.broker_faults import ailing
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.kafka_frames import Part
from tests.support.simulated.partition_logs import TIMESTAMP
from tests.support.simulated.scene import Scene, settings_of

T = TypeVar("T")
P = [TopicPartition("t", number) for number in range(4)]


def reading(
    group: SimulatedGroup, ask: Callable[[ClusterReader], Awaitable[T]], within: float = 120.0, **fetch: object
) -> T:
    """What `ask` returns, or raises, in a process of its own."""
    settings = settings_of(group.scene)
    settings = structs.replace(settings, fetch=structs.replace(settings.fetch, **fetch))

    async def run() -> T:
        async with range_reader(settings) as reader:
            return await ask(reader)

    return in_process(group, run(), within)


def in_process(group: SimulatedGroup, run: Coroutine[Any, Any, T], within: float = 30.0) -> T:
    process = group.world.process("reader")
    task = process.create_task(run)
    group.ends_its_connections(process, task, group.promises.violated)
    assert group.world.pass_time(within, task.done), "it still reads"
    group.check()
    return task.result()


def all_of(
    *ranges: OffsetRange, **options: bool
) -> Callable[[ClusterReader], Awaitable[dict[TopicPartition, list[int]]]]:
    """The offsets that are read of each partition, in their order."""

    async def read(reader: ClusterReader) -> dict[TopicPartition, list[int]]:
        found: dict[TopicPartition, list[int]] = {}
        async for partition, records in reader.read(ranges, **options):
            assert set(records.column("topic").to_pylist()) == {partition.topic}
            assert set(records.column("partition").to_pylist()) == {partition.partition}
            found.setdefault(partition, []).extend(cast("list[int]", records.column("offset").to_pylist()))
        return found

    return read


def grown(group: SimulatedGroup, bursts: Iterable[int] = (300, 150, 50)) -> None:
    group.logs.grow("t", 4)
    for records in bursts:
        group.logs.burst(records)
    group.logs.stop()
    group.world.pass_time(1.5)


@pytest.mark.parametrize("seed", range(3))
def test_every_offset_of_the_ranges_is_read_once_and_in_order(seed: int) -> None:
    """Also in small answers, while leaders move and connections break, and if answers are not whole."""
    rng = random.Random(seed)
    with simulated_group(seed, Scene(brokers=2)) as group:
        grown(group)
        ends = [group.logs.end(each) for each in P]
        bounds = [sorted(rng.sample(range(end + 1), 2)) for end in ends]
        ranges = [OffsetRange(*each, *bound) for each, bound in zip(P, bounds, strict=True)]
        for fault in range(4):
            group.world.after(0.02 + 0.5 * fault, lambda: group.broker_faults.move_leader(rng.choice(P), 0.7))
            group.world.after(0.3 + 0.5 * fault, lambda: group.broker_faults.silence(rng.randrange(2), 1.0))
        for broker in group.brokers:
            broker.alters = ailing(rng, 10, (frames.NOT_LEADER, UNKNOWN_SERVER_ERROR, CORRUPT_MESSAGE))
        found = reading(group, all_of(*ranges), max_bytes=rng.choice((700, 1 << 20)))
        assert found == {each.topic_partition: list(range(each.first, each.until)) for each in ranges}


def test_ranges_are_read_over_a_line_that_is_too_slow_for_a_large_answer() -> None:
    """Within 5 s it brings less than a batch of 150 kB; within the longest time for an answer 600 kB of the 1.8 MB."""
    with simulated_group(1, Scene(brokers=1, record_bytes=1500)) as group:
        grown(group, [300])
        group.network.bandwidth = 5_000
        ends = [group.logs.end(each) for each in P]
        ranges = [OffsetRange(*each, 0, end) for each, end in zip(P, ends, strict=True)]
        found = reading(group, all_of(*ranges), within=3600, request_timeout=5.0)
        assert found == {each.topic_partition: list(range(each.until)) for each in ranges}


@pytest.mark.parametrize(
    ("what", "moves"),
    [("where logs end", "leader"), ("records", "leader"), ("records", "address"), ("corrupt batch", "leader")],
)
def test_what_a_hung_broker_does_not_answer_is_asked_of_those_that_lead_by_then(what: str, moves: str) -> None:
    """Long before `request_timeout` is over, in which a read would fail. Another machine may have the broker's id."""
    with simulated_group(1, Scene(brokers=2)) as group:
        grown(group)
        ends = {each: group.logs.end(each) for each in P}
        group.broker_faults.silence(0, 300.0)
        if moves == "address":
            group.world.after(3.0, partial(group.replace_broker, 0))
        for partition in P:
            if group.logs.leaders[partition] == 0 and moves == "leader":
                group.world.after(3.0, partial(group.broker_faults.move_leader, partition, 0.0))

        began = group.world.now
        if what == "records":
            ranges = [OffsetRange(*each, 0, end) for each, end in ends.items()]
            read = reading(group, all_of(*ranges), request_timeout=30.0)
            assert read == {each: list(range(end)) for each, end in ends.items()}
        elif what == "corrupt batch":
            (hung, *_) = (each for each in P if group.logs.leaders[each] == 0)
            span, policy = OffsetRange(*hung, 5, ends[hung]), cast("CorruptPolicy", None)
            assert reading(group, lambda reader: reader.way_over(span, policy), request_timeout=30.0) == 5
        else:
            found = reading(group, lambda reader: reader.logs(P), request_timeout=30.0)
            assert found == {each: (0, end) for each, end in ends.items()}
        assert group.world.now - began < 15


def test_a_world_ends_while_a_reader_waits_for_a_hung_broker() -> None:
    """It is cancelled, which takes it no time: its loop could not be closed before."""
    with simulated_group(1, Scene(brokers=2)) as group:
        grown(group)
        group.broker_faults.silence(0, 300.0)
        with pytest.raises(AssertionError, match="it still reads"):
            reading(group, lambda reader: reader.logs(P), within=3.0, request_timeout=30.0)
    assert group.world.processes == []


def test_what_is_asked_about_logs() -> None:
    with simulated_group(1, Scene(brokers=2)) as group:
        grown(group)
        group.broker_faults.retain(P[1], 120)
        ends = {each: group.logs.end(each) for each in P}

        async def ask(reader: ClusterReader) -> None:
            assert await reader.logs(P) == {each: (120 if each == P[1] else 0, ends[each]) for each in P}
            assert await reader.epochs(P) == {each: group.logs.logs[each].epoch for each in P}
            assert await reader.at_time(P, TIMESTAMP) == {each: 120 if each == P[1] else 0 for each in P}
            assert await reader.at_time(P, TIMESTAMP + 1) == ends
            assert await reader.by_leader([OffsetRange(*each, 0, 1) for each in P]) == [
                [OffsetRange(*each, 0, 1) for each in P if group.logs.leaders[each] == broker] for broker in range(2)
            ]
            assert await reader.any_record("t", 1, 200, 201)
            assert await reader.partitions(SubscriptionSettings(topics={"t": 1})) == P
            assert await reader.partitions(SubscriptionSettings(include="t.*")) == P
            assert list(await reader.topics(SubscriptionSettings(topics={"t": 1, "gone": 1}))) == ["t"]
            with pytest.raises(NotFoundError, match="there is no topic tt; "):
                await reader.topics(SubscriptionSettings(topics={"tt": 1}))
            with pytest.raises(NotFoundError, match="no topic matches; "):
                await reader.partitions(SubscriptionSettings(include="x.*"))
            assert {each.id for each in await reader.brokers()} == {0, 1}

        reading(group, ask)


@pytest.mark.parametrize("lost", ["retention", "cut off", "never there"])
def test_offsets_that_the_log_does_not_have_are_lost(lost: str) -> None:
    with simulated_group(1) as group:
        grown(group)
        first, until = 10, 20
        if lost == "retention":
            group.broker_faults.retain(P[0], 15)
        else:
            first, until = group.logs.end(P[0]), group.logs.end(P[0]) + 5
        if lost == "cut off":
            group.broker_faults.elect_uncleanly(P[0], 60, 0, 0.0)
            group.world.pass_time(1.0)
            first, until = until - 60, until - 1
        with pytest.raises(OffsetLostError, match="t-0"):
            reading(group, all_of(OffsetRange(*P[0], first, until), OffsetRange(*P[1], 0, 5)))


@pytest.mark.parametrize(
    ("sent", "error", "words"),
    [
        (None, ConnectionLostError, r"left t-0 out of its answer"),
        (UNKNOWN_SERVER_ERROR, BrokerError, r"t-0: UNKNOWN_SERVER_ERROR \(-1\)"),
        (frames.NOT_LEADER, BrokerError, r"t-0: NOT_LEADER_OR_FOLLOWER \(6\)"),
        (
            frames.OFFSET_OUT_OF_RANGE,
            OffsetLostError,
            r"t-0: the leader says that offset 5 is not in its log \(deleted or cut off; .* not know yet",
        ),
    ],
)
def test_what_is_wrong_with_all_answers_is_raised(sent: int | None, error: type[Exception], words: str) -> None:
    """After the others are read. None: the partition is not even in the answers."""
    with simulated_group(1) as group:
        grown(group)
        group.brokers[0].alters = lambda parts: [
            Part(P[0], sent) if each.partition == P[0] and sent is not None else each
            for each in parts
            if each.partition != P[0] or sent is not None
        ]
        with pytest.raises(error, match=words):
            reading(group, all_of(OffsetRange(*P[0], 5, 9), OffsetRange(*P[1], 0, 9)), 30.0)


@pytest.mark.parametrize(
    ("topic_id", "error", "words"),
    [
        ("ours", None, ""),
        ("", None, ""),  # of brokers before 2.8
        ("another", OffsetLostError, "topic t was deleted and created again"),
        (None, ConnectionLostError, "does not know the topic t"),
    ],
)
def test_a_range_is_of_the_topic_that_was_asked_for(
    topic_id: str | None, error: type[Exception] | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`topic_id`: what the leader says after each fetch; None: there is no such topic by then."""
    call = BrokerConnection.call

    async def read(settings: Settings) -> list[object]:
        async def identified(self: BrokerConnection, request: Request[T], *, timeout: float) -> T:
            answer = await call(self, request, timeout=timeout)
            if isinstance(answer, MetadataResponse) and self is brokers.present(self.broker, "fetch"):
                more: dict[str, Any] = {"partitions": {}} if topic_id is None else {"id": topic_id}
                topics = {name: structs.replace(topic, **more) for name, topic in answer.topics.items()}
                return cast(T, structs.replace(answer, topics=topics))
            return answer

        monkeypatch.setattr(BrokerConnection, "call", identified)
        async with open_session(settings.zookeeper) as session, broker_pool(settings) as brokers:
            topics = ClusterView(session, settings, brokers, guest=True).topics
            of_topic = RangeReader(settings.fetch, topics, brokers, {"t": "ours", "other": "x"})
            found = of_topic.read([OffsetRange(*P[0], 5, 9)])
            return [offset async for _, rows in found for offset in rows.column("offset").to_pylist()]

    with simulated_group(1) as group, pytest.raises(error, match=words) if error is not None else nullcontext():
        grown(group)
        assert in_process(group, read(settings_of(group.scene))) == [5, 6, 7, 8]


def test_keys_that_cannot_be_read_are_reported_before_anything_is_asked() -> None:
    with simulated_group(1) as group:
        settings = settings_of(group.scene)
        tls = structs.replace(settings.brokers.tls, ca="/nowhere/ca.pem")
        settings = structs.replace(
            settings, source="group.toml", brokers=structs.replace(settings.brokers, security_protocol="SSL", tls=tls)
        )

        async def open_reader() -> None:
            async with range_reader(settings):
                pass

        process = group.world.process("reader")
        task = process.create_task(open_reader())
        assert group.world.pass_time(1.0, task.done)
        with pytest.raises(ConfigError, match=r"^group\.toml: .*/nowhere/ca\.pem"):
            task.result()
        assert not group.network.sent[process]


def test_records_that_are_yet_to_come_are_waited_for() -> None:
    with simulated_group(1) as group:
        grown(group)
        end = group.logs.end(P[0])
        group.world.after(20.0, lambda: group.logs.burst(40))
        ranges = OffsetRange(*P[0], end - 3, end + 40)
        assert reading(group, all_of(ranges, follow=True)) == {P[0]: list(range(end - 3, end + 40))}


def test_a_stored_offset_of_a_log_that_was_cut_off_is_refused() -> None:
    with simulated_group(1) as group:
        grown(group)
        end = group.logs.end(P[0])
        epoch = group.logs.logs[P[0]].epoch
        positions = {P[0]: (end, epoch), P[1]: (5, -1)}

        async def ask(reader: ClusterReader) -> None:
            await reader.require_logs(positions, "do something")

        reading(group, ask)
        group.broker_faults.elect_uncleanly(P[0], 60, 0, 0.0)
        group.world.pass_time(1.0)
        group.logs.grow_log(P[0], 500)
        with pytest.raises(OffsetLostError, match=r"t-0.*; do something"):
            reading(group, ask)
        positions[P[0]] = (group.logs.end(P[0]) + 1, -1)
        with pytest.raises(KzConsumerError, match=r"t-0: the log ends at \d+, before the stored offset \d+; do"):
            reading(group, ask)


def test_what_an_application_asks_about_logs() -> None:
    with simulated_group(1, Scene(brokers=2)) as group:
        grown(group)
        group.broker_faults.retain(P[1], 120)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: not group.settled())
        connector = member.connector
        assert connector is not None
        begins, ends = ({each: 120 if each == P[1] else 0 for each in P}, {each: group.logs.end(each) for each in P})

        async def ask() -> None:
            assert await connector.beginning_offsets(P) == begins
            assert await connector.end_offsets(P) == ends
            assert await connector.offsets_for_times(dict.fromkeys(P, TIMESTAMP)) == begins
            assert await connector.offsets_for_times(dict.fromkeys(P, TIMESTAMP + 1)) == dict.fromkeys(P)
            with pytest.raises(NotFoundError, match="no number 9"):
                await connector.end_offsets([TopicPartition("t", 9)])
            await connector.commit()
            assert {each.topic_partition: each.committed for each in connector.positions()} == ends

        asked = member.process.create_task(ask())
        assert group.world.pass_time(20, asked.done)
        asked.result()
        group.leave(member)
        assert group.world.pass_time(10, lambda: member.task is not None and member.task.done())
        commit = member.process.create_task(connector.commit())
        late = member.process.create_task(connector.end_offsets(P))
        assert group.world.pass_time(5, late.done)
        assert commit.done()
        assert commit.exception() is None, "it has committed as it left"
        assert "not a member of the group" in str(late.exception())


def test_a_partition_without_a_leader_is_asked_for_again_at_intervals() -> None:
    with simulated_group(1) as group:
        grown(group)
        group.logs.lead(P[0], -1)
        group.world.after(4.0, lambda: group.logs.lead(P[0], 0))
        assert reading(group, all_of(OffsetRange(*P[0], 5, 9))) == {P[0]: [5, 6, 7, 8]}
        (reader,) = [each for each in group.network.sent if each.name == "reader"]
        assert group.network.sent[reader] < 300
