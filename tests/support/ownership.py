"""Who owns what in a group according to ZooKeeper: now, and everything observed since the watch began.

The history comes from ZooKeeper's watches: a state that ends before it is read may be missed. It writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from kzconsumer.assignors import Assignor
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.registry.group_records import STATIC, Registration
from kzconsumer.registry.nodes import Topic
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.zookeeper_sessions import session

POLL = 0.015

Owners = dict[tuple[str, int], str]


class Seen(NamedTuple):
    """The owner and the stored offset of one partition, from this time on."""

    at: float
    owner: str | None
    stored: int | None


class Ownership:
    """The partitions of `topics` (topic -> number of partitions, which may grow)."""

    def __init__(self, zookeeper: ZooKeeperSession, group: str, topics: dict[str, int]) -> None:
        self.zookeeper = zookeeper
        self.group = group
        self.topics = topics
        self.history: dict[tuple[str, int], list[Seen]] = {}
        self._owners: dict[tuple[str, int], str | None] = {}
        self._stored: dict[tuple[str, int], str | None] = {}

    @property
    def owners(self) -> Owners:
        """Those that have an owner."""
        return {partition: owner for partition, seen in self.history.items() if (owner := seen[-1].owner) is not None}

    async def watch(self) -> None:
        """Until cancelled."""
        followed: set[tuple[str, int]] = set()
        async with anyio.create_task_group() as tasks:
            while True:
                for topic, number in self._partitions() - followed:
                    tasks.start_soon(self._follow, (topic, number), "owners", self._owners)
                    tasks.start_soon(self._follow, (topic, number), "offsets", self._stored)
                followed |= self._partitions()
                await anyio.sleep(POLL)

    def _partitions(self) -> set[tuple[str, int]]:
        return {(topic, number) for topic, count in self.topics.items() for number in range(count)}

    async def _follow(self, partition: tuple[str, int], kind: str, texts: dict[tuple[str, int], str | None]) -> None:
        topic, number = partition
        while True:
            node, changed = await self.zookeeper.watch_data(f"/consumers/{self.group}/{kind}/{topic}/{number}")
            texts[partition] = None if node is None else node.data.decode()
            if partition in self._owners and partition in self._stored:
                owner, stored = self._owners[partition], self._stored[partition]
                new = Seen(time.monotonic(), owner, None if stored is None else int(stored))
                seen = self.history.setdefault(partition, [])
                if not seen or seen[-1][1:] != new[1:]:
                    seen.append(new)
            await changed.wait()

    async def known(self) -> None:
        """Wait until the state of every partition is known."""
        while self._partitions() - self.history.keys():
            await anyio.sleep(0.005)

    async def settled(self, wanted: Mapping[tuple[str, int], str], limit: float = 20.0) -> float:
        """Wait until exactly these own exactly these; returns how long that took."""
        began = time.monotonic()
        try:
            with anyio.fail_after(limit):
                while self.owners != wanted:
                    await anyio.sleep(POLL)
        except TimeoutError:
            raise AssertionError(f"after {limit} s owned by {self.owners}, should be {dict(wanted)}") from None
        return time.monotonic() - began

    def longest_without_owner(self, since: float) -> float:
        """The longest time, in seconds, that a partition had no owner between two; of those ended since then."""
        longest = 0.0
        for seen in self.history.values():
            for before, gap, after in zip(seen, seen[1:], seen[2:], strict=False):
                if before.owner is not None and gap.owner is None and after.at >= since:
                    longest = max(longest, after.at - gap.at)
        return longest

    def owner_at(self, partition: tuple[str, int], at: float, tolerance: float) -> set[str | None]:
        """All observed owners within `tolerance` of that time."""
        seen = self.history[partition]
        ends = [later.at for later in seen[1:]] + [float("inf")]
        return {
            each.owner
            for each, end in zip(seen, ends, strict=True)
            if each.at <= at + tolerance and end >= at - tolerance
        }


@asynccontextmanager
async def watched(connect: str, group: str, topics: dict[str, int]) -> AsyncIterator[Ownership]:
    """The group's ownership, watched until the block ends."""
    async with session(connect) as zookeeper, anyio.create_task_group() as tasks:
        ownership = Ownership(zookeeper, group, topics)
        tasks.start_soon(ownership.watch)
        with anyio.fail_after(10):
            await ownership.known()
        yield ownership
        tasks.cancel_scope.cancel()


def by_range(topic: str, partitions: int, threads: Iterable[str]) -> Owners:
    """The range rule (`kafka.consumer.RangeAssignor`): consecutive partitions, the first threads get one more."""
    ordered = sorted(threads)
    each, more = divmod(partitions, len(ordered))
    owners: Owners = {}
    for index, thread in enumerate(ordered):
        first = each * index + min(index, more)
        owners |= {(topic, first + n): thread for n in range(each + (index < more))}
    return owners


def by_assignor(
    assignor: Assignor, topics: Mapping[str, int], subscriptions: Mapping[str, Mapping[str, int]]
) -> Owners:
    """The assignment of the assignor; `subscriptions` are consumer -> topic -> streams, as every member reads them."""
    members = {consumer: Registration(STATIC, dict(wanted), ours=True) for consumer, wanted in subscriptions.items()}
    existing = {topic: Topic(tuple(range(number)), 1) for topic, number in topics.items()}
    assigned = assignor(GroupSnapshot(members, tuple(sorted(topics)), existing).context())
    return {(partition.topic, partition.partition): str(thread) for partition, thread in assigned.items()}
