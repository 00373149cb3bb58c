"""Follows every group of a cluster: reads it at intervals, over one ZooKeeper session after the other."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec

from kzconsumer.brokers.leaders import Leaders, LogOffsets, why_unknown
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import EARLIEST, LATEST, READ_UNCOMMITTED
from kzconsumer.brokers.transport import load_security
from kzconsumer.clock import now
from kzconsumer.errors import KzConsumerError, NotFoundError, SessionExpiredError, ZooKeeperError
from kzconsumer.fetcher.record_times import PARTITIONS_OF_REQUEST, RecordTimes
from kzconsumer.lag.partition import Why
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import TopicIdentities
from kzconsumer.registry.cluster import open_session
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, together
from kzconsumer_tools.exporter.kafka_groups import KafkaGroups, certain, merged, read_kafka_groups
from kzconsumer_tools.exporter.seen_groups import Histories, ReadGroup, SeenGroup, group_of_nodes
from kzconsumer_tools.groups.cluster_access import answered, log_ranges, metadata_of
from kzconsumer_tools.groups.group_lag import LogRange, Logs
from kzconsumer_tools.groups.group_reader import NO_CLUSTER, Topics, nodes_of, topics_now
from kzconsumer_tools.node_changes import BROKERS

# Reads of nodes are repeated only for what has changed: each node that was read has a watch.

T = TypeVar("T")

#: Reads in flight: the server's other clients do not wait behind more.
AT_ONCE = 100
#: Groups that are read at the same time, so that the first reading of thousands does not wait for each answer alone.
PAGE = 50
#: Seconds between two readings of what no event has reported: none reports what a ZooKeeper that was restored from a
#: copy has lost. Each takes some groups, up to so many partitions, those that were read longest ago.
RECHECK = 60.0
RECHECKED = 1000


class WatchedNodes:
    """The nodes of one session, for `group_reader.nodes_of`. Raises as the session does.

    `changed`: groups of which a node has changed since it was read; `topics_changed`: whether a topic has.
    """

    def __init__(self, session: ZooKeeperSession) -> None:
        self.watches = Watches(session, self._fired)
        self.changed: set[str] = set()
        self.topics_changed = False
        self._limit = anyio.Semaphore(AT_ONCE)
        self._records = defaultdict[str, set[str]](set)  # of topics, by group: paths

    async def find(self, path: str) -> Node | None:
        return await self._limited(partial(self.watches.data, path, path))

    async def children(self, path: str) -> list[str]:
        return await self._limited(partial(self.watches.children, path, path))

    def identities(self, group: str) -> TopicIdentities:
        """Which topics the group has consumed; a change of what it keeps of one counts as a change of the group."""
        # These only read, through the watches: what has not changed is not asked for again for each group.
        return TopicIdentities(cast("ZooKeeperSession", self), self, GroupPaths(group))

    async def sync(self, path: str) -> None:
        """For `identities`: the session was synced before the reading."""

    async def data(self, path: str, reason: str) -> Node | None:
        """As `find`, of the record of a topic, for `identities`: its group may never have had one."""
        self._records[path.split("/")[2]].add(path)
        return await self.find(path)

    def forget(self, group: str) -> None:
        """Drop the watches of a group that was deleted."""
        at = GroupPaths(group)
        for path in (at.root, *at.known, *self._records.pop(group, ())):
            self.watches.forget(path)
        self.changed.discard(group)

    def read_again(self, groups: Collection[str]) -> None:
        """Of what was read of these groups, and of the list of all, nothing counts any more."""
        self.watches.forget(paths.CONSUMERS)
        self.watches.reread_below([GroupPaths(group).root for group in groups])
        self.changed.update(groups)

    def _fired(self, path: str) -> None:
        if path.startswith(f"{paths.CONSUMERS}/"):
            self.changed.add(path.split("/")[2])
        elif path.startswith(paths.BROKER_TOPICS):
            self.topics_changed = True

    async def _limited(self, read: Callable[[], Awaitable[T]]) -> T:
        async with self._limit:
            return await read()


class FollowedGroups:
    """The groups in the nodes of one session. One that has not changed is neither read nor decoded again.

    So a reading costs what has changed, in processor time too: ten thousand groups would take longer than a session.
    """

    def __init__(self, nodes: WatchedNodes, wanted: Callable[[str], bool]) -> None:
        """`wanted`: which groups are followed, by name."""
        self._nodes = nodes
        self._wanted = wanted
        self._read: dict[str, ReadGroup] = {}  # those that were read longest ago first
        self._rechecked = now()
        self._names: set[str] = set()
        self._described: object = None

    async def read(self, topics: Topics) -> tuple[dict[str, ReadGroup], dict[str, str]]:
        """Those that may be read, and why others may not."""
        nodes = self._nodes
        if now() - self._rechecked >= RECHECK:
            self._rechecked = now()
            self._recheck()
        names = await nodes.children(paths.CONSUMERS)
        there = names or topics.from_brokers
        if not there and not [path for path in (paths.CONSUMERS, BROKERS) if await nodes.find(path) is not None]:
            raise NotFoundError(NO_CLUSTER)
        for group in self._names.difference(names):
            nodes.forget(group)
            self._read.pop(group, None)
        self._names = set(names)
        if nodes.topics_changed or topics.described() != self._described:
            nodes.topics_changed = False
            self._read.clear()
            self._described = topics.described()
        unreadable: dict[str, str] = {}

        async def read(name: str) -> None:
            nodes.changed.discard(name)  # before its nodes are read: what changes meanwhile is read the next time
            try:
                self._read[name] = group_of_nodes(await nodes_of(nodes, topics, name))
            except ZooKeeperError as error:  # not permitted, or a record of a topic that makes no sense
                unreadable[name] = str(error)

        chosen = [name for name in names if self._wanted(name)]
        due = [name for name in chosen if name not in self._read or name in nodes.changed]
        for name in due:
            self._read.pop(name, None)
        for first in range(0, len(due), PAGE):
            await together([read(name) for name in due[first : first + PAGE]])
        return {name: self._read[name] for name in chosen if name in self._read}, unreadable

    def _recheck(self) -> None:
        chosen, partitions = [], 0
        for name, group in self._read.items():
            if partitions < RECHECKED:
                chosen.append(name)
                partitions += len(group.partitions)
        self._nodes.read_again(chosen)


log = get_logger("kzconsumer.exporter")

#: Seconds for each response of a broker.
TIMEOUT = 5.0
#: Intervals for which a reading is reported, and the seconds more that brokers without an answer may delay the next.
VALID = 3
DELAY = 2 * TIMEOUT


class ExporterReading(msgspec.Struct, frozen=True):
    """`at`: seconds since 1970; `took`: seconds; `ends`: those that are known; `topics`: with the partitions' numbers,
    those that a group reads; `unreadable`: groups that may not be read, with the reason."""

    at: float
    took: float
    groups: Mapping[str, SeenGroup]
    topics: Mapping[str, tuple[int, ...]]
    ends: Mapping[TopicPartition, int]
    unreadable: Mapping[str, str] = MappingProxyType({})


class Exporter:
    """`run` keeps `present` up to date."""

    def __init__(
        self,
        settings: Settings,
        cluster: str,
        interval: float,
        stalled_after: float,
        *,
        kafka_groups: bool = False,
        wanted: Callable[[str], bool] = lambda group: True,
    ) -> None:
        """`kafka_groups`: with the groups that brokers coordinate; `wanted`: which groups are followed, by name."""
        self.cluster = cluster
        self.interval = interval
        self.stalled_after = stalled_after
        self.connect = settings.zookeeper.connect
        self.failure: str | None = "nothing has been read yet"
        """Why the last reading failed, or why ends are missing in it."""
        self._settings = settings
        self._kafka_groups = kafka_groups
        self._wanted = wanted
        self._session: ZooKeeperSession | None = None
        self.histories = Histories(interval)
        """What was seen of each group before."""
        self.last: ExporterReading | None = None
        """However old it is; `present` is what is shown."""
        self._taken = math.inf
        self._settled = False
        self._with_brokers: frozenset[str] = frozenset()
        self._written: dict[tuple[TopicPartition, int], float | Why] = {}
        self._asked: dict[tuple[TopicPartition, int], float] = {}

    @property
    def settled(self) -> bool:
        """A reading has succeeded or failed."""
        return self._settled

    @property
    def present(self) -> ExporterReading | None:
        """The last reading; None if it is too old."""
        # By both clocks: one of them does not count while the machine is suspended, the other may be set back.
        last = self.last
        if last is None or max(time.time() - last.at, now() - self._taken) > VALID * self.interval + DELAY:
            return None
        return last

    @property
    def absence(self) -> str:
        """Why there is no present reading."""
        refused = self._session.why_refused if self._session is not None else ""
        return f"{self.connect}: {refused or self.failure or 'ZooKeeper does not answer'}"

    async def run(self) -> None:
        security = partial(load_security, self._settings.brokers, self._settings.source)
        async with Brokers(client_id="kzconsumer-exporter", timeout=TIMEOUT, security=security) as brokers:
            while True:
                try:
                    self._session = open_session(self._settings.zookeeper, insist=True)
                    async with self._session as session:
                        await self._follow(session, brokers)
                except SessionExpiredError as error:
                    self._settle(error)

    async def _follow(self, session: ZooKeeperSession, brokers: Brokers) -> None:
        nodes = WatchedNodes(session)
        followed = FollowedGroups(nodes, self._wanted)
        metadata = metadata_of(session, nodes.watches, self._settings.brokers, brokers)
        leaders = Leaders(metadata, brokers, TIMEOUT)
        log_offsets = LogOffsets(leaders, brokers, TIMEOUT, READ_UNCOMMITTED)
        record_times = RecordTimes(leaders, brokers, TIMEOUT)
        while True:
            began = now()
            try:
                await session.sync()  # without an answer, what is known may be out of date
                topics = await topics_now(nodes, metadata, nodes.identities)
                groups, unreadable = await followed.read(topics)
                failure: KzConsumerError | None = None
                unread = set(unreadable)
                if self._kafka_groups:
                    found = await read_kafka_groups(metadata, topics, brokers, TIMEOUT)
                    kafka, failure = await _with_partitions(found, topics)
                    kafka = {name: group for name, group in kafka.items() if self._wanted(name)}
                    groups = merged(groups, kafka)
                    if failure is None:
                        self._with_brokers = frozenset(kafka)
                    else:
                        self._with_brokers |= kafka.keys()
                        unread |= {*groups, *self._with_brokers}
                        groups = certain(groups, kafka, self._with_brokers)
                        unread.difference_update(groups)
                existing = sorted({each for group in groups.values() for each in group.existing})
                logs = await self._logs(log_offsets, existing)
                await self._times(record_times, groups, logs)
                await self.take_reading(groups, existing, logs, now() - began, unread, unreadable)
                silent = next((each for each in logs.values() if isinstance(each, Why)), None)
                self._settle(failure or (KzConsumerError(silent.detail) if silent is not None else None))
            except SessionExpiredError:
                raise
            except KzConsumerError as error:
                self._settle(error)
            await anyio.sleep(max(0.1, self.interval - (now() - began)))

    async def _logs(
        self, log_offsets: LogOffsets, existing: Sequence[TopicPartition]
    ) -> dict[TopicPartition, LogRange | Why]:
        """Only partitions that exist are asked for: old brokers create a topic that is named."""
        if not existing:
            return {}
        try:
            starts = await log_offsets.once(dict.fromkeys(existing, EARLIEST))
            known = dict.fromkeys(answered(starts), LATEST)
            ends = await log_offsets.once(known) if known else {}
        except SessionExpiredError:
            raise
        except KzConsumerError as error:
            return dict.fromkeys(existing, why_unknown(error))
        return log_ranges(starts, ends)

    async def _times(self, record_times: RecordTimes, groups: Mapping[str, ReadGroup], logs: Logs) -> None:
        """Look up records that are older than the first observation of their log, a few in each interval."""
        unknown = self.histories.age_unknown(groups, logs)
        self._written = {key: at for key, at in self._written.items() if key in unknown}
        self._asked = {key: at for key, at in self._asked.items() if key in unknown}
        known = {key for key, at in self._written.items() if isinstance(at, float)}
        askable = {key for key in unknown.difference(known) if isinstance(logs.get(key[0]), LogRange)}
        wanted = sorted(askable, key=lambda key: (self._asked.get(key, 0.0), key))
        positions = dict(wanted[:PARTITIONS_OF_REQUEST])
        if not positions:
            return
        found = await record_times.written(positions, within=TIMEOUT)
        self._asked.update(dict.fromkeys(positions.items(), now()))
        self._written.update(
            {(each, positions[each]): at / 1000 if isinstance(at, int) else at for each, at in found.items()}
        )

    async def take_reading(
        self,
        groups: Mapping[str, ReadGroup],
        existing: Sequence[TopicPartition],
        logs: Logs,
        took: float,
        unread: Collection[str],
        unreadable: Mapping[str, str],
    ) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in existing:
            topics.setdefault(topic, []).append(number)
        at, self._taken = time.time(), now()
        seen = {}
        for each in self.histories.look(groups, logs, self._written, at, unread=unread, steady=self._taken):
            seen[each.group] = each
            await anyio.lowlevel.checkpoint()  # of ten thousand groups this takes longer than a session
        ends = {partition: log.end for partition, log in logs.items() if isinstance(log, LogRange)}
        numbers = {topic: tuple(each) for topic, each in topics.items()}
        self.last = ExporterReading(at, took, seen, numbers, ends, unreadable)

    def _settle(self, error: KzConsumerError | None) -> None:
        self.failure = str(error) if error is not None else None
        self._settled = True
        if error is not None:
            log.info("reading the cluster failed", reason=self.failure)


async def _with_partitions(found: KafkaGroups, topics: Topics) -> tuple[dict[str, ReadGroup], KzConsumerError | None]:
    names = {name for group in found.groups.values() for name in group.topics}
    there = await topics.found(sorted(names), None)
    return {name: group.read(there) for name, group in found.groups.items()}, found.failure
