"""Follows every group of a cluster: reads it at intervals, over one ZooKeeper session after the other."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import anyio
import msgspec

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.log_offsets import LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.fetch import READ_UNCOMMITTED
from kzconsumer.brokers.protocol.list_offsets import LATEST, ListedOffset
from kzconsumer.brokers.security import load_security
from kzconsumer.clock import now
from kzconsumer.errors import KzConsumerError, NotFoundError, SessionExpiredError
from kzconsumer.fetcher.record_times import PARTITIONS_OF_REQUEST, RecordTimes
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.sessions import open_session
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.exporter.kafka_groups import KafkaGroups, certain, merged, read_kafka_groups
from kzconsumer_tools.exporter.nodes import WatchedNodes
from kzconsumer_tools.exporter.pictures import Histories, ReadGroup, SeenGroup, group_of_nodes
from kzconsumer_tools.groups.cluster_access import metadata_of
from kzconsumer_tools.groups.reader import NO_CLUSTER, nodes_of
from kzconsumer_tools.groups.topics import Topics, topics_now
from kzconsumer_tools.paths import BROKERS

log = get_logger("kzconsumer.exporter")

#: Seconds for each response of a broker.
TIMEOUT = 5.0
#: Intervals for which a reading is reported, and the seconds more that brokers without an answer may delay the next.
VALID = 3
DELAY = 2 * TIMEOUT


class Reading(msgspec.Struct, frozen=True):
    """`at`: seconds since 1970; `took`: seconds; `ends`: those that are known; `topics`: with the partitions' numbers,
    those that a group reads."""

    at: float
    took: float
    groups: Mapping[str, SeenGroup]
    topics: Mapping[str, tuple[int, ...]]
    ends: Mapping[TopicPartition, int]


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
    ) -> None:
        """`kafka_groups`: with the groups that brokers coordinate."""
        self.cluster = cluster
        self.interval = interval
        self.stalled_after = stalled_after
        self.connect = settings.zookeeper.connect
        self.failure: str | None = "nothing has been read yet"
        """Why the last reading failed, or why ends are missing in it."""
        self._settings = settings
        self._kafka_groups = kafka_groups
        self._session: ZooKeeperSession | None = None
        self._histories = Histories(interval)
        self._last: Reading | None = None
        self._known: set[str] = set()
        self._with_brokers: frozenset[str] = frozenset()
        self._written: dict[tuple[TopicPartition, int], float] = {}
        self._asked: dict[tuple[TopicPartition, int], float] = {}

    @property
    def present(self) -> Reading | None:
        """The last reading; None if it is too old."""
        last = self._last
        return last if last is not None and time.time() - last.at <= VALID * self.interval + DELAY else None

    @property
    def absence(self) -> str:
        """Why there is no present reading."""
        refusals = self._session.refusals if self._session is not None else ()
        return f"{self.connect}: {'; '.join(refusals) or self.failure or 'ZooKeeper does not answer'}"

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
        metadata = metadata_of(session, nodes.watches, self._settings.brokers, brokers)
        leaders = Leaders(metadata, brokers, TIMEOUT)
        log_offsets = LogOffsets(leaders, brokers, TIMEOUT, READ_UNCOMMITTED)
        record_times = RecordTimes(leaders, brokers, TIMEOUT)
        while True:
            began = now()
            try:
                await session.sync()  # without an answer, what is known may be out of date
                topics = await topics_now(nodes, metadata)
                groups = await self._groups(nodes, topics)
                failure: KzConsumerError | None = None
                unread: set[str] = set()
                if self._kafka_groups:
                    found = await read_kafka_groups(metadata, topics, brokers, TIMEOUT)
                    kafka, failure = await _with_partitions(found, topics)
                    groups = merged(groups, kafka)
                    if failure is None:
                        self._with_brokers = frozenset(kafka)
                    else:
                        self._with_brokers |= kafka.keys()
                        unread = {*groups, *self._with_brokers}
                        groups = certain(groups, kafka, self._with_brokers)
                        unread.difference_update(groups)
                existing = sorted({each for group in groups.values() for each in group.existing})
                ends, unknown = await self._ends(log_offsets, existing)
                await self._times(record_times, groups, ends)
                self._look(groups, existing, ends, now() - began, unread)
                self._settle(failure or unknown)
            except SessionExpiredError:
                raise
            except KzConsumerError as error:
                self._settle(error)
            await anyio.sleep(max(0.1, self.interval - (now() - began)))

    async def _groups(self, nodes: WatchedNodes, topics: Topics) -> dict[str, ReadGroup]:
        names = await nodes.children(paths.CONSUMERS)
        there = names or topics.from_brokers
        if not there and not [path for path in (paths.CONSUMERS, BROKERS) if await nodes.find(path) is not None]:
            raise NotFoundError(NO_CLUSTER)
        for group in self._known.difference(names):
            nodes.forget(group)
        self._known = set(names)
        return {group: group_of_nodes(await nodes_of(nodes, topics, group)) for group in names}

    async def _ends(
        self, log_offsets: LogOffsets, existing: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], KzConsumerError | None]:
        """Those that are known, and why one is not.

        Only partitions that exist are asked for: old brokers create a topic that is named.
        """
        if not existing:
            return {}, None
        try:
            found = await log_offsets.once(dict.fromkeys(existing, LATEST))
        except SessionExpiredError:
            raise
        except KzConsumerError as error:
            return {}, error
        missing = next((each for each in found.values() if not isinstance(each, ListedOffset)), None)
        return {partition: at.offset for partition, at in found.items() if isinstance(at, ListedOffset)}, missing

    async def _times(
        self, record_times: RecordTimes, groups: Mapping[str, ReadGroup], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Look up records that are older than the first observation of their log, a few in each interval."""
        unknown = self._histories.age_unknown(groups, ends)
        self._written = {key: at for key, at in self._written.items() if key in unknown}
        self._asked = {key: at for key, at in self._asked.items() if key in unknown}
        wanted = sorted(unknown.difference(self._written), key=lambda key: (self._asked.get(key, 0.0), key))
        positions = dict(wanted[:PARTITIONS_OF_REQUEST])
        if not positions:
            return
        found = await record_times.written(positions, within=TIMEOUT)
        self._asked.update(dict.fromkeys(positions.items(), now()))
        self._written.update({(each, positions[each]): at / 1000 for each, at in found.items() if isinstance(at, int)})

    def _look(
        self,
        groups: Mapping[str, ReadGroup],
        existing: Sequence[TopicPartition],
        ends: Mapping[TopicPartition, int],
        took: float,
        unread: Collection[str],
    ) -> None:
        topics: dict[str, list[int]] = {}
        for topic, number in existing:
            topics.setdefault(topic, []).append(number)
        at = time.time()
        seen = self._histories.look(groups, ends, self._written, at, unread=unread)
        self._last = Reading(at, took, seen, {topic: tuple(each) for topic, each in topics.items()}, ends)

    def _settle(self, error: KzConsumerError | None) -> None:
        self.failure = str(error) if error is not None else None
        if error is not None:
            log.info("reading the cluster failed", reason=self.failure)


async def _with_partitions(found: KafkaGroups, topics: Topics) -> tuple[dict[str, ReadGroup], KzConsumerError | None]:
    names = {name for group in found.groups.values() for name in group.topics}
    there = await topics.found(sorted(names), None)
    existing = {
        name: [
            TopicPartition(each, number)
            for each in sorted(group.topics)
            if each in there
            for number in there[each].partitions
        ]
        for name, group in found.groups.items()
    }
    return {name: group.read(existing[name]) for name, group in found.groups.items()}, found.failure
