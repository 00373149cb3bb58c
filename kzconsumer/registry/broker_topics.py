"""Topics and brokers from Metadata requests, and the incarnations of topic ids, which a group keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

import anyio
import msgspec

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest, MetadataResponse, TopicMetadata
from kzconsumer.brokers.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from kzconsumer.brokers.protocol.primitives import Request
from kzconsumer.brokers.protocol.versions import DESCRIBE_QUORUM
from kzconsumer.errors import (
    BadVersionError,
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    NodeExistsError,
    NoNodeError,
    NotFoundError,
    ZooKeeperError,
)
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
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.nodes import (
    Topic,
    TopicIdentity,
    read_json,
    read_object,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.settings.value_readers import host_and_port
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, together

# Metadata requests need addresses to begin with: `[brokers] bootstrap`, those that a member of the group has kept in
# `/consumers/<group>/brokers`, or those of the registered brokers once a migration to KRaft is announced.

R = TypeVar("R")


class ClusterMetadata:
    """Only reads, on one session. `timeout` is for each broker's response, in seconds."""

    def __init__(
        self,
        registered: NodeTopics,
        watches: Watches,
        settings: BrokersSettings,
        pool: Brokers,
        timeout: float,
        groups: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        """`registered` reads the cluster's znodes; `groups` returns the groups whose kept addresses count."""
        self._registered = registered
        self._watches = watches
        self._pool = pool
        self._timeout = timeout
        self._groups = groups
        self._leaders = Leaders(self, pool, timeout)
        self.addresses = settings.bootstrap
        """Where to begin, as `host:port`; empty as long as topics and brokers come from znodes."""
        self.announced = False
        """The addresses are those of brokers that were registered when a migration was found."""
        self.known: Mapping[int, Broker] = {}
        """The brokers in the last response, by id."""

    async def asks_brokers(self) -> bool:
        """Whether topics and brokers come from Metadata requests: once they do, they always do."""
        if not self.addresses:
            found, announced = await self._find()
            if not self.addresses:
                self.addresses, self.announced = found, announced
        return bool(self.addresses)

    def announcement_kept(self) -> bool:
        """The group has kept the announced addresses. False if it had before."""
        announced, self.announced = self.announced, False
        return announced

    def begin_at(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses

    async def _find(self) -> tuple[tuple[str, ...], bool]:
        fault: ZooKeeperError | None = None
        for group in await self._groups():
            try:
                if kept := await self._kept_by(GroupPaths(group)):
                    return kept, False
            except ZooKeeperError as error:  # another group may have an ACL that keeps a reader out
                fault = fault or error
        if fault is not None:
            raise fault
        if await self._watches.exists(paths.MIGRATION, "migration") is None:
            return (), False
        found = tuple(f"{broker.host}:{broker.port}" for broker in await self._registered.brokers())
        return found, bool(found)

    async def _kept_by(self, group: GroupPaths) -> tuple[str, ...]:
        node = await self._watches.data(group.brokers, "brokers")
        try:
            kept = read_json(node.data, tuple[str, ...]) if node is not None else ()
            if not all(host and port for host, port in map(host_and_port, kept)):
                raise ValueError("not a list of hosts and ports")
            return kept
        except ValueError as error:
            raise ZooKeeperError(group.brokers, str(error)) from error

    async def brokers(self) -> list[Broker]:
        """The known brokers, and the addresses to begin with, which have negative ids; else the registered brokers."""
        if not await self.asks_brokers():
            return await self._registered.brokers()
        known = list(self.known.values())
        there = {(broker.host, broker.port) for broker in known}
        cluster = known[0].cluster if known else ""
        first = [(-number, *host_and_port(each)) for number, each in enumerate(self.addresses, 1)]
        return [*known, *(Broker(*each, cluster) for each in first if each[1:] not in there)]

    @property
    def unusable(self) -> Mapping[int, str]:
        return self._registered.unusable

    async def request(self, request: Request[R], of: Broker | None = None) -> R:
        """The answer of that broker, which raises as `BrokerConnection.call`, or of any.

        Raises BrokersUnreachableError if none answers, or knows such a request.
        """
        if of is None:
            return await self._leaders.ask(request)
        connection = await self._pool.connection(of, "control")
        return await connection.call(request, timeout=self._timeout)

    async def ask(self, topics: tuple[str, ...] | None, *, replicas: bool = False) -> MetadataResponse:
        """As `MetadataRequest`. Raises BrokersUnreachableError if no broker answers."""
        answer = await self.request(MetadataRequest(topics, replicas))
        if not answer.brokers:  # it has just started, and knows no topic either
            raise BrokersUnreachableError("a broker answered that knows no broker yet")
        self.known = answer.brokers
        return answer

    async def described(self, names: Collection[str], *, replicas: bool = False) -> dict[str, TopicMetadata]:
        """Those topics that exist. One is only missing if every broker that answers says so. Raises as `ask`."""
        if not names:
            return {}
        found = existing(await self.ask(tuple(names), replicas=replicas))
        for broker in self.known.values():
            missing = tuple(name for name in names if name not in found)
            if not missing:
                break
            found |= existing(await self._answer_of(broker, missing, replicas))
        return found

    async def hidden(self, names: Collection[str]) -> set[str]:
        """Those that this user may not describe: whether they exist is not known. Raises as `ask`."""
        answer = await self.ask(tuple(names)) if names else MetadataResponse({}, {})
        return {name for name, topic in answer.topics.items() if topic.error == TOPIC_AUTHORIZATION_FAILED}

    async def agreed(self, names: Collection[str]) -> dict[str, str]:
        """The id that most of the brokers report that know the topic; empty if there is none.

        A former id that a stale broker reports would hide the topic for ever, once it is recorded as the present one.
        """
        votes: dict[str, Counter[str]] = {name: Counter() for name in names}
        for broker in self.known.values() if names else ():
            for name, topic in existing(await self._answer_of(broker, tuple(names))).items():
                votes[name][topic.id] += 1
        return {name: _majority(found) for name, found in votes.items()}

    async def unknown_to_all(self, names: Collection[str]) -> set[str]:
        """Topics that no broker of a cluster in KRaft mode knows; none unless every broker answers that one names.

        What each knows is a prefix of one log, and a broker that starts reads the log before it answers. So one that
        has known a topic, and knows it no more, has read that it was deleted. In ZooKeeper mode brokers begin with
        nothing.
        """
        unknown, asked = set(names), set[Broker]()
        waiting = set((await self.ask(())).brokers.values()) if unknown else set()
        while unknown and waiting:
            broker = waiting.pop()
            asked.add(broker)
            try:
                connection = await self._pool.connection(broker, "control")
                if DESCRIBE_QUORUM not in connection.versions.ranges:
                    return set()
                answer = await connection.call(MetadataRequest(tuple(sorted(unknown))), timeout=self._timeout)
            except KzConsumerError:
                return set()
            reported = {name for name, topic in answer.topics.items() if topic.error == UNKNOWN_TOPIC_OR_PARTITION}
            unknown &= reported
            waiting |= set(answer.brokers.values()) - asked
        return unknown

    async def _answer_of(self, broker: Broker, names: tuple[str, ...], replicas: bool = False) -> MetadataResponse:
        """Without topics if it does not answer."""
        try:
            return await self.request(MetadataRequest(names, replicas), broker)
        except KzConsumerError:
            return MetadataResponse({}, {})


def groups_for_guests(
    registered: NodeTopics, watches: Watches, group: str | None
) -> Callable[[], Awaitable[Iterable[str]]]:
    """For a reader that is no member: the group that it reads for, if any. All groups if no broker is registered."""

    async def groups() -> list[str]:
        own = [group] if group is not None else []
        return own if await registered.broker_ids() else own + await watches.children(paths.CONSUMERS, "groups")

    return groups


def existing(answer: MetadataResponse) -> dict[str, TopicMetadata]:
    return {name: topic for name, topic in answer.topics.items() if topic.partitions and not topic.error}


def _majority(votes: Counter[str]) -> str:
    return next((topic_id for topic_id, number in votes.items() if 2 * number > votes.total()), "")


# Topic ids get their incarnations here, which the group keeps (`group_records.TopicRecord`).


@contextmanager
def _decoding(path: str) -> Iterator[None]:
    """Raises ZooKeeperError for a node of which the block decodes the content."""
    try:
        yield
    except ValueError as error:
        raise ZooKeeperError(path, str(error)) from error


class WatchedReads(Protocol):
    """See `Watches.data`."""

    async def data(self, path: str, reason: str) -> Node | None: ...


class TopicIdentities:
    """Of one group, on one session."""

    def __init__(self, session: ZooKeeperSession, watches: WatchedReads, group: GroupPaths) -> None:
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
        with _decoding(path):
            return node is not None and topic_id in decode_topic_record(node.data).ids

    async def incarnation(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic; None if the id is an earlier topic's, from a broker that lags behind.

        Raises ZooKeeperError if the record is unreadable, or what the incarnation of a first one is taken from.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        while True:
            if node is not None:
                with suppress(LookupError), _decoding(path):
                    return incarnation_of(node, topic_id)
            await self._record(topic, topic_id, node)
            node = await self._session.find(path)

    async def known(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic if it is one that the group has consumed, or may have. Records nothing.

        None for an id that would get a new incarnation, and for a former one. An empty id is that of a topic without
        (`TopicMetadata`). Raises as `incarnation`.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        if node is not None:
            with suppress(LookupError), _decoding(path):
                return incarnation_of(node, topic_id) if topic_id else last_incarnation(node)
            return None
        before = await self._known_before(topic, topic_id)
        return int(before, 16) if before else None

    async def last(self, topic: str) -> TopicIdentity | None:
        """Of the topic that was seen last; None if there was none. Raises as `incarnation`."""
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        if node is None:
            return None
        with _decoding(path):
            return TopicIdentity(last_incarnation(node), decode_topic_record(node.data).ids[-1])

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
            with _decoding(paths.topic(topic)):
                known = read_object(node.data).get("topic_id")
            return f"{node.stat.czxid:#x}" if known in (None, topic_id) else ""
        # The cluster's nodes are gone. Nothing says that this is another topic than the one that was consumed.
        # Partitions that no member has claimed since an earlier recreation have records of an earlier topic.
        _, offsets, claims = self._group.containers(topic)
        incarnations, unreadable = list[int](), list[ZooKeeperError]()
        for path, node in (await self._in(claims)).items():
            try:
                with _decoding(path):
                    incarnations.append(int(decode_claim_record(node.data).incarnation, 16))
            except ZooKeeperError as error:  # a newer version may have written it: its partition is not consumed
                unreadable.append(error)
        if incarnations:
            return f"{max(incarnations):#x}"
        if unreadable:
            raise unreadable[0]
        # Nor of offsets that members of other kinds have stored.
        stored = [node.stat.mzxid for node in (await self._in(offsets)).values()]
        return f"{min(stored):#x}" if stored else ""

    async def _in(self, container: str) -> dict[str, Node]:
        """By path."""
        try:
            found = [f"{container}/{name}" for name in await self._session.children(container)]
        except NoNodeError:
            return {}
        nodes = await together([self._session.find(path) for path in found])
        return {path: node for path, node in zip(found, nodes, strict=True) if node is not None}


CERTAIN = 3.0
"""Seconds between two answers that a topic is gone: a topic that has just been created is not known to every broker."""

_Shape = tuple[str, int]
"""A topic's id and its number of partitions."""


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

    async def has_cluster(self) -> bool:
        return bool(await self.broker_ids())

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


def _shape(topic: TopicMetadata) -> _Shape:
    return topic.id, len(topic.partitions)
