"""What a driver reads of the cluster for its tasks: brokers, and whether topics are those that were planned.

A fetch request names a topic, and does not say which one of that name. So the incarnations are compared once the
records are there: if a topic is still the one whose ranges were planned, so it was while they were fetched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias, TypeVar

import anyio
import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    SessionExpiredError,
    ZooKeeperUnreachableError,
)
from kzconsumer.model import Broker, RangeIdentity
from kzconsumer.registry.cluster import short_session
from kzconsumer.registry.cluster_topics import ClusterTopics
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import BatchRange

_Planned: TypeAlias = list[tuple[str, int]]
T = TypeVar("T")

_ATTEMPTS: Final = 3
_BROKER_TIMEOUT: Final = 5.0
"""Most seconds for each broker's response: below the limit of the session, so that another broker can be asked."""


class TopicRecreatedError(Exception):
    """A topic was deleted, and perhaps created again, after its ranges were planned."""


class PlannedTopics(NamedTuple):
    """What the cluster has of the topics of ranges that were planned."""

    brokers: tuple[Broker, ...]
    ids: Mapping[str, str]
    """Of those that have one, in base64."""
    gone: Mapping[tuple[str, int], str]
    """What happened to those that were deleted, by name and incarnation."""


class KafkaRegistry:
    """Opens a session for each call, which blocks.

    Raises ZooKeeperError, ZooKeeperUnreachableError, ConnectionLostError, SessionExpiredError, BrokersUnreachableError,
    ConfigError.
    """

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        self._known: tuple[Broker, ...] = ()

    def brokers(self) -> tuple[Broker, ...]:
        """Those of the cluster; of the last call if ZooKeeper or the brokers do not answer."""
        try:
            self._known = _asked(self._brokers)
        except (ZooKeeperUnreachableError, ConnectionLostError, SessionExpiredError, BrokersUnreachableError):
            if not self._known:
                raise
        return self._known

    def planned(self, ranges: Iterable[RangeIdentity]) -> PlannedTopics:
        """In one session."""
        return _asked(partial(self._look, _planned(ranges)))

    def reachable(self) -> tuple[Broker, ...]:
        """Those of the cluster. Raises if ZooKeeper does not answer, or no broker where topics come from brokers."""
        return _asked(self._reach)

    def require_planned(self, ranges: Iterable[BatchRange | RangeIdentity]) -> None:
        """Raises TopicRecreatedError unless the topic of each range is of the range's incarnation."""
        if planned := _planned(ranges):
            for reason in _gone(planned, _asked(partial(self._incarnations, planned))).values():
                raise TopicRecreatedError(reason)  # the first is enough

    async def _brokers(self) -> tuple[Broker, ...]:
        async with self._topics() as topics:
            return tuple(await topics.brokers())

    async def _look(self, planned: _Planned) -> PlannedTopics:
        names = {topic for topic, _ in planned}
        async with self._topics() as topics:
            found = await topics.identities(names)
            ids = {name: each.id for name, each in found.items() if each.id}
            # A topic that is taken for deleted is lost: brokers of another cluster must not say so.
            deleted = await topics.deleted()
            if deleted and not await topics.are_of_the_group():
                deleted = set()
            there = {name: each.incarnation for name, each in found.items() if name not in deleted}
            return PlannedTopics(tuple(await topics.brokers()), ids, _gone(planned, there))

    async def _reach(self) -> tuple[Broker, ...]:
        async with self._topics() as topics:
            await topics.broker_ids()
            return tuple(await topics.brokers())

    async def _incarnations(self, planned: _Planned) -> dict[str, int]:
        async with self._topics() as topics:
            return await topics.incarnations({topic for topic, _ in planned})

    @asynccontextmanager
    async def _topics(self) -> AsyncIterator[ClusterTopics]:
        fetch = self.kafka.fetch
        fetch = msgspec.structs.replace(fetch, request_timeout=min(fetch.request_timeout, _BROKER_TIMEOUT))
        kafka = msgspec.structs.replace(self.kafka, fetch=fetch)
        security = partial(load_security, kafka.brokers, kafka.source)
        async with (
            short_session(kafka.zookeeper) as session,
            Brokers(client_id=kafka.client, timeout=fetch.request_timeout, security=security) as brokers,
        ):
            yield ClusterTopics(session, Watches(session), kafka.settings(), brokers)


def _asked(look: Callable[[], Awaitable[T]]) -> T:
    """What `look` returns; it is repeated in another session if the connection breaks: a query would end by that."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(ConnectionLostError, SessionExpiredError):
            return anyio.run(look)
    return anyio.run(look)


def _planned(ranges: Iterable[BatchRange | RangeIdentity]) -> _Planned:
    return sorted({(part.topic, part.incarnation) for part in ranges})


def _gone(planned: _Planned, found: Mapping[str, int]) -> dict[tuple[str, int], str]:
    what = {True: "was deleted and created again", False: "was deleted"}
    return {
        (topic, incarnation): f"topic {topic} {what[topic in found]} after its ranges were planned"
        for topic, incarnation in planned
        if found.get(topic) != incarnation
    }
