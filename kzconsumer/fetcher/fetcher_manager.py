"""The fetchers of one membership: one per broker, and the LeaderFinder that feeds them.

Owns which fetchers there are. The claims start partitions here; a closed claim's tracker is what stops them, so there
is nothing to stop and nothing to wait for.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
from anyio.abc import TaskGroup

from kzconsumer.config import FetchSettings
from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.leader_finder import LeaderFinder
from kzconsumer.fetcher.leaders import Leaders
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.fetcher.reading import Reading
from kzconsumer.model import Broker
from kzconsumer.network.brokers import Brokers


class FetcherManager:
    """`run` lasts as long as the membership; cancelling it ends all fetching."""

    def __init__(
        self, leaders: Leaders, brokers: Brokers, settings: FetchSettings, reset: OffsetReset, read: Reading
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._reset = reset
        self._read = read
        self._leader_finder = LeaderFinder(leaders, self._assign)
        self._fetchers: dict[int, tuple[BrokerFetcher, anyio.CancelScope]] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<FetcherManager {[fetcher for fetcher, _ in self._fetchers.values()]} {self._leader_finder}>"

    def __contains__(self, state: PartitionFetchState) -> bool:
        """Somebody fetches it, or looks for its leader."""
        return state in self._leader_finder or any(state in fetcher for fetcher, _ in self._fetchers.values())

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            await self._leader_finder.run()

    def start(self, states: Iterable[PartitionFetchState]) -> None:
        self._leader_finder.add(states)

    def _assign(self, broker: Broker, states: list[PartitionFetchState]) -> None:
        assert self._tasks is not None
        present = self._fetchers.get(broker.id)
        if present is not None and present[0].broker != broker:
            # The broker came back at another address: the old fetcher sends back what it holds as it ends.
            present[1].cancel()
            present = None
        if present is None:
            fetcher = BrokerFetcher(
                broker, self._brokers, self._settings, self._reset, self._read, self._leader_finder.add
            )
            scope = anyio.CancelScope()
            self._fetchers[broker.id] = fetcher, scope
            self._tasks.start_soon(self._run, fetcher, scope)
        else:
            fetcher, _ = present
        fetcher.add(states)

    @staticmethod
    async def _run(fetcher: BrokerFetcher, scope: anyio.CancelScope) -> None:
        with scope:
            await fetcher.run()
