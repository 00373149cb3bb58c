"""Which broker leads which partition, from any broker that answers."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import error_code
from kzconsumer.brokers.protocol.frames import Request
from kzconsumer.brokers.protocol.metadata import MetadataRequest
from kzconsumer.clock import now
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    ProtocolError,
    UnsupportedVersionError,
)
from kzconsumer.model import Broker, TopicPartition

R = TypeVar("R")


class KnownBrokers(Protocol):
    """The brokers of the cluster."""

    async def brokers(self) -> Sequence[Broker]:
        """Raises ConnectionLostError, ZooKeeperError if they cannot be looked up."""
        ...

    @property
    def unusable(self) -> Mapping[int, str]:
        """Brokers that cannot be used, by id, with the reason."""
        ...


class Leaders:
    """`timeout` is for each broker's response, in seconds."""

    def __init__(self, known: KnownBrokers, brokers: Brokers, timeout: float) -> None:
        self._known = known
        self._brokers = brokers
        self._timeout = timeout
        self.unreachable_since: float | None = None
        """Since when no broker has answered; None after an answer."""
        self.last: Mapping[TopicPartition, Broker | str] = {}
        """The last result of `of`."""
        self.brokers: Mapping[int, Broker] = {}
        """All that are up, by id, as of the last `of`."""
        self.epochs: dict[TopicPartition, int] = {}
        """In which epoch its leader leads each partition that `of` was asked about; -1 if brokers do not say."""

    async def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        """The leader of each, or why there is none.

        Raises BrokersUnreachableError if no broker answers, ConnectionLostError, ZooKeeperError if they cannot be
        looked up.
        """
        metadata = await self.ask(MetadataRequest(tuple(sorted({partition.topic for partition in partitions}))))
        self.brokers = metadata.brokers
        leaders: dict[TopicPartition, Broker | str] = {}
        for partition in partitions:
            topic = metadata.topics.get(partition.topic)
            about = topic.partitions.get(partition.partition) if topic else None
            error = (topic.error if topic else 0) or (about.error if about else 0)
            leader = metadata.brokers.get(about.leader) if about else None
            leaders[partition] = leader or (error_code(error).name if error else "not in the metadata")
            self.epochs[partition] = about.leader_epoch if about else -1
        self.last = leaders
        return leaders

    async def grouped(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[Broker, list[TopicPartition]], dict[TopicPartition, str]]:
        """The partitions by their leader, and why the others have none. Raises as `of`."""
        led: dict[Broker, list[TopicPartition]] = {}
        leaderless: dict[TopicPartition, str] = {}
        for partition, leader in (await self.of(partitions)).items():
            if isinstance(leader, Broker):
                led.setdefault(leader, []).append(partition)
            else:
                leaderless[partition] = leader
        return led, leaderless

    async def ask(self, request: Request[R]) -> R:
        """The first answer, asking the brokers in random order. Raises as `of`."""
        brokers = await self._known.brokers()
        reasons = [f"broker {number}: {reason}" for number, reason in self._known.unusable.items()]
        for broker in random.sample(brokers, len(brokers)):
            try:
                connection = await self._brokers.connection(broker, "control")
                answer = await connection.call(request, timeout=self._timeout)
            except (ConnectionLostError, ProtocolError, BrokerError, UnsupportedVersionError) as error:
                reasons.append(str(error))
            else:
                self.unreachable_since = None
                return answer
        if self.unreachable_since is None:
            self.unreachable_since = now()
        raise BrokersUnreachableError("; ".join(reasons) or "none is up")
