"""Who leads which partition, asked of any broker that answers.

Owns since when no broker has answered. The leader finder asks for what is fetched, log_offsets for what is looked up.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.error_codes import error_code
from kzconsumer.brokers.protocol.metadata import MetadataRequest, MetadataResponse
from kzconsumer.clock import now
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachable,
    ConnectionLost,
    ProtocolError,
    UnsupportedVersion,
)
from kzconsumer.model import Broker, TopicPartition


class KnownBrokers(Protocol):
    """Where the brokers of the cluster are."""

    async def brokers(self) -> Sequence[Broker]:
        """Raises ConnectionLost, ZooKeeperError when they cannot be looked up."""
        ...

    @property
    def unusable(self) -> Mapping[int, str]:
        """By number: brokers that cannot be connected to, with the reason."""
        ...


class Leaders:
    """Of the brokers that one membership knows of. `timeout` is for each broker's answer, in seconds."""

    def __init__(self, known: KnownBrokers, brokers: Brokers, timeout: float) -> None:
        self._known = known
        self._brokers = brokers
        self._timeout = timeout
        self.unreachable_since: float | None = None
        """When the first of the questions was asked that no broker has answered since; None when one did."""

    async def of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Broker | str]:
        """The leader of each, or why there is none.

        Raises BrokersUnreachable when no broker answers, ConnectionLost, ZooKeeperError when they cannot be looked up.
        """
        metadata = await self._ask(MetadataRequest(tuple(sorted({partition.topic for partition in partitions}))))
        leaders: dict[TopicPartition, Broker | str] = {}
        for partition in partitions:
            topic = metadata.topics.get(partition.topic)
            about = topic.partitions.get(partition.partition) if topic else None
            error = (topic.error if topic else 0) or (about.error if about else 0)
            leader = metadata.brokers.get(about.leader) if about else None
            leaders[partition] = leader or (error_code(error).name if error else "not in the metadata")
        return leaders

    async def _ask(self, request: MetadataRequest) -> MetadataResponse:
        """The answer of the first broker that gives one, in random order."""
        brokers = await self._known.brokers()
        reasons = [f"broker {number}: {reason}" for number, reason in self._known.unusable.items()]
        for broker in random.sample(brokers, len(brokers)):
            try:
                connection = await self._brokers.connection(broker, "control")
                answer = await connection.call(request, timeout=self._timeout)
            except (ConnectionLost, ProtocolError, BrokerError, UnsupportedVersion) as error:
                reasons.append(str(error))
            else:
                self.unreachable_since = None
                return answer
        if self.unreachable_since is None:
            self.unreachable_since = now()
        raise BrokersUnreachable("; ".join(reasons) or "none is up")
