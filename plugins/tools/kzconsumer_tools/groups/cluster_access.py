"""Access to a cluster from outside any group: a short ZooKeeper session, requests to brokers, and groups as read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import msgspec

from kzconsumer.brokers.leaders import Leaders, LogOffsets, why_unknown
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import EARLIEST, LATEST, READ_UNCOMMITTED, ListedOffset
from kzconsumer.brokers.transport import load_security
from kzconsumer.clock import now
from kzconsumer.errors import BrokerError, BrokersUnreachableError, CoordinatorError, KzConsumerError, NotDoneError
from kzconsumer.fetcher.record_times import RecordTimes
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.group.membership import ConsumerRegistry, SnapshotReader
from kzconsumer.lag.partition import Why
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import ClusterMetadata, TopicIdentities, groups_for_guests
from kzconsumer.registry.cluster import LIMIT, short_session
from kzconsumer.registry.group_records import Registration, needs_all_topics, subscribed_topics
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, together
from kzconsumer_tools.cluster.cluster_reader import (
    cluster_from_brokers,
    cluster_of,
    controller_of,
    no_topic,
    require_cluster,
    topics_from_brokers,
    topics_of,
)
from kzconsumer_tools.cluster.description import ClusterDescription, TopicDescription
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupNodes, owner_of
from kzconsumer_tools.groups.group_reader import Topics, nodes_of, require_group, topics_now

# Seconds for each broker's response: below the limit of the session, so that an error names the broker.
TIMEOUT = 5.0

# Seconds of that limit that are left when brokers are asked no more. Several that do not answer, or one that is asked
# again, would use it up: what they say of logs and records is unknown then, and all else is shown.
LEFT = 3.0

OFFSETS_TOPIC = "__consumer_offsets"

# The version of a broker's registration from which on it coordinates groups: that of 0.9.
COORDINATES_FROM = 2


class ChosenCluster(Protocol):
    """`Settings`, and the cluster of a command line."""

    @property
    def zookeeper(self) -> ZooKeeperSettings: ...

    @property
    def brokers(self) -> BrokersSettings: ...

    @property
    def source(self) -> str: ...


class ClusterAccess:
    """Reads a cluster for one command. Commands do not know whether topics and brokers come from znodes or brokers."""

    def __init__(
        self,
        connect: str,
        session: ZooKeeperSession,
        metadata: ClusterMetadata,
        leaders: Leaders,
        log_offsets: LogOffsets,
        record_times: RecordTimes,
        coordinators: Callable[[str], GroupCoordinator],
        protocol: str,
        until: float,
    ) -> None:
        """`until` when (`kzconsumer.clock`) brokers are asked about logs and records."""
        self._connect = connect
        self._coordinators = coordinators
        self._protocol = protocol
        self._metadata = metadata
        self.session = session
        self._leaders = leaders
        self._log_offsets = log_offsets
        self._record_times = record_times
        self._until = until

    async def topics(self) -> Topics:
        """The topics as they are now. Raises BrokersUnreachableError."""
        return await topics_now(self.session, self._metadata, self._identities)

    async def cluster(self) -> ClusterDescription:
        """Raises NotFoundError if there is none, BrokersUnreachableError."""
        if await self._metadata.asks_brokers():
            return await cluster_from_brokers(self._metadata, self._protocol, await controller_of(self.session))
        await require_cluster(self.session, self._connect)
        return await cluster_of(self.session)

    async def described(self, topics: Sequence[str] | None) -> list[TopicDescription]:
        """The named topics, each once (None: all).

        Raises NotFoundError for a topic that does not exist, and as `cluster`.
        """
        if await self._metadata.asks_brokers():
            return await topics_from_brokers(self._metadata, topics)
        await require_cluster(self.session, self._connect)
        return await topics_of(self.session, topics)

    async def require_controller_in_zookeeper(self, tool: str) -> None:
        """Raises NotDoneError if no controller reads requests in ZooKeeper. `tool`: what to use, without brokers."""
        if not await self._metadata.asks_brokers():
            return
        controller = await controller_of(self.session)
        if controller is None or controller.kraft:
            name, _, options = tool.partition(" ")
            command = f"{name} --bootstrap-server {','.join(self._metadata.addresses)} {options}"
            raise NotDoneError(
                f"{self._connect}: no controller reads requests in ZooKeeper; use Kafka's own tool: {command}"
            )

    async def nodes(self, group: str) -> GroupNodes:
        """As `nodes_of`. Raises BrokersUnreachableError."""
        return await nodes_of(self.session, await self.topics(), group)

    async def partitions(self, topics: Collection[str]) -> dict[str, tuple[int, ...]]:
        """The partition numbers of the topics that exist. Raises NotDoneError for a topic that cannot be read."""
        return await _partitions(await self.topics(), topics)

    async def required(self, topics: Collection[str]) -> dict[str, tuple[int, ...]]:
        """As `partitions`; raises NotFoundError for a topic that does not exist."""
        there = await self.topics()
        found = await _partitions(there, topics)
        for topic in topics:
            if topic not in found:
                raise no_topic(topic, await there.names())
        return found

    async def identify(self, group: str, topics: Collection[str]) -> None:
        """Record in the group which topics these are, before offsets of them are stored, if brokers report topics.

        A member takes an offset that is older than this record for one of an earlier topic, and drops it.
        Raises NotDoneError if the brokers do not agree.
        """
        if not await self._metadata.asks_brokers():
            return
        described = {name: topic for name, topic in (await self._metadata.described(topics)).items() if topic.id}
        agreed = await self._metadata.agreed(described)
        for name, topic_id in agreed.items():
            if not topic_id:
                raise NotDoneError(f"the brokers report different topics {name}, try again; nothing was changed")
        identities = self._identities(group)
        await together([identities.incarnation(name, topic_id) for name, topic_id in agreed.items()])

    def _identities(self, group: str) -> TopicIdentities:
        return TopicIdentities(self.session, Watches(self.session), GroupPaths(group))

    def coordinator(self, group: str) -> GroupCoordinator:
        """The coordinator that stores the group's offsets."""
        return self._coordinators(group)

    async def known_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, WithBrokers | Why]:
        """The group's offsets in the brokers, of these partitions and of all others that the coordinator returns.

        Of one of `partitions` that cannot be read, why. Without the offsets topic brokers are not asked: the request
        alone would create it.
        """
        if not await self._has_offsets():
            return {}
        try:
            answers = await self.coordinator(group).seen(partitions)
        except CoordinatorError as error:
            if not partitions:
                raise
            last = error.__cause__
            reason = why_unknown(last if isinstance(last, KzConsumerError) else error).reason
            return dict.fromkeys(partitions, Why(reason, detail=str(error)))
        return {each: why_unknown(at) if isinstance(at, BrokerError) else at for each, at in answers.items()}

    async def coordinator_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, WithBrokers]:
        """As `known_offsets`. Raises CoordinatorError if one of `partitions` cannot be read."""
        found: dict[TopicPartition, WithBrokers] = {}
        for partition, at in (await self.known_offsets(group, partitions)).items():
            if isinstance(at, Why):
                raise CoordinatorError(at.detail)
            found[partition] = at
        return found

    async def kafka_members(self, group: str) -> tuple[str, ...] | None:
        """The members of the group of this name that brokers coordinate; None if a broker is of 0.8.

        Asks no broker without the offsets topic, as `coordinator_offsets`. Raises CoordinatorError.
        """
        registered = (await cluster_of(self.session)).brokers
        if any(broker.version is not None and broker.version < COORDINATES_FROM for broker in registered):
            return None
        return await self.coordinator(group).members() if await self._has_offsets() else ()

    async def _has_offsets(self) -> bool:
        return bool(await (await self.topics()).found([OFFSETS_TOPIC], None))

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        """The range of each log.

        Raises ConnectionLostError, BrokerError or BrokersUnreachableError without a leader's answer.
        """
        starts = await self._look_up(partitions, EARLIEST)
        ends = await self._look_up(partitions, LATEST)
        return {each: LogRange(starts[each].offset, ends[each].offset) for each in partitions}

    async def known_logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | Why]:
        """The range of each log, or why its leader did not answer at the first request."""
        if not partitions:
            return {}
        try:
            starts = await self._log_offsets.once(dict.fromkeys(partitions, EARLIEST), within=self._left)
            known = dict.fromkeys(answered(starts), LATEST)
            ends = await self._log_offsets.once(known, within=self._left) if known else {}
        except BrokersUnreachableError as error:
            return dict.fromkeys(partitions, why_unknown(_unreachable(self._connect, error)))
        except KzConsumerError as error:
            return dict.fromkeys(partitions, why_unknown(error))
        return log_ranges(starts, ends)

    async def written(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | Why]:
        """As `RecordTimes.written`."""
        return await self._record_times.written(positions, within=self._left)

    @property
    def _left(self) -> float:
        return max(0.0, self._until - now())

    def leaders(self) -> dict[TopicPartition, Broker]:
        """Of the partitions in the last question about logs, as far as they are known."""
        return {partition: leader for partition, leader in self._leaders.last.items() if isinstance(leader, Broker)}

    async def at_time(self, partitions: Collection[TopicPartition], ms: int) -> dict[TopicPartition, int | None]:
        """The first offset at or after a time, None if all records are older.

        Raises as `logs`, and UnsupportedVersionError for brokers before 0.10.1.
        """
        found = await self._look_up(partitions, ms)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def _look_up(self, partitions: Collection[TopicPartition], at: int) -> dict[TopicPartition, ListedOffset]:
        return await self._log_offsets.look_up(dict.fromkeys(partitions, at))


