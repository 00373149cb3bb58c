"""Topics and brokers: as registered in ZooKeeper, or from Metadata requests; and which of the two counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, TypeVar

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataRequest, MetadataResponse, TopicMetadata
from kzconsumer.brokers.protocol.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from kzconsumer.brokers.protocol.primitives import Request
from kzconsumer.brokers.protocol.versions import DESCRIBE_QUORUM
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError, NoNodeError, NotFoundError, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.nodes import (
    Topic,
    TopicIdentity,
    choose,
    decode_cluster_id,
    decode_listeners,
    decode_topic,
    decode_topic_id,
    read_json,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.settings.values import host_and_port
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, together

log = get_logger("kzconsumer.zookeeper")

_PLAINTEXT = BrokersSettings()


class TopicSource(Protocol):
    """Where topics and brokers are known from: znodes, Metadata requests, or whichever of the two counts.

    A topic's incarnation tells it from a former topic of its name. All raise ZooKeeperError for an unreadable node and
    ConnectionLostError; those that ask brokers raise BrokersUnreachableError if none answers.
    """

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        """Those of the named topics that exist. A change is notified as `topic <name>`."""
        ...

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """The partition numbers of those topics that exist, ascending. Records nothing."""
        ...

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        """Raises NotFoundError if one does not exist. A topic whose node is unreadable may have it."""
        ...

    async def all_topics(self) -> list[str]:
        """The names of all topics. A change is notified as `topics`."""
        ...

    async def broker_ids(self) -> list[int]:
        """The ids of the brokers that are up. None is no error, since brokers may be starting."""
        ...

    async def brokers(self) -> list[Broker]:
        """The brokers to connect to, each at the configured listener."""
        ...

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        """The incarnations of those topics that exist, readable or not."""
        ...

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        """Of those topics that the group has consumed, or may have. Records nothing, unlike `incarnations`."""
        ...

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        """Of those topics that exist, readable or not; both parts are of the same topic."""
        ...

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Of those topics that have one, in base64. Records nothing, unlike `identities`."""
        ...

    async def deleted(self) -> set[str]:
        """Topics that the last call of `identities` or `incarnations` has returned although they are deleted."""
        ...

    async def cluster_id(self) -> str:
        """The cluster's id; empty before 0.10.1."""
        ...


class NodeTopics:
    """Topics and brokers as registered below `/brokers`, read on one session; watches notify."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, settings: BrokersSettings = _PLAINTEXT) -> None:
        self._session = session
        self._watches = watches
        self._settings = settings
        self._decoded: dict[str, tuple[Node, Topic]] = {}
        self.unusable: dict[int, str] = {}
        """Why registered brokers were left out of the last `brokers()`, by id."""

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        # The data watch on a topic fires on any write of it: a reassignment, or a controller that rewrites the same
        # content. So the content is compared, here as bytes and by the rebalancer as sets of partitions, before
        # anything is released.
        nodes = await self._watches.each_data({paths.topic(name): f"topic {name}" for name in names})
        before, self._decoded = self._decoded, {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                try:
                    self._decoded[name] = node, self._topic(node, before.get(name))
                except ValueError as error:
                    log.error("topic node unreadable", path=paths.topic(name), reason=str(error))
        return {name: topic for name, (_, topic) in self._decoded.items()}

    @staticmethod
    def _topic(node: Node, before: tuple[Node, Topic] | None) -> Topic:
        if before is not None and before[0] == node:
            return before[1]
        return Topic(decode_topic(node.data), node.stat.czxid)

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        return {name: topic.partitions for name, topic in (await self.topics(names)).items()}

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        if await self._missing(partitions) is not None:
            await self._session.sync(paths.BROKER_TOPICS)  # the server that was asked may lag behind
            if (error := await self._missing(partitions)) is not None:
                raise error

    async def _missing(self, partitions: Collection[TopicPartition]) -> NotFoundError | None:
        names = sorted({partition.topic for partition in partitions})
        nodes = await together([self._session.find(paths.topic(name)) for name in names])
        for name, node in zip(names, nodes, strict=True):
            if node is None:
                return NotFoundError(f"there is no topic {name}")
            with suppress(ValueError):
                existing = decode_topic(node.data)
                for topic, number in partitions:
                    if topic == name and number not in existing:
                        return NotFoundError(f"topic {name} has {len(existing)} partitions, and no number {number}")
        return None

    async def all_topics(self) -> list[str]:
        return await self._watches.children(paths.BROKER_TOPICS, "topics")

    async def broker_ids(self) -> list[int]:
        """A change is notified as `brokers`: the watch ends the wait of a rebalance that has found none."""
        return _numbers(await self._watches.children(paths.BROKER_IDS, "brokers"))

    async def brokers(self) -> list[Broker]:
        """Brokers without the configured listener are logged and left out."""
        try:
            ids = _numbers(await self._session.children(paths.BROKER_IDS))
        except NoNodeError:
            return []
        nodes = await together([self._session.find(paths.broker(number)) for number in ids])
        found = []
        reported, self.unusable = self.unusable, {}
        for number, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                found.append(self._broker(number, node.data))
            except ValueError as error:
                reason = self.unusable[number] = str(error)
                if reported.get(number) != reason:
                    log.error("broker unusable", broker=number, path=paths.broker(number), reason=reason)
        return found

    def _broker(self, number: int, data: bytes) -> Broker:
        listeners = decode_listeners(data)
        listener = choose(listeners, self._settings.listener, self._settings.security_protocol)
        return Broker(number, listener.host, listener.port)

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        return await incarnations(self._session, topics)

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        return await self.incarnations(names)

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        names = list(topics)
        nodes = await together([self._session.find(paths.topic(name)) for name in names])
        return {name: _identity(node) for name, node in zip(names, nodes, strict=True) if node is not None}

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return {name: found.id for name, found in (await self.identities(topics)).items() if found.id}

    async def deleted(self) -> set[str]:
        return set()

    async def cluster_id(self) -> str:
        node = await self._session.find(paths.CLUSTER_ID)
        if node is None:
            return ""
        try:
            return decode_cluster_id(node.data)
        except ValueError as error:
            raise ZooKeeperError(paths.CLUSTER_ID, str(error)) from error


async def incarnations(session: ZooKeeperSession, topics: Iterable[str]) -> dict[str, int]:
    """The incarnations of those topics that exist, readable or not."""
    names = list(topics)
    stats = await together([session.exists(paths.topic(name)) for name in names])
    return {name: stat.czxid for name, stat in zip(names, stats, strict=True) if stat is not None}


def _identity(node: Node) -> TopicIdentity:
    topic_id = ""
    with suppress(ValueError):
        topic_id = decode_topic_id(node.data)
    return TopicIdentity(node.stat.czxid, topic_id)


def _numbers(names: list[str]) -> list[int]:
    numbers = []
    for name in names:
        if paths.is_number(name):
            numbers.append(int(name))
        else:
            log.error("invalid broker id", path=f"{paths.BROKER_IDS}/{name}")
    return numbers


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
        first = [(-number, *host_and_port(each)) for number, each in enumerate(self.addresses, 1)]
        return [*known, *(Broker(*each) for each in first if each[1:] not in there)]

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
