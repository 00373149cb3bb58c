"""Plan, write, commit on real servers: a member that ends between any two of them leaves its range to the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Self

import anyio
import msgspec
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.errors import OffsetLostError, SinkError
from kzconsumer.fetcher import fetcher_manager
from kzconsumer.model import RangeIdentity, TopicPartition, Wants
from kzconsumer.registry.claim_record import Plan, decode_claim_record, encode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.sessions import Sessions
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.range_plans import RangePlans, destination_of
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.consuming import stored_offset
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

LIMIT = 40.0


class Target:
    """A destination in memory that outlives members: the first publication of a range wins."""

    def __init__(self) -> None:
        self.ranges: dict[RangeIdentity, int] = {}


class Sink:
    """Publishes into the target; can end its member before or after that, as a kill between two steps would."""

    remembers = True
    fingerprint = "memory"

    def __init__(self, target: Target, fails: str = "", step: str = "", wants: Wants = "columns") -> None:
        self.wants = wants
        self._step = step
        self.batches: list[Batch] = []
        self._target = target
        self._fails = fails

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if each in self._target.ranges]

    async def write(self, batch: Batch) -> None:
        self.batches.append(batch)
        if self._step and batch.steps is not None:
            await batch.steps.record(self._step)
        if self._fails == "before":
            raise RuntimeError("ends before it has published")
        for part in batch.ranges:
            self._target.ranges.setdefault(_identity(part), part.records)
        if self._fails == "after":
            raise RuntimeError("ends after it has published")


def _identity(part: RangeData) -> RangeIdentity:
    return RangeIdentity(part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)


async def consume(
    cluster: Cluster,
    topic: str,
    sink: Sink,
    until_true: Callable[[], object],
    records: int = 1000,
    *,
    max_time: str = "100ms",
    group: Mapping[str, str] = MappingProxyType({}),
    **offsets: str,
) -> None:
    """A member as the daemon builds it, until the condition holds or the sink fails."""
    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": cluster.connect},
            "group": {"id": topic, **group},
            "batch": {"max_records": records, "max_time": max_time},
            "offsets": offsets,
        }
    )
    destination = destination_of("memory", capabilities(sink))
    sessions = Sessions(settings, wants=sink.wants, destination=destination)
    async with sessions.running():
        plans = None
        if destination is not None:
            refuses_loss = settings.offsets.reset == "fail"
            plans = RangePlans(sessions, destination, settings.fetch.isolation, refuses_loss=refuses_loss)
        runner = SinkRunner("memory", sink, settings.batch, sessions, plans)
        task = asyncio.create_task(runner.run())
        await ConsumerConnector(sessions).create_message_streams({topic: 1})
        runner.feed(cursor.queue for cursor in sessions.cursors.values())
        with anyio.fail_after(LIMIT):
            while not task.done() and not until_true():
                await anyio.sleep(0.01)
        if not task.done():
            await runner.stop(5.0)
        await task


async def produced(cluster: Cluster, topic: str, number: int) -> None:
    records = [Sent(0, None, b"%d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def plan_of(cluster: Cluster, topic: str) -> Plan | None:
    async with session(cluster.connect) as zookeeper:
        node = await zookeeper.get(GroupPaths(topic).claim_record(TopicPartition(topic, 0)))
    return decode_claim_record(node.data).plan


def tiled(target: Target, until_offset: int) -> bool:
    """Every offset is in exactly one range."""
    at = 0
    for part in sorted(target.ranges, key=lambda each: each.first):
        if part.first != at:
            return False
        at = part.until
    return at == until_offset


@pytest.mark.parametrize(("fails", "wants"), [("before", "columns"), ("after", "columns"), ("before", "ranges")])
async def test_the_next_member_finishes_the_range(cluster: Cluster, unique: str, fails: str, wants: Wants) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    target = Target()
    ended = Sink(target, fails, wants=wants)
    with pytest.raises(SinkError):
        await consume(cluster, unique, ended, lambda: False)
    plan = await plan_of(cluster, unique)
    assert plan is not None
    assert (plan.first, plan.until, plan.records) == (0, 30, 30)
    assert await stored_offset(cluster, unique, unique) == 0
    await produced(cluster, unique, 30)  # a different cut would include these

    following = Sink(target, wants=wants)
    await consume(cluster, unique, following, lambda: tiled(target, 60))

    assert [part.range[2:] for batch in following.batches for part in batch.ranges] == (
        [(0, 30), (30, 60)] if fails == "before" else [(30, 60)]
    )
    assert [batch.is_replay for batch in following.batches] == ([True, False] if fails == "before" else [False])
    assert tiled(target, 60)
    assert list(target.ranges.values()) == [30, 30]
    assert await stored_offset(cluster, unique, unique) == 60
    assert await plan_of(cluster, unique) is None


async def test_the_next_member_knows_the_recorded_steps(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await produced(cluster, unique, 30)
    target = Target()
    for step in ("table", "index", "index"):
        with pytest.raises(SinkError):
            await consume(cluster, unique, Sink(target, "before", step=step), lambda: False)
    plan = await plan_of(cluster, unique)
    assert plan is not None
    assert (plan.first, plan.until, plan.done) == (0, 30, ("table", "index"))
    await produced(cluster, unique, 30)
    following = Sink(target, step="sum")
    await consume(cluster, unique, following, lambda: tiled(target, 60))
    assert [batch.steps and batch.steps.done for batch in following.batches] == [("table", "index", "sum"), ("sum",)]
    assert await stored_offset(cluster, unique, unique) == 60
    assert await plan_of(cluster, unique) is None


async def planned(cluster: Cluster, topic: str, target: Target) -> Plan:
    """Thirty records in a plan, none of them published."""
    await create_topic(cluster.connect, topic, 1)
    await produced(cluster, topic, 30)
    with pytest.raises(SinkError):
        await consume(cluster, topic, Sink(target, "before"), lambda: False)
    plan = await plan_of(cluster, topic)
    assert plan is not None
    return plan


async def retained_from(cluster: Cluster, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    (deleted,) = admin.delete_records([KafkaPartition(topic, 0, offset)]).values()
    assert (await asyncio.to_thread(deleted.result, LIMIT)).low_watermark == offset


def losses(logs: Sequence[MutableMapping[str, object]]) -> list[tuple[object, ...]]:
    """Topic, partition, first and until of every loss that was logged as an error."""
    output = [each for each in logs if each["log_level"] == "error"]
    return [tuple(each.get(name) for name in ("topic", "partition", "first", "until")) for each in output]


async def test_the_rest_of_a_range_after_retention_is_written_as_that_range(cluster: Cluster, unique: str) -> None:
    target = Target()
    before = await planned(cluster, unique, target)
    await retained_from(cluster, unique, 10)

    strict = Sink(target)
    lost = r"offsets 0 to 30 were planned .* from 10 to 30, has lost 0 to 10; .* reset = \"smallest\""
    with pytest.raises(OffsetLostError, match=lost):
        await consume(cluster, unique, strict, lambda: False, reset="fail")
    assert (strict.batches, target.ranges, await plan_of(cluster, unique)) == ([], {}, before)

    following = Sink(target)
    await produced(cluster, unique, 5)
    with capture_logs() as logs:
        await consume(cluster, unique, following, lambda: tiled(target, 35))
    assert {part[4:]: records for part, records in target.ranges.items()} == {(0, 30): 20, (30, 35): 5}
    # Where the log begins, and that the range differs from the planned one.
    assert losses(logs) == [(unique, 0, 0, 10), (unique, 0, 0, 30)]
    assert await stored_offset(cluster, unique, unique) == 35


async def test_a_range_that_retention_has_deleted_is_reported_and_skipped(cluster: Cluster, unique: str) -> None:
    target = Target()
    await planned(cluster, unique, target)
    await produced(cluster, unique, 5)
    await retained_from(cluster, unique, 32)
    with capture_logs() as logs:
        await consume(cluster, unique, Sink(target), lambda: target.ranges)
    assert losses(logs) == [(unique, 0, 0, 30), (unique, 0, 0, 30), (unique, 0, 30, 32)]
    # The hole after the range may be a batch of its own, which is not written.
    assert [part[4:] for part in target.ranges] in ([(30, 35)], [(32, 35)])
    assert await stored_offset(cluster, unique, unique) == 35


async def beyond_the_end(cluster: Cluster, topic: str, plan: Plan | None) -> None:
    """As after an unclean leader election: the group is ahead of the log, with or without a range in flight."""
    paths, partition = GroupPaths(topic), TopicPartition(topic, 0)
    async with session(cluster.connect) as zookeeper:
        node = await zookeeper.get(paths.claim_record(partition))
        record = decode_claim_record(node.data)
        if plan is not None:
            plan = msgspec.structs.replace(plan, until=50, records=50)
        else:
            await zookeeper.set(paths.offset(partition), b"50", -1)
        data = encode_claim_record(msgspec.structs.replace(record, plan=plan))
        await zookeeper.set(paths.claim_record(partition), data, -1)


@pytest.mark.parametrize("in_flight", [True, False])
async def test_a_truncated_log_is_continued_in_a_new_epoch(
    cluster: Cluster, unique: str, in_flight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_manager, "END_PATIENCE", 0.5)
    target = Target()
    plan = await planned(cluster, unique, target)
    await beyond_the_end(cluster, unique, plan if in_flight else None)
    with pytest.raises(OffsetLostError, match='truncated = "continue"'):
        await consume(cluster, unique, Sink(target), lambda: False)
    assert not target.ranges

    await produced(cluster, unique, 5)
    continued_at = (
        0 if in_flight else 35
    )  # the range in flight is not in the destination, and what the log has of it is written
    with capture_logs() as logs:
        following = asyncio.create_task(
            consume(
                cluster, unique, Sink(target), lambda: any(p.until == 40 for p in target.ranges), truncated="continue"
            )
        )
        async with session(cluster.connect) as zookeeper:
            path = GroupPaths(unique).offset(TopicPartition(unique, 0))
            with anyio.fail_after(LIMIT):
                while (await zookeeper.get(path)).data not in (b"35", b"40"):
                    await anyio.sleep(0.02)
        await produced(cluster, unique, 5)
        await following
    assert losses(logs) == [(unique, 0, 35, 50)]
    assert {part.epoch for part in target.ranges} == {1}
    assert sorted((part.first, part.until) for part in target.ranges)[0][0] == continued_at
    assert await stored_offset(cluster, unique, unique) == 40
    assert await plan_of(cluster, unique) is None