def answered(starts: Mapping[TopicPartition, ListedOffset | KzConsumerError]) -> list[TopicPartition]:
    """Those to ask for the end, too: a leader that did not answer would use up the time twice."""
    return [partition for partition, start in starts.items() if isinstance(start, ListedOffset)]


def log_ranges(
    starts: Mapping[TopicPartition, ListedOffset | KzConsumerError],
    ends: Mapping[TopicPartition, ListedOffset | KzConsumerError],
) -> dict[TopicPartition, LogRange | Why]:
    """Of the answers to two questions, the second one asked after the first, of what it has `answered`."""
    found: dict[TopicPartition, LogRange | Why] = {}
    for partition, start in starts.items():
        if isinstance(start, KzConsumerError):
            found[partition] = why_unknown(start)
        elif isinstance(end := ends[partition], KzConsumerError):
            found[partition] = why_unknown(end)
        else:
            found[partition] = LogRange(start.offset, end.offset)
    return found


async def _partitions(topics: Topics, names: Collection[str]) -> dict[str, tuple[int, ...]]:
    found = await topics.found(names, None)
    for name, topic in found.items():
        if topic.fault:
            raise NotDoneError(f"{paths.topic(name)}: {topic.fault}; nothing was changed")
        if topic.hidden:
            raise NotDoneError(f"topic {name}: an ACL of the brokers hides it from this user; nothing was changed")
    return {name: topic.partitions for name, topic in found.items()}


