"""What the worker reads in ZooKeeper when executors fetch: the brokers, and whether topics are those that were planned.

A fetch request names a topic, and does not say which one of that name. So the incarnations are compared once the
records are there: if a topic is still the one whose ranges were planned, so it was while they were fetched.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio

from kzconsumer.errors import ZooKeeperUnreachableError
from kzconsumer.model import Broker, RangeIdentity
from kzconsumer.registry.sessions import short_session
from kzconsumer.registry.topics import TopicRegistry, incarnations
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.ranges.lease import Permission


class TopicRecreatedError(Exception):
    """A topic was deleted, and perhaps created again, after its ranges were planned."""


class KafkaRegistry:
    """Opens a session for each call, which blocks. Raises ZooKeeperError, ZooKeeperUnreachableError, ConfigError."""

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._known: tuple[Broker, ...] = ()

    def brokers(self) -> tuple[Broker, ...]:
        """Those that are registered; if ZooKeeper does not answer, those that were registered at the last call."""
        try:
            self._known = tuple(anyio.run(self._brokers))
        except ZooKeeperUnreachableError:
            if not self._known:
                raise
        return self._known

    def require_planned(self, ranges: Iterable[SpooledRange | RangeIdentity]) -> None:
        """Raises TopicRecreatedError unless the topic of each range is of the range's incarnation."""
        planned = sorted({(part.topic, part.incarnation) for part in ranges})
        found = anyio.run(self._incarnations, {topic for topic, _ in planned}) if planned else {}
        for topic, incarnation in planned:
            if found.get(topic) != incarnation:
                what = f"is {found[topic]:#x} now" if topic in found else "was deleted"
                raise TopicRecreatedError(f"topic {topic} {what}, its ranges were planned when it was {incarnation:#x}")

    async def _brokers(self) -> list[Broker]:
        async with short_session(self.kafka.zookeeper) as session:
            return await TopicRegistry(session, Watches(session), self.kafka.brokers).brokers()

    async def _incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        async with short_session(self.kafka.zookeeper) as session:
            return await incarnations(session, topics)


class TopicsLease:
    """The lease, and the topics of the batch in hand, which must be those that were planned."""

    def __init__(self, lease: Permission, registry: KafkaRegistry) -> None:
        self._lease = lease
        self._registry = registry
        self._fetched: list[SpooledRange] = []

    def begin(self, ranges: Iterable[SpooledRange]) -> None:
        self._fetched = [part for part in ranges if part.records]

    def require(self) -> None:
        """Raises as `Lease.require` and `KafkaRegistry.require_planned`. The lease comes last: it may run out first."""
        self._registry.require_planned(self._fetched)
        self._lease.require()
