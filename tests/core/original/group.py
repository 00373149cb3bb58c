"""One group of original members and ours under a steady flow, and the checks that every test of this directory ends
with.

`MixedGroup` is what a test works with; `check` is the verdict.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import anyio

import kzconsumer
from kzconsumer.consumer import KafkaStream
from kzconsumer.settings.value_readers import TopicFilter
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.flow import Deliveries, Flow, flow
from tests.support.members import Reader
from tests.support.original import Original, Record, console_consumer, tools_verdict
from tests.support.ownership import Ownership, Seen, watched
from tests.support.servers import Servers

PARTITIONS = 8
STALL = 5.0
"""Seconds for which a busy machine may pause during any measurement."""


class OurMember(Reader):
    """A reader that also notes when each record arrived."""

    def __init__(self, consumer: kzconsumer.ConsumerConnector) -> None:
        super().__init__(consumer)
        self.came: list[tuple[float, Record]] = []

    async def read(self, stream: KafkaStream) -> None:
        async for message in stream:
            self.came.append((time.monotonic(), Record(message.topic, message.partition, message.offset)))

    def delivered(self) -> list[Record]:
        return [record for _, record in self.came]

    def thread(self, number: int = 0) -> str:
        return f"{self.consumer.consumer}-{number}"


@asynccontextmanager
async def our_member(
    cluster: Cluster, group: str, topics: Mapping[str, int] | TopicFilter, name: str, *, assignor: str = "range"
) -> AsyncIterator[OurMember]:
    """A member of ours with the id `<group>_<name>`, reading until the block ends; with a topic filter it has one
    stream. Its session outlives what a busy machine does to it: what is uncommitted at the end of one is redelivered.
    """
    configured = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": cluster.connect, "session_timeout": "30s"},
            "group": {"id": group, "consumer_id": name, "assignor": assignor},
            "offsets": {"commit_interval": "500ms"},
        }
    )
    async with kzconsumer.connect(configured) as consumer, anyio.create_task_group() as tasks:
        member = OurMember(consumer)
        if isinstance(topics, TopicFilter):
            streams = await consumer.create_message_streams_by_filter(topics)
        else:
            streams = list(chain.from_iterable((await consumer.create_message_streams(topics)).values()))
        for stream in streams:
            tasks.start_soon(member.read, stream)
        yield member
        await consumer.leave()  # the readers end with their streams: what was handed out counts as delivered


class MixedGroup:
    """A topic under flow, and the group's ownership of it."""

    def __init__(
        self, servers: Servers, cluster: Cluster, name: str, topic: str, ownership: Ownership, flow: Flow
    ) -> None:
        self.servers = servers
        self.cluster = cluster
        self.name = name
        self.topic = topic
        self.ownership = ownership
        self.flows = {topic: flow}
        self.figures: dict[str, float] = {}
        self.set_back: set[Record] = set()

    @property
    def flow(self) -> Flow:
        return self.flows[self.topic]

    def original(self, folder: Path, consumer: str, **options: Any) -> AbstractContextManager[Original]:
        """An original member, with a directory of its own. `options` are those of `console_consumer`."""
        topic, place = self.topic, folder / consumer
        return console_consumer(self.servers, self.cluster, self.name, topic, place, consumer=consumer, **options)

    def all_sent(self) -> set[Record]:
        return {record for each in self.flows.values() for record in each.all_sent()}

    async def registered(self, original: Original, limit: float = 20.0) -> float:
        """Wait until the member is in the group; returns when that was seen."""
        with anyio.fail_after(limit):
            while not await self.ownership.zookeeper.exists(f"/consumers/{self.name}/ids/{original.consumer}"):
                assert original.process.poll() is None, original.err.read_text()[-2000:]
                await anyio.sleep(0.01)
        return time.monotonic()

    async def delivering(self, *members: Callable[[], Collection[Record]], limit: float = 20.0) -> None:
        """Wait until each of them has delivered something new."""
        before = [len(output()) for output in members]
        with anyio.fail_after(limit):
            while not all(len(output()) > n for output, n in zip(members, before, strict=True)):
                await anyio.sleep(0.02)

    async def settled(
        self,
        what: str,
        wanted: Mapping[tuple[str, int], str],
        *,
        since: float | None = None,
        verified: bool = True,
        limit: float = 20.0,
    ) -> None:
        """Wait until exactly these own exactly these and Kafka's own tool confirms it; note the time since an event.

        The tool confirms only if every subscribed topic exists, so it cannot be run before that. About a single thread
        it would report nothing new. An original that rebalances twice releases what it has in between.
        """
        verdict, deadline = "", time.monotonic() + limit
        while "Rebalance operation successful" not in verdict or self.ownership.owners != wanted:
            assert time.monotonic() < deadline, verdict
            await self.ownership.settled(wanted, limit)
            settled = time.monotonic()
            if not verified or len(set(wanted.values())) == 1:
                break
            verdict = await tools_verdict(self.servers, self.cluster, self.name)
        if since is not None:
            self.figures[f"{what}, s"] = settled - since
            self.figures[f"{what}: longest without owner, s"] = self.ownership.longest_without_owner(since)

    async def drained(self, deliveries: Deliveries, limit: float = 30.0, may_lack: int = 0) -> set[Record]:
        """End the flow and wait until everything sent was delivered by some member.

        Returns what never was: up to `may_lack` records if nothing has arrived for 3 s.
        """
        for each in self.flows.values():
            await asyncio.to_thread(each.end)
        lost = self.all_sent() - deliveries.all()
        began = changed = time.monotonic()
        while lost and not (len(lost) <= may_lack and time.monotonic() - changed > 3.0):
            assert time.monotonic() - began < limit, f"{len(lost)} records not delivered: {sorted(lost)[:5]}"
            await anyio.sleep(0.05)
            before, lost = lost, lost - deliveries.all()
            if lost != before:
                changed = time.monotonic()
        return lost

    def check_ours(self, *members: OurMember, others_wrote_offsets: bool = False) -> None:
        """Ours delivered nothing unowned, nothing twice, and stored all of it before another member owned it."""
        times: dict[Record, list[float]] = defaultdict(list)
        for at, record in sorted(delivery for member in members for delivery in member.came):
            times[record].append(at)
        self.set_back = {record for record, at in times.items() if len(at) > 1}
        """Delivered twice by ours, since another member had stored an earlier offset in between."""
        names = [member.consumer.consumer for member in members]
        for record in self.set_back:
            history = self.ownership.history[record.topic, record.partition]
            for first, second in pairwise(times[record]):
                assert set_back(history, record.offset, first, second, names), (record, first, second, history)
        for member in members:
            last: dict[tuple[str, int], tuple[float, int]] = {}
            for at, record in member.came:
                partition = record.topic, record.partition
                owners = self.ownership.owner_at(partition, at, 0.1)
                assert any(owner and owner.startswith(member.consumer.consumer) for owner in owners), (record, owners)
                last[partition] = at, record.offset
            for partition, (at, offset) in last.items() if not others_wrote_offsets else ():
                # The first state after the hand-over: what we stored before it.
                later = [seen for seen in self.ownership.history[partition] if seen.at > at and seen.owner is not None]
                for seen in later:
                    if not str(seen.owner).startswith(member.consumer.consumer):
                        assert seen.stored is not None
                        assert seen.stored > offset, (partition, seen, offset)
                        break

    def check_doubled(self, deliveries: Deliveries, *originals: Original) -> dict[Record, list[str]]:
        """Records delivered twice, each by an original member for one of two known reasons; counted in the figures.

        It reads the stored offset before it claims, so one that we store in between is missed (`fetchOffsets` before
        `reflectPartitionOwnershipDecision`). And a chunk that its iterator has in hand during a commit may still be
        delivered (`clearCurrentChunk` against `makeNext`, `ZookeeperConsumerConnector.shutdown`).
        """
        doubled = {record: by for record, by in deliveries.doubled().items() if record not in self.set_back}
        names = {original.consumer for original in originals}
        for record, by in doubled.items():
            assert names.intersection(by), f"{record} delivered twice without an original member: {by}"
        self.figures["delivered twice by the original's rules"] = len(doubled)
        return doubled

    def print_figures(self) -> None:
        print(f"\n{self.name}: {len(self.all_sent())} records")
        for what, figure in self.figures.items():
            print(f"  {what}: {figure:.3f}" if isinstance(figure, float) else f"  {what}: {figure}")


def set_back(history: Sequence[Seen], offset: int, first: float, second: float, ours: Sequence[str]) -> bool:
    """Whether another member stored this offset or an earlier one between two deliveries of ours.

    It was behind us: an original member reads the stored offset before it claims, and we store ours in between. If it
    loses the partition again before it has caught up, it leaves what it had read.
    """
    return any(
        first < after.at <= second
        and after.stored is not None
        and after.stored <= offset < (before.stored or 0)
        and not (after.owner or "").startswith(tuple(ours))
        for before, after in pairwise(history)
    )


@asynccontextmanager
async def mixed_group(
    servers: Servers, cluster: Cluster, name: str, *, topic: str | None = None, partitions: int = PARTITIONS
) -> AsyncIterator[MixedGroup]:
    """A topic, named like the group unless given, with a flow into it; ownership is watched until the block ends."""
    topic = topic or name
    await create_topic(cluster.connect, topic, partitions)
    async with watched(cluster.connect, name, {topic: partitions}) as ownership:
        with flow(cluster, topic, partitions) as running:
            group = MixedGroup(servers, cluster, name, topic, ownership, running)
            yield group
            group.print_figures()