def _unreachable(connect: str, error: BrokersUnreachableError) -> BrokersUnreachableError:
    return BrokersUnreachableError(f"{connect}: no broker answers: {error}")


@asynccontextmanager
async def cluster_access(
    zookeeper: ZooKeeperSettings, brokers: BrokersSettings, source: str, group: str | None = None, more: float = 0.0
) -> AsyncIterator[ClusterAccess]:
    """`group`: the one that the command is about, if it is about one; `more`: seconds, as for `short_session`.

    Raises ZooKeeperUnreachableError if the block exceeds the session's limit, BrokersUnreachableError, ConfigError for
    unreadable keys.
    """
    security = partial(load_security, brokers, source)
    security()
    until = now() + LIMIT - LEFT + more
    async with (
        short_session(zookeeper, more) as session,
        Brokers(client_id="kzconsumer", timeout=TIMEOUT, security=security) as connections,
    ):
        metadata = metadata_of(session, Watches(session), brokers, connections, group)
        leaders = Leaders(metadata, connections, TIMEOUT)
        try:
            yield ClusterAccess(
                zookeeper.connect,
                session,
                metadata,
                leaders,
                LogOffsets(leaders, connections, TIMEOUT, READ_UNCOMMITTED),
                RecordTimes(leaders, connections, TIMEOUT),
                lambda name: GroupCoordinator(name, metadata, connections, TIMEOUT),
                brokers.security_protocol,
                until,
            )
        except BrokersUnreachableError as error:
            raise _unreachable(zookeeper.connect, error) from None


