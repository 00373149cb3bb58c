"""Looks up the leaders of partitions that have none known, as one task of a membership.

Claims and fetchers add partitions; the FetcherManager gets them once a broker names their leader. A lookup that fails
is repeated without end, and logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import anyio

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.clock import now
from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, ZooKeeperError
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition

log = get_logger("kzconsumer.fetcher")

# Seconds before a missing leader is logged: one that was just elected away is back within a moment.
PATIENCE = 2.0


class LeaderFinder:
    def __init__(self, leaders: Leaders, assign: Callable[[Broker, list[FetchState]], None]) -> None:
        self._leaders = leaders
        self._assign = assign
        self._leaderless: dict[TopicPartition, FetchState] = {}
        self._wanted = anyio.Event()
        self._leaderless_since: dict[TopicPartition, float] = {}  # those that a broker reported as leaderless
        self._logged: set[TopicPartition] = set()

    def __contains__(self, state: FetchState) -> bool:
        return self._leaderless.get(state.topic_partition) is state

    def add(self, states: Iterable[FetchState]) -> None:
        """Look for the leader of each, once its pause (after an error) is over."""
        for state in states:
            if state.open:  # else a later claim's may be there
                self._leaderless[state.topic_partition] = state
                self._wanted.set()

    async def run(self) -> None:
        while True:
            time = now()
            due = {p: state for p, state in self._leaderless.items() if state.open and state.retry_at <= time}
            if due:
                await self.look(due)
                continue
            self._leaderless = {p: state for p, state in self._leaderless.items() if state.open}
            self._leaderless_since = {p: since for p, since in self._leaderless_since.items() if p in self._leaderless}
            self._logged.intersection_update(self._leaderless)
            if not self._leaderless:
                self._leaders.forget_outage()
            self._wanted = anyio.Event()
            pauses = [state.retry_at - time for state in self._leaderless.values()]
            with anyio.move_on_after(min(pauses) if pauses else None):
                await self._wanted.wait()

    async def look(self, due: dict[TopicPartition, FetchState]) -> None:
        """Ask once for the leaders of these partitions: those that have one go to its fetcher, the others pause."""
        leaders = await self._ask(due)
        found: dict[Broker, list[FetchState]] = {}
        for partition, state in due.items():
            leader = leaders.get(partition) if leaders is not None else None
            if not isinstance(leader, Broker):
                state.pause(now())
                if leaders is not None:
                    self._note_leaderless(partition, leader or "not in the metadata")
            elif self._leaderless.get(partition) is state:
                del self._leaderless[partition]
                self._leaderless_since.pop(partition, None)
                self._logged.discard(partition)
                state.led_by(self._leaders.epochs.get(partition, -1))
                replica = self._leaders.brokers.get(state.preferred) if state.preferred is not None else leader
                if replica is None:  # it is not up; the leader may name it again, and at once
                    state.preferred = None
                    state.pause(now())
                found.setdefault(replica or leader, []).append(state)
        for broker, states in found.items():
            self._assign(broker, states)

    async def _ask(self, due: dict[TopicPartition, FetchState]) -> Mapping[TopicPartition, Broker | str] | None:
        """The leader of each, or why it has none; None when no broker could be asked."""
        try:
            return await self._leaders.of(due)
        except (ConnectionLostError, ZooKeeperError) as error:
            log.info("broker lookup failed", reason=str(error))
        except BrokersUnreachableError as error:
            new = [partition for partition in self._leaderless if partition not in self._logged]
            if new:
                log.warning("no broker returned a leader", partitions=len(self._leaderless), reason=str(error))
                self._logged.update(new)
        return None

    def _note_leaderless(self, partition: TopicPartition, reason: str) -> None:
        """A broker reports that the partition has no leader."""
        since = self._leaderless_since.setdefault(partition, now())
        if partition not in self._logged and now() - since >= PATIENCE:
            self._logged.add(partition)
            log.warning("partition has no leader", **partition._asdict(), reason=reason)
