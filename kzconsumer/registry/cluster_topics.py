"""Topics and brokers of a member's cluster: from its znodes, or from Metadata requests where it has no ZooKeeper.

Once a migration to KRaft is announced, every member asks brokers, and keeps their addresses for members that start when
the cluster's nodes are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import anyio
import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import TopicMetadata
from kzconsumer.errors import (
    BadVersionError,
    ConnectionLostError,
    KzConsumerError,
    NodeExistsError,
    NoNodeError,
    NotFoundError,
    ZooKeeperError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.registry.group_records import (
    TOPIC_RECORD_VERSION,
    TopicRecord,
    decode_topic_record,
    incarnation_of,
    last_incarnation,
)
from kzconsumer.registry.nodes import Topic, TopicIdentity, read_object
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.topics import ClusterMetadata, NodeTopics, TopicSource, existing, groups_for_guests
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import nearest
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, together

# Topic ids get their incarnations here, which the group keeps (`group_records.TopicRecord`).


class TopicIdentities:
    """Of one group, on one session."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, group: GroupPaths) -> None:
        self._session = session
        self._watches = watches
        self._group = group

    async def recorded(self) -> list[str]:
        """The names of the topics whose ids are recorded."""
        try:
            return await self._session.children(self._group.topics)
        except NoNodeError:
            return []

    async def knows(self, topic: str, topic_id: str) -> bool:
        """Whether the id is recorded, as the present or a former one. Raises as `incarnation`."""
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            return node is not None and topic_id in decode_topic_record(node.data).ids
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def incarnation(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic; None if the id is an earlier topic's, from a broker that lags behind.

        Raises ZooKeeperError if the record is unreadable.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            while True:
                if node is not None:
                    try:
                        return incarnation_of(node, topic_id)
                    except LookupError:
                        pass
                await self._record(topic, topic_id, node)
                node = await self._session.find(path)
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def known(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic if it is one that the group has consumed, or may have. Records nothing.

        None for an id that would get a new incarnation, and for a former one. An empty id is that of a topic without
        (`TopicMetadata`). Raises as `incarnation`.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            if node is not None:
                return incarnation_of(node, topic_id) if topic_id else last_incarnation(node)
            before = await self._known_before(topic, topic_id)
        except LookupError:
            return None
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error
        return int(before, 16) if before else None

    async def last(self, topic: str) -> TopicIdentity | None:
        """Of the topic that was seen last; None if there was none. Raises as `incarnation`."""
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            if node is None:
                return None
            return TopicIdentity(last_incarnation(node), decode_topic_record(node.data).ids[-1])
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def _record(self, topic: str, topic_id: str, before: Node | None) -> None:
        """Write the id, unless another member has written meanwhile."""
        # Several members may see a new topic at once, and all have to call it by one incarnation, that of the node's
        # change. So the node is written at the version that was read, or created, by one of them. A member that
        # comes second, or does not know whether it came first, reads it again (`incarnation`) and finds its id there.
        path = self._group.topic(topic)
        try:
            if before is not None:
                record = decode_topic_record(before.data).followed_by(topic_id)
                await self._session.set(path, msgspec.json.encode(record), before.stat.version)
            else:
                record = TopicRecord(TOPIC_RECORD_VERSION, (topic_id,), await self._known_before(topic, topic_id))
                await self._session.ensure(self._group.topics)
                await self._session.create(path, msgspec.json.encode(record))
        except (BadVersionError, NodeExistsError, NoNodeError, ConnectionLostError):
            await self._session.sync(path)

    async def _known_before(self, topic: str, topic_id: str) -> str:
        """The incarnation by which members know the topic that read its node, or did; empty if there are none."""
        await self._session.sync(paths.topic(topic))
        node = await self._session.find(paths.topic(topic))
        if node is not None:
            known = read_object(node.data).get("topic_id")
            return f"{node.stat.czxid:#x}" if known in (None, topic_id) else ""
        # The cluster's nodes are gone. Nothing says that this is another topic than the one that was consumed.
        # Partitions that no member has claimed since an earlier recreation have records of an earlier topic.
        _, offsets, claims = self._group.containers(topic)
        if incarnations := [int(decode_claim_record(node.data).incarnation, 16) for node in await self._in(claims)]:
            return f"{max(incarnations):#x}"
        # Nor of offsets that members of other kinds have stored.
        stored = [node.stat.mzxid for node in await self._in(offsets)]
        return f"{min(stored):#x}" if stored else ""

    async def _in(self, container: str) -> list[Node]:
        try:
            names = await self._session.children(container)
        except NoNodeError:
            return []
        nodes = await together([self._session.find(f"{container}/{name}") for name in names])
        return [node for node in nodes if node is not None]


log = get_logger("kzconsumer.zookeeper")

CERTAIN = 3.0
"""Seconds between two answers that a topic is gone: a topic that has just been created is not known to every broker."""

_Shape = tuple[str, int]
"""A topic's id and its number of partitions."""


def other_topics(name: str, there: Collection[str]) -> str:
    """A hint for the error about a topic `name` that is not `there`."""
    if not there:
        return "the cluster has no topics: check the chroot of [zookeeper] connect"
    close = nearest(name, there)
    return f"did you mean {close}?" if close else f"there are {', '.join(sorted(there)[:5])}"


class BrokerTopics:
    """Topics and brokers from Metadata requests, which ClusterTopics repeats: they cannot be watched.

    The group records the ids of its topics; a topic's incarnation is that of its id.
    """

    def __init__(self, metadata: ClusterMetadata, identities: TopicIdentities, nodes: NodeTopics) -> None:
        self._metadata = metadata
        self._identities = identities
        self._nodes = nodes
        self._kept: tuple[str, ...] = ()  # topics of the last identities that no broker has reported
        self._every_topic: frozenset[str] | None = None  # as last read, if the group needs them
        self._read: dict[str, _Shape | None] = {}  # the topics last read; None: missing, or not yet identified

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        described = await self._metadata.described(names)
        found = await self._identified(described)
        self._read = {name: _shape(described[name]) if name in found else None for name in names}
        return found

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        described = await self._metadata.described(names)
        return {name: tuple(sorted(topic.partitions)) for name, topic in described.items()}

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        found = await self._metadata.described(sorted({partition.topic for partition in partitions}))
        for topic, number in partitions:
            if topic not in found:
                raise NotFoundError(f"there is no topic {topic}")
            if number not in (there := found[topic].partitions):
                raise NotFoundError(f"topic {topic} has {len(there)} partitions, and no number {number}")

    async def all_topics(self) -> list[str]:
        self._every_topic = frozenset(existing(await self._metadata.ask(None)))
        return sorted(self._every_topic)

    async def broker_ids(self) -> list[int]:
        return sorted((await self._metadata.ask(())).brokers)

    async def brokers(self) -> list[Broker]:
        return await self._metadata.brokers()

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        return {name: found.incarnation for name, found in (await self.identities(topics)).items()}

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        described = await self._metadata.described(names)
        known = await together([self._identities.known(name, topic.id) for name, topic in described.items()])
        return {name: found for name, found in zip(described, known, strict=True) if found is not None}

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        names = list(topics)
        described = await self._metadata.described(names)
        found = await self._identified(described)
        # Brokers that do not know a topic may have just started: its offsets stay until another is reported.
        missing = [name for name in names if name not in found]
        last = await together([self._last(name) for name in missing])
        kept = {name: identity for name, identity in zip(missing, last, strict=True) if identity is not None}
        self._kept = tuple(kept)
        return kept | {name: TopicIdentity(topic.incarnation, described[name].id) for name, topic in found.items()}

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        described = await self._metadata.described(list(topics))
        return {name: topic.id for name, topic in described.items() if topic.id}

    async def deleted(self) -> set[str]:
        if unknown := await self._metadata.unknown_to_all(self._kept):
            await anyio.sleep(CERTAIN)
        return await self._metadata.unknown_to_all(unknown)

    async def cluster_id(self) -> str:
        return (await self._metadata.ask(())).cluster_id or ""

    async def changes(self) -> list[str]:
        """Ask again for the topics that were read: what has changed since, as watches would notify it."""
        found = existing(await self._metadata.ask(None if self._every_topic is not None else tuple(self._read)))
        changed = ["topics"] if self._every_topic is not None and self._every_topic != found.keys() else []
        for name, shape in self._read.items():
            if (_shape(found[name]) if name in found else None) != shape:
                changed.append(f"topic {name}")
        return changed

    async def _identified(self, described: Mapping[str, TopicMetadata]) -> dict[str, Topic]:
        """Without topics whose id is a former one, or is new and not yet what most brokers report."""
        with_id = [name for name, topic in described.items() if topic.id]
        known = await together([self._identities.knows(name, described[name].id) for name in with_id])
        agreed = await self._metadata.agreed(
            [name for name, is_known in zip(with_id, known, strict=True) if not is_known]
        )
        usable = {name: topic for (name, topic) in described.items() if name not in agreed or agreed[name] == topic.id}
        found = await together([self._incarnation(name, topic.id) for name, topic in usable.items()])
        return {
            name: Topic(tuple(sorted(topic.partitions)), incarnation)
            for (name, topic), incarnation in zip(usable.items(), found, strict=True)
            if incarnation is not None
        }

    async def _incarnation(self, name: str, topic_id: str) -> int | None:
        if topic_id:
            return await self._identities.incarnation(name, topic_id)
        # Brokers whose inter.broker.protocol.version is below 2.8 have no ids: there the topic has a node.
        last = await self._last(name)
        if last is None:
            reason = "brokers report the topic without an id: that needs Kafka 2.8 or later"
            raise ZooKeeperError(paths.topic(name), reason)
        return last.incarnation

    async def _last(self, name: str) -> TopicIdentity | None:
        """Of the topic that was seen last, or has a node."""
        return await self._identities.last(name) or (await self._nodes.identities([name])).get(name)


class ClusterTopics:
    """The source that counts: znodes, until the group knows addresses of brokers to ask instead.

    `notify` is called when `poll` finds that topics have changed since they were read. A reader that is no member
    (`guest`) keeps no addresses, and uses those of any group if no broker is registered.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        watches: Watches,
        settings: Settings,
        brokers: Brokers,
        notify: Callable[[str], None] = lambda reason: None,
        *,
        guest: bool = False,
    ) -> None:
        async def own_group() -> Iterable[str]:
            return (settings.group.id,)

        self._session = session
        self._nodes = nodes = NodeTopics(session, watches, settings.brokers)
        groups = groups_for_guests(nodes, watches, settings.group.id) if guest else own_group
        timeout = settings.fetch.request_timeout
        self._metadata = ClusterMetadata(nodes, watches, settings.brokers, brokers, timeout, groups)
        self._group = GroupPaths(settings.group.id)
        self._identities = TopicIdentities(session, watches, self._group)
        self._reported = BrokerTopics(self._metadata, self._identities, nodes)
        self._interval = settings.brokers.metadata_interval
        self._notify = notify
        self._guest = guest
        self._configured = bool(settings.brokers.bootstrap)  # the group's node need not have them

    async def _source(self) -> TopicSource:
        return self._reported if await self.asks_brokers() else self._nodes

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        return await (await self._source()).topics(names)

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        return await (await self._source()).partitions(names)

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        await (await self._source()).require(partitions)

    async def all_topics(self) -> list[str]:
        return await (await self._source()).all_topics()

    async def broker_ids(self) -> list[int]:
        return await (await self._source()).broker_ids()

    async def brokers(self) -> list[Broker]:
        return await (await self._source()).brokers()

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        return await (await self._source()).incarnations(topics)

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        return await (await self._source()).known_incarnations(names)

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        return await (await self._source()).identities(topics)

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return await (await self._source()).ids(topics)

    async def deleted(self) -> set[str]:
        return await self._reported.deleted()  # znodes say so by themselves

    async def cluster_id(self) -> str:
        return await (await self._source()).cluster_id()

    @property
    def unusable(self) -> Mapping[int, str]:
        """Why registered brokers were left out of the last `brokers()`, by id."""
        return self._nodes.unusable

    async def are_of_the_group(self) -> bool:
        """Whether one of them is a topic that the group has consumed: the brokers are not those of another cluster."""
        return bool(await self.known_incarnations(await self._identities.recorded()))

    async def poll(self) -> None:
        """Ask for the topics that were read, again and again, and notify if they have changed.

        Until brokers are asked, watches notify.
        """
        while True:
            await anyio.sleep(self._interval)
            try:
                if self._metadata.addresses:
                    await self._compare()
            except KzConsumerError as error:
                log.info("metadata unavailable", reason=str(error), again=True)

    async def asks_brokers(self) -> bool:
        """Whether topics come from brokers: once they do, they always do."""
        asks = await self._metadata.asks_brokers()
        if self._metadata.announced and not self._guest:
            found = self._metadata.addresses
            await self._keep(found)
            if self._metadata.announced:
                self._metadata.announced = False
                log.info(
                    "migration to KRaft: topics and brokers come from Metadata requests from now on", brokers=found
                )
        return asks

    async def _keep(self, addresses: tuple[str, ...]) -> None:
        """For members that start when the cluster's nodes are gone."""
        data = msgspec.json.encode(addresses)
        await self._session.ensure(self._group.root)
        try:
            await self._session.create(self._group.brokers, data)
        except NodeExistsError:
            await self._session.set(self._group.brokers, data, -1)

    async def _compare(self) -> None:
        for reason in await self._reported.changes():
            self._notify(reason)
        known = tuple(f"{broker.host}:{broker.port}" for broker in self._metadata.known.values())
        if not self._configured and set(known) != set(self._metadata.addresses):
            await self._keep(known)
            self._metadata.addresses = known


def _shape(topic: TopicMetadata) -> _Shape:
    return topic.id, len(topic.partitions)