def metadata_of(
    session: ZooKeeperSession, watches: Watches, settings: BrokersSettings, pool: Brokers, group: str | None = None
) -> ClusterMetadata:
    """Asks brokers if members of the group would, and if none is registered, if members of any group would."""
    registered = NodeTopics(session, watches, settings)
    groups = groups_for_guests(registered, watches, group)
    return ClusterMetadata(registered, watches, settings, pool, TIMEOUT, groups)


async def read_nodes(chosen: ChosenCluster, group: str) -> GroupNodes:
    """All nodes of the group, and its topics. Raises NotFoundError if it does not exist, and as `cluster_access`."""
    async with cluster_access(chosen.zookeeper, chosen.brokers, chosen.source, group) as access:
        await require_group(access.session, chosen.zookeeper.connect, group)
        return await access.nodes(group)


# A group as its members read it, for previews. Raises where a member waits.

log = get_logger("kzconsumer.cli")


class LiveGroup(msgspec.Struct, frozen=True):
    """The present group, the group with the joining members, and partition -> owner node's text."""

    present: GroupSnapshot
    joined: GroupSnapshot
    owners: Mapping[TopicPartition, str]


Joining = Callable[[Mapping[str, Registration]], Mapping[str, Registration]]
"""The members that would join those that are present."""


async def read_group(settings: Settings, joining: Joining) -> LiveGroup:
    """Read the settings' group and the topics that the joining members would subscribe to.

    A group that does not exist has no members. Raises ZooKeeperUnreachableError after 15 s, BrokersUnreachableError,
    GroupUnreadableError for an unreadable registration unless the group ignores such members.
    """
    group = GroupPaths(settings.group.id)
    async with cluster_access(settings.zookeeper, settings.brokers, settings.source, settings.group.id) as access:
        session = access.session
        watches = Watches(session)
        reader = SnapshotReader(
            ConsumerRegistry(session, watches, group),
            NodeTopics(session, watches),
            watches,
            group,
            ignore_unreadable=settings.group.unreadable_members == "ignore",
        )
        present = await reader.members()
        joined = await _with_topics({**present, **joining(present)}, await access.topics(), settings.group.id)
        partitions = [TopicPartition(name, n) for name, topic in joined.topics.items() for n in topic.partitions]
        nodes = await together([session.find(group.owner(partition)) for partition in partitions])
    return LiveGroup(
        present=GroupSnapshot(present, joined.all_topics, joined.topics),
        joined=joined,
        owners={each: owner_of(node) for each, node in zip(partitions, nodes, strict=True) if node is not None},
    )


async def _with_topics(members: Mapping[str, Registration], topics: Topics, group: str) -> GroupSnapshot:
    all_topics = tuple(await topics.names()) if needs_all_topics(members) else ()
    found = await topics.found(subscribed_topics(members, all_topics), group)
    for name, topic in found.items():
        if topic.fault:
            log.error("topic node unreadable", path=paths.topic(name), reason=topic.fault)
    usable = {name: Topic(topic.partitions, topic.incarnation or 0) for name, topic in found.items() if not topic.fault}
    return GroupSnapshot(members, all_topics, usable)
