"""Topics and brokers of the cluster: from its znodes, or from Metadata requests where it has no ZooKeeper.

Metadata requests need addresses to begin with: `[brokers] bootstrap`, or those that a member of the group has kept in
`/consumers/<group>/brokers` when a migration to KRaft was announced. Once that node exists, every member asks brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

import anyio
import msgspec

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.metadata import MetadataRequest, MetadataResponse, TopicMetadata
from kzconsumer.errors import (
    BrokersUnreachableError,
    KzConsumerError,
    NodeExistsError,
    NotFoundError,
    ZooKeeperError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.node_json import read_json
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.topic_identity import TopicIdentities
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.values import host_and_port
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer.zookeeper")

_Shape = tuple[str, int]
"""A topic's id and its number of partitions."""


class ClusterTopics(TopicRegistry):
    """`notify` is called when `poll` finds that topics have changed since they were read."""

    def __init__(
        self,
        session: ZooKeeperSession,
        watches: Watches,
        settings: Settings,
        brokers: Brokers,
        notify: Callable[[str], None] = lambda reason: None,
    ) -> None:
        super().__init__(session, watches, settings.brokers)
        self._pool = brokers
        self._timeout = settings.fetch.request_timeout
        self._interval = settings.brokers.metadata_interval
        self._leaders = Leaders(self, brokers, self._timeout)
        self._notify = notify
        self._group = GroupPaths(settings.group.id)
        self._identities = TopicIdentities(session, watches, self._group)
        self._addresses = settings.brokers.bootstrap
        self._kept = bool(self._addresses)  # the group's node need not have them
        self._known: dict[int, Broker] = {}
        self._every_topic: frozenset[str] | None = None  # as last read, if the group needs them
        self._read: dict[str, _Shape | None] = {}  # the topics last read; None: missing, or not yet identified

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        if not await self.asks_brokers():
            return await super().topics(names)
        described = await self._describe(names)
        found = await self._identified(described)
        self._read = {name: _shape(described[name]) if name in found else None for name in names}
        return found

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        if not await self.asks_brokers():
            return await super().incarnations(topics)
        names = list(topics)
        found = await self._identified(await self._describe(names))
        # Brokers that do not know a topic may have just started: its offsets stay until another is reported.
        missing = [name for name in names if name not in found]
        last = await together([self._identities.last(name) for name in missing])
        kept = {name: incarnation for name, incarnation in zip(missing, last, strict=True) if incarnation is not None}
        return kept | {name: topic.incarnation for name, topic in found.items()}

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        if not await self.asks_brokers():
            await super().require(partitions)
            return
        found = await self._describe(sorted({partition.topic for partition in partitions}))
        for topic, number in partitions:
            if topic not in found:
                raise NotFoundError(f"there is no topic {topic}")
            if number not in (existing := found[topic].partitions):
                raise NotFoundError(f"topic {topic} has {len(existing)} partitions, and no number {number}")

    async def all_topics(self) -> list[str]:
        if not await self.asks_brokers():
            return await super().all_topics()
        answer = await self._ask(None)
        self._every_topic = frozenset(_existing(answer))
        return sorted(self._every_topic)

    async def broker_ids(self) -> list[int]:
        return sorted((await self._ask(())).brokers) if await self.asks_brokers() else await super().broker_ids()

    async def brokers(self) -> list[Broker]:
        if not await self.asks_brokers():
            return await super().brokers()
        known = list(self._known.values())
        there = {(broker.host, broker.port) for broker in known}
        first = [(-number, *host_and_port(each)) for number, each in enumerate(self._addresses, 1)]
        return [*known, *(Broker(*each) for each in first if each[1:] not in there)]

    async def cluster_id(self) -> str:
        return (await self._ask(())).cluster_id or "" if await self.asks_brokers() else await super().cluster_id()

    async def poll(self) -> None:
        """Ask for the topics that were read, again and again, and notify if they have changed.

        Until brokers are asked, watches notify.
        """
        while True:
            await anyio.sleep(self._interval)
            try:
                if self._addresses:
                    await self._compare()
            except KzConsumerError as error:
                log.info("metadata unavailable", reason=str(error), again=True)

    async def asks_brokers(self) -> bool:
        """Whether topics come from brokers: once they do, they always do."""
        if not self._addresses:
            self._addresses = await self._addresses_of_the_group()
        return bool(self._addresses)

    async def _addresses_of_the_group(self) -> tuple[str, ...]:
        node = await self._watches.data(self._group.brokers, "brokers")
        if node is not None:
            try:
                kept = read_json(node.data, tuple[str, ...])
                if not all(host and port for host, port in map(host_and_port, kept)):
                    raise ValueError("not a list of hosts and ports")
                return kept
            except ValueError as error:
                raise ZooKeeperError(self._group.brokers, str(error)) from error
        if await self._watches.exists(paths.MIGRATION, "migration") is None:
            return ()
        found = tuple(f"{broker.host}:{broker.port}" for broker in await super().brokers())
        if found and not self._addresses:
            log.info("migration to KRaft: topics and brokers come from Metadata requests from now on", brokers=found)
            self._addresses = found
            await self._keep(found)
        return found

    async def _keep(self, addresses: tuple[str, ...]) -> None:
        """For members that start when the cluster's nodes are gone."""
        data = msgspec.json.encode(addresses)
        await self._session.ensure(self._group.root)
        try:
            await self._session.create(self._group.brokers, data)
        except NodeExistsError:
            await self._session.set(self._group.brokers, data, -1)

    async def _compare(self) -> None:
        answer = await self._ask(None if self._every_topic is not None else tuple(self._read))
        found = _existing(answer)
        if self._every_topic is not None and self._every_topic != found.keys():
            self._notify("topics")
        for name, shape in self._read.items():
            if (_shape(found[name]) if name in found else None) != shape:
                self._notify(f"topic {name}")
        known = tuple(f"{broker.host}:{broker.port}" for broker in answer.brokers.values())
        if not self._kept and set(known) != set(self._addresses):
            self._addresses = known
            await self._keep(known)

    async def _ask(self, topics: tuple[str, ...] | None) -> MetadataResponse:
        return self._learned(await self._leaders.ask(MetadataRequest(topics)))

    def _learned(self, answer: MetadataResponse) -> MetadataResponse:
        if not answer.brokers:  # it has just started, and knows no topic either
            raise BrokersUnreachableError("a broker answered that knows no broker yet")
        self._known = answer.brokers
        return answer

    async def _describe(self, names: list[str]) -> dict[str, TopicMetadata]:
        """Those topics that exist. One is only missing if every broker that answers says so."""
        if not names:
            return {}
        found = _existing(await self._ask(tuple(names)))
        for broker in self._known.values():
            missing = tuple(name for name in names if name not in found)
            if not missing:
                break
            try:
                connection = await self._pool.connection(broker, "control")
                found |= _existing(await connection.call(MetadataRequest(missing), timeout=self._timeout))
            except KzConsumerError:
                continue
        return found

    async def _identified(self, described: Mapping[str, TopicMetadata]) -> dict[str, Topic]:
        """Without topics whose id is a former one, or is new and not yet what most brokers report."""
        with_id = [name for name, topic in described.items() if topic.id]
        known = await together([self._identities.knows(name, described[name].id) for name in with_id])
        agreed = await self._agreed([name for name, is_known in zip(with_id, known, strict=True) if not is_known])
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
        incarnation = await self._identities.last(name) or (await super().incarnations([name])).get(name)
        if incarnation is None:
            reason = "brokers report the topic without an id: that needs Kafka 2.8 or later"
            raise ZooKeeperError(paths.topic(name), reason)
        return incarnation

    async def _agreed(self, names: list[str]) -> dict[str, str]:
        """The id that most of the brokers report that know the topic; empty if there is none.

        A former id that a stale broker reports would hide the topic for ever, once it is recorded as the present one.
        """
        votes: dict[str, Counter[str]] = {name: Counter() for name in names}
        for broker in self._known.values() if names else ():
            try:
                connection = await self._pool.connection(broker, "control")
                answer = await connection.call(MetadataRequest(tuple(names)), timeout=self._timeout)
            except KzConsumerError:
                continue
            for name, topic in _existing(answer).items():
                votes[name][topic.id] += 1
        return {name: _majority(found) for name, found in votes.items()}


def _majority(votes: Counter[str]) -> str:
    return next((topic_id for topic_id, number in votes.items() if 2 * number > votes.total()), "")


def _existing(answer: MetadataResponse) -> dict[str, TopicMetadata]:
    return {name: topic for name, topic in answer.topics.items() if topic.partitions and not topic.error}


def _shape(topic: TopicMetadata) -> _Shape:
    return topic.id, len(topic.partitions)
