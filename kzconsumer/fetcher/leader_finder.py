"""The LeaderFinder task: partitions without a known leader wait here until a broker names one.

Owns the set of partitions without leader. Claims and fetchers add to it; it hands them to the FetcherManager. Errors of
a look-up are ordinary: it asks again, for ever, and says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import anyio
import structlog

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.clock import now
from kzconsumer.errors import BrokersUnreachable, ConnectionLost, ZooKeeperError
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.model import Broker, TopicPartition

log = structlog.get_logger("kzconsumer.fetcher")

# Seconds: a partition that was just added, or whose broker just stopped, gets its leader within a moment.
PATIENCE = 2.0


class LeaderFinder:
    """Runs as one task of a membership."""

    def __init__(self, leaders: Leaders, assign: Callable[[Broker, list[PartitionFetchState]], None]) -> None:
        self._leaders = leaders
        self._assign = assign
        self._leaderless: dict[TopicPartition, PartitionFetchState] = {}
        self._wanted = anyio.Event()
        self._unled_since: dict[TopicPartition, float] = {}  # of those that a broker said have no leader
        self._complained: set[TopicPartition] = set()

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
                self._leaders.unreachable_since = None  # nobody asks any more
            self._wanted = anyio.Event()
            pauses = [state.retry_at - time for state in self._leaderless.values()]
            with anyio.move_on_after(min(pauses) if pauses else None):
                await self._wanted.wait()

    async def _look_up(self, due: dict[TopicPartition, PartitionFetchState]) -> None:
        leaders = await self._ask(due)
        found: dict[Broker, list[PartitionFetchState]] = {}
        for partition, state in due.items():
            leader = leaders.get(partition) if leaders is not None else None
            if not isinstance(leader, Broker):
                state.pause(now())
                if leaders is not None:
                    self._unled(partition, leader or "not in the metadata")
            elif self._leaderless.get(partition) is state:
                del self._leaderless[partition]
                self._unled_since.pop(partition, None)
                self._complained.discard(partition)
                found.setdefault(leader, []).append(state)
        for broker, states in found.items():
            self._assign(broker, states)

    async def _ask(
        self, due: dict[TopicPartition, PartitionFetchState]
    ) -> Mapping[TopicPartition, Broker | str] | None:
        """Who leads them, or why nobody does; None when nobody tells."""
        try:
            return await self._leaders.of(due)
        except (ConnectionLost, ZooKeeperError) as error:
            log.info("brokers not read", reason=str(error))
        except BrokersUnreachable as error:
            new = [partition for partition in self._leaderless if partition not in self._complained]
            if new:
                log.warning("no broker tells who leads", partitions=len(self._leaderless), reason=str(error))
                self._complained.update(new)
        return None

    def _unled(self, partition: TopicPartition, reason: str) -> None:
        """A broker says that nobody leads it."""
        since = self._unled_since.setdefault(partition, now())
        if partition not in self._complained and now() - since >= PATIENCE:
            self._complained.add(partition)
            log.warning("partition has no leader", topic=partition.topic, partition=partition.partition, reason=reason)
