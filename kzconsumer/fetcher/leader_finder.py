"""The LeaderFinder task: partitions without a known leader wait here until a broker names one.

Owns the set of partitions without leader. Claims and fetchers add to it; it hands them to the FetcherManager. Errors of
a look-up are ordinary: it asks again, for ever, and says so once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import anyio
import structlog

from kzconsumer.clock import now
from kzconsumer.errors import BrokerError, ConnectionLost, ProtocolError, UnsupportedVersion, ZooKeeperError
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.network.brokers import Brokers
from kzconsumer.protocol.metadata import MetadataRequest, MetadataResponse
from kzconsumer.zookeeper.topic_registry import TopicRegistry

log = structlog.get_logger("kzconsumer.fetcher")

# Seconds: a partition that was just added, or whose broker just stopped, gets its leader within a moment.
PATIENCE = 2.0


class LeaderFinder:
    """Runs as one task of a membership."""

    def __init__(
        self,
        topics: TopicRegistry,
        brokers: Brokers,
        assign: Callable[[Broker, list[PartitionFetchState]], None],
        timeout: float,
    ) -> None:
        self._topics = topics
        self._brokers = brokers
        self._assign = assign
        self._timeout = timeout
        self._leaderless: dict[TopicPartition, PartitionFetchState] = {}
        self._wanted = anyio.Event()
        self._unled_since: dict[TopicPartition, float] = {}  # of those that a broker said have no leader
        self._complained: set[TopicPartition] = set()
        self.unreachable_since: float | None = None  # of all brokers that are up, none has answered

    def __repr__(self) -> str:
        return f"<LeaderFinder {len(self._leaderless)} without leader>"

    def __contains__(self, state: PartitionFetchState) -> bool:
        return self._leaderless.get(state.topic_partition) is state

    def add(self, states: Iterable[PartitionFetchState]) -> None:
        """Look for the leader of each, once its pause (after an error) is over."""
        for state in states:
            self._leaderless[state.topic_partition] = state
        self._wanted.set()

    async def run(self) -> None:
        while True:
            time = now()
            due = {p: state for p, state in self._leaderless.items() if state.open and state.retry_at <= time}
            if due:
                await self._look_up(due)
                continue
            self._leaderless = {p: state for p, state in self._leaderless.items() if state.open}
            self._unled_since = {p: since for p, since in self._unled_since.items() if p in self._leaderless}
            if not self._leaderless:
                self.unreachable_since = None  # nobody asks any more
            self._wanted = anyio.Event()
            pauses = [state.retry_at - time for state in self._leaderless.values()]
            with anyio.move_on_after(min(pauses) if pauses else None):
                await self._wanted.wait()

    async def _look_up(self, due: dict[TopicPartition, PartitionFetchState]) -> None:
        metadata = await self._ask(MetadataRequest(tuple(sorted({partition.topic for partition in due}))))
        found: dict[Broker, list[PartitionFetchState]] = {}
        for partition, state in due.items():
            topic = metadata.topics.get(partition.topic) if metadata else None
            about = topic.partitions.get(partition.partition) if topic else None
            leader = metadata.brokers.get(about.leader) if metadata and about else None
            if leader is None:
                state.pause(now())
                if metadata is not None:
                    self._unled(partition)
            elif self._leaderless.get(partition) is state:
                del self._leaderless[partition]
                self._unled_since.pop(partition, None)
                self._complained.discard(partition)
                found.setdefault(leader, []).append(state)
        for broker, states in found.items():
            self._assign(broker, states)

    async def _ask(self, request: MetadataRequest) -> MetadataResponse | None:
        """The answer of the first broker that gives one, in random order."""
        try:
            brokers = await self._topics.brokers()
        except (ConnectionLost, ZooKeeperError) as error:
            log.info("brokers not read", reason=str(error))
            return None
        reasons = []
        for broker in random.sample(brokers, len(brokers)):
            try:
                connection = await self._brokers.connection(broker, "control")
                answer = await connection.call(request, timeout=self._timeout)
            except (ConnectionLost, ProtocolError, BrokerError, UnsupportedVersion) as error:
                reasons.append(str(error))
            else:
                self.unreachable_since = None
                return answer
        if self.unreachable_since is None and brokers:
            self.unreachable_since = now()
        new = [partition for partition in self._leaderless if partition not in self._complained]
        if new:
            log.warning("no broker tells who leads", partitions=len(self._leaderless), reasons=reasons or "none is up")
            self._complained.update(new)
        return None

    def _unled(self, partition: TopicPartition) -> None:
        """A broker says that nobody leads it."""
        since = self._unled_since.setdefault(partition, now())
        if partition not in self._complained and now() - since >= PATIENCE:
            self._complained.add(partition)
            log.warning("partition has no leader", topic=partition.topic, partition=partition.partition)
