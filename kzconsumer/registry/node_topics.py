"""Topics and brokers as they are registered in ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from kzconsumer.errors import (
    KzConsumerError,
    NoNodeError,
    NotFoundError,
    NotPermittedError,
    OtherClusterError,
    ZooKeeperError,
)
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
)
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, outcomes, together

log = get_logger("kzconsumer.zookeeper")

_PLAINTEXT = BrokersSettings()


class NodeTopics:
    """Topics and brokers as registered below `/brokers`, read on one session; watches notify."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, settings: BrokersSettings = _PLAINTEXT) -> None:
        self._session = session
        self._watches = watches
        self._settings = settings
        self._decoded: dict[str, tuple[Node, Topic]] = {}
        self._incarnations: dict[str, int] = {}  # as of these counts
        self._counts: tuple[int, int, int] | None = None
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

    async def has_cluster(self) -> bool:
        # Brokers of 1.1 and later do not register at a ZooKeeper that has lost its nodes before they are started again.
        # Earlier ones do, when their session has expired, and make only the node that theirs is in.
        return bool(await self.broker_ids()) and await self._session.exists(paths.BROKER_TOPICS) is not None

    async def brokers(self) -> list[Broker]:
        """Brokers without the configured listener, and those whose node may not be read, are logged and left out."""
        try:
            ids = _numbers(await self._session.children(paths.BROKER_IDS))
        except NoNodeError:
            return []
        reads = [self._session.find(path) for path in (*map(paths.broker, ids), paths.CLUSTER_ID)]
        *nodes, about_cluster = await outcomes(reads)
        cluster = _id_in(about_cluster)
        found = []
        reported, self.unusable = self.unusable, {}
        for number, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                if isinstance(node, KzConsumerError):
                    raise node
                found.append(self._broker(number, node.data, cluster))
            except (ValueError, NotPermittedError) as error:
                reason = self.unusable[number] = str(error)
                if reported.get(number) != reason:
                    log.error("broker unusable", broker=number, path=paths.broker(number), reason=reason)
        return found

    def _broker(self, number: int, data: bytes, cluster: str) -> Broker:
        listeners = decode_listeners(data)
        listener = choose(listeners, self._settings.listener, self._settings.security_protocol)
        return Broker(number, listener.host, listener.port, cluster)

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        # A replayable sink asks before each batch, perhaps about thousands of topics. One read shows whether any was
        # created or deleted since: both change the counts of the node above. They are read first: what happens later
        # changes them again. They are compared within one connection only, as in `OwnedPartitions.verify`.
        names, connection = list(topics), self._session.connections
        if not names:
            return {}
        above = await self._session.exists(paths.BROKER_TOPICS)
        counts = (connection, above.czxid, above.cversion) if above is not None else None
        if counts is None or counts != self._counts or connection != self._session.connections:
            self._counts, self._incarnations = counts, {}
        known = self._incarnations
        known.update(await incarnations(self._session, [name for name in names if name not in known]))
        return {name: known[name] for name in names if name in known}

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


async def id_of_cluster(find: Callable[[str], Coroutine[Any, Any, Node | None]]) -> str:
    """Empty if it is not known: before Kafka 0.10.1, without the cluster's nodes, or if they may not be read.

    `find` reads a node. Raises ConnectionLostError, SessionExpiredError, ZooKeeperError.
    """
    (found,) = await outcomes([find(paths.CLUSTER_ID)])
    return _id_in(found)


class OwnCluster:
    """The cluster that a member is of: the first one whose id it has read."""

    # Another ensemble may have our servers' addresses by now: it says that our session has expired, as it never had it.
    # As a member there we would deliver the other cluster's records, also to a destination of this one. An ensemble
    # without an id may be one whose first broker has not started yet, or ours that has lost its nodes. So it is asked
    # for when a session begins, and then before each rebalance until it is there.

    def __init__(self) -> None:
        self._id = ""
        self.in_doubt = False
        """The present session is at a ZooKeeper without the id."""

    def require(self, found: str) -> None:
        """`found` is what `id_of_cluster` says on the present session. Raises OtherClusterError."""
        if found and self._id and found != self._id:
            reason = f"ZooKeeper is that of cluster {found}, not of {self._id}; if that is meant, start again"
            raise OtherClusterError(reason)
        self._id = self._id or found
        self.in_doubt = found != self._id


def _id_in(node: Node | KzConsumerError | None) -> str:
    """Empty if it is not known."""
    if node is None or isinstance(node, NotPermittedError):
        return ""
    if isinstance(node, KzConsumerError):
        raise node
    try:
        return decode_cluster_id(node.data)
    except ValueError:
        return ""


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
