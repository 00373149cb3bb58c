"""All groups of a cluster, each with its members, its lag and its last commit: which of them are dead, or behind?

Groups are read in pages: a cluster may have ten thousand that console consumers left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

import anyio

from kzconsumer.errors import NotPermittedError
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.cluster import LIMIT, slow_zookeeper
from kzconsumer.zookeeper.watches import together
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.diagnosis import of_progress
from kzconsumer_tools.groups.group_lag import (
    GroupLag,
    GroupSummary,
    group_lag,
    next_offsets,
    partition_lags,
    partitions_of,
    standing_of,
)
from kzconsumer_tools.groups.group_nodes import GroupFacts, GroupNodes, KnownTopic, facts
from kzconsumer_tools.groups.group_reader import Topics, group_names, nodes_of

#: Groups that are read at the same time.
PAGE = 50
#: Seconds in which ages are looked up, in rounds: each for one record of each partition, the earliest offset first.
AGES_WITHIN = 10.0


async def read_overview(
    access: ClusterAccess, connect: str, wanted: Callable[[str], bool], show: Callable[[int, int], None]
) -> list[GroupSummary]:
    """The chosen groups, by name. `show` is called with the number of groups that were read, and of all.

    Raises NotFoundError if there is no cluster, ZooKeeperUnreachableError if a page of groups takes longer than LIMIT
    seconds.
    """
    names = [name for name in await group_names(access.session, connect) if wanted(name)]
    topics = _Once(await access.topics())
    read: dict[str, GroupNodes] = {}
    found: dict[str, GroupSummary] = {}

    async def one(name: str) -> None:
        try:
            read[name] = await nodes_of(access.session, topics, name)
        except NotPermittedError as error:
            found[name] = GroupSummary(name, not_read=str(error))

    for first in range(0, len(names), PAGE):
        try:
            with anyio.fail_after(LIMIT):
                await together([one(name) for name in names[first : first + PAGE]])
        except TimeoutError:  # also if all answers have arrived, and were not all looked at in time
            raise slow_zookeeper(connect) from None
        show(min(first + PAGE, len(names)), len(names))
    known = {name: facts(nodes) for name, nodes in read.items()}
    existing = {each for of in known.values() for each in partitions_of(of) if not of.gone(each)}
    logs = await access.known_logs(sorted(existing))
    at = time.time()
    nexts = {name: next_offsets(of, logs) for name, of in known.items()}
    written = await _written(access, nexts.values())
    for name, of in known.items():
        times = {each: written[each, offset] for each, offset in nexts[name].items() if (each, offset) in written}
        lags = partition_lags(of, partitions_of(of), logs, times, at)
        lag = group_lag(name, of, lags, logs, at, foreign=read[name].foreign)
        standing = standing_of(read[name], of, lags, at)
        found[name] = summary(read[name], of, lag, len(of_progress(read[name], of, {}, standing)))
    return [found[name] for name in names]


def summary(nodes: GroupNodes, known: GroupFacts, lag: GroupLag, stalled: int) -> GroupSummary:
    ours = sum(member.ours for member in known.members.values())
    stored = [node.stat.mtime for node in nodes.offsets.values()]
    return GroupSummary(
        group=nodes.group,
        ours=ours,
        original=len(known.members) - ours,
        unreadable=len(nodes.registrations) - len(known.members),
        topics=tuple(sorted({paths.topic_of(path) for path in (*nodes.owners, *nodes.offsets)})),
        owned=len(nodes.owners),
        last_commit=datetime.fromtimestamp(max(stored) / 1000, UTC) if stored else None,
        lag=lag.lag,
        lag_at_least=lag.lag_at_least,
        unknown=lag.unknown,
        seconds=lag.seconds,
        seconds_at_least=lag.seconds_at_least,
        unknown_seconds=lag.unknown_seconds,
        lost=lag.lost,
        gone=lag.gone,
        partitions=len(lag.partitions) - lag.gone,
        stalled=stalled,
        foreign=nodes.foreign,
    )


async def _written(
    access: ClusterAccess, nexts: Collection[Mapping[TopicPartition, int]]
) -> dict[tuple[TopicPartition, int], int | Why]:
    """The timestamps of the next records, by partition and offset: as many as brokers return in AGES_WITHIN seconds."""
    wanted: dict[TopicPartition, list[int]] = {}
    for partition, offset in sorted({pair for of in nexts for pair in of.items()}):
        wanted.setdefault(partition, []).append(offset)
    found: dict[tuple[TopicPartition, int], int | Why] = {}
    until = time.monotonic() + AGES_WITHIN
    for number in range(max(map(len, wanted.values()), default=0)):
        if time.monotonic() > until:
            break
        asked = {each: offsets[number] for each, offsets in wanted.items() if number < len(offsets)}
        for each, at in (await access.written(asked)).items():
            found[each, asked[each]] = at
    return found


class _Once:
    """Topics that are read once for all groups."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.from_brokers = topics.from_brokers
        self._names: list[str] | None = None
        self._found: dict[str, KnownTopic | None] = {}

    def described(self) -> object:
        return self._topics.described()

    async def known(self) -> bool:
        return await self._topics.known()

    async def names(self) -> list[str]:
        if self._names is None:
            self._names = await self._topics.names()
        return self._names

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        if self.from_brokers:  # which topic of that name a group knows is its own
            return await self._topics.found(names, group)
        missing = [name for name in names if name not in self._found]
        if missing:
            read = await self._topics.found(missing, group)
            self._found.update({name: read.get(name) for name in missing})
        return {name: topic for name in names if (topic := self._found[name]) is not None}
