"""The fetchers of one membership: one per broker, and the LeaderFinder that feeds them.

Owns which fetchers there are. The claims start partitions here; a closed claim's tracker is what stops them, so there
is nothing to stop and nothing to wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import anyio
import structlog
from anyio.abc import TaskGroup

from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.log_offsets import LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from kzconsumer.counters import Counters
from kzconsumer.errors import CoordinatorFailed, KzConsumerError, OffsetLost
from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.leader_finder import LeaderFinder
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.fetcher.rate_limit import RateLimit
from kzconsumer.fetcher.reading import Reading
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.adoption import missing
from kzconsumer.runs.end_offsets import EndOffsets
from kzconsumer.settings.sections import FetchSettings

log = structlog.get_logger("kzconsumer.fetcher")

# Between two attempts to look at the logs of planned ranges, in seconds.
PAUSE = 1.0
# A partition that was just claimed, or whose broker just stopped, may have its leader within a moment.
LOOKS_UNTOLD = 3


class FetcherManager:
    """`run` lasts as long as the membership; cancelling it ends all fetching."""

    def __init__(
        self,
        leaders: Leaders,
        brokers: Brokers,
        settings: FetchSettings,
        reset: OffsetReset,
        read: Reading,
        log_offsets: LogOffsets,
        end_offsets: EndOffsets | None,
        counters: Counters,
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._reset = reset
        self._read = read
        self._log_offsets = log_offsets
        self._end_offsets = end_offsets
        self._counters = counters
        self._limit = RateLimit(settings.rate_limit)
        self._endless: dict[TopicPartition, PartitionFetchState] = {}  # no end is known, or they have no part
        self._ending: dict[TopicPartition, PartitionFetchState] = {}  # at an end that may yet be moved
        self._replays: dict[TopicPartition, PartitionFetchState] = {}  # nor whether the log still holds these
        self._leader_finder = LeaderFinder(leaders, self._assign)
        self._fetchers: dict[int, tuple[BrokerFetcher, anyio.CancelScope]] = {}
        self._tasks: TaskGroup | None = None

    def __repr__(self) -> str:
        return f"<FetcherManager {[fetcher for fetcher, _ in self._fetchers.values()]} {self._leader_finder}>"

    def __contains__(self, state: PartitionFetchState) -> bool:
        """Somebody fetches it, looks for its leader, or for its end."""
        return (
            state in self._leader_finder
            or any(state in fetcher for fetcher, _ in self._fetchers.values())
            or state in (self._endless.get(state.topic_partition), self._replays.get(state.topic_partition))
        )

    def seeks_leader(self, state: PartitionFetchState) -> bool:
        return state in self._leader_finder

    def leader_of(self, state: PartitionFetchState) -> int | None:
        """The broker that it is fetched from at the moment."""
        return next((number for number, (fetcher, _) in self._fetchers.items() if state in fetcher), None)

    def limit(self, per_second: int | None) -> None:
        """Another rate from now on."""
        self._limit.change(per_second)
        for fetcher, _ in self._fetchers.values():
            fetcher.wake()

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            self.look_for_ends()
            self._tasks.start_soon(self._check_replays)
            await self._leader_finder.run()

    def start(self, states: Iterable[PartitionFetchState]) -> None:
        # One whose claim has ended meanwhile must not take the place of the one that came after it.
        going = [state for state in states if state.open]
        replays = {state.topic_partition: state for state in going if state.tracker.replay is not None}
        if replays:
            self._replays.update(replays)
            if self._tasks is not None:
                self._tasks.start_soon(self._check_replays)
            going = [state for state in going if state.topic_partition not in replays]
        if self._end_offsets is None:
            self._leader_finder.add(going)
            return
        self._endless.update({state.topic_partition: state for state in going})
        self.look_for_ends()

    def look_for_ends(self) -> None:
        """Ends may be known by now, or others, or partitions have come that have no end yet."""
        if self._end_offsets is not None and self._tasks is not None:
            self._tasks.start_soon(self._find_ends, self._end_offsets)

    async def _find_ends(self, end_offsets: EndOffsets) -> None:
        """Fetching begins when it is known where it ends."""
        await end_offsets.known.wait()
        self._endless = {partition: state for partition, state in self._endless.items() if state.open}
        found = [s for p, s in self._endless.items() if not end_offsets.leaves_out(p, s.tracker.incarnation)]
        for state in found:
            self._ending[state.topic_partition] = self._endless.pop(state.topic_partition)
        self._ending = {partition: state for partition, state in self._ending.items() if state.open}
        for partition, state in self._ending.items():
            state.stop = end_offsets.of(partition, state.tracker.incarnation)
        self._leader_finder.add(found)

    async def _check_replays(self) -> None:
        """A planned range is fetched when it is known that the log holds all of it; else the policy decides."""
        short: set[PartitionFetchState] = set()
        unanswered = Counter[PartitionFetchState]()
        while waiting := {partition: state for partition, state in self._replays.items() if state.open}:
            begins, ends = await self._look(waiting, EARLIEST), await self._look(waiting, LATEST)
            whole = []
            for partition, state in waiting.items():
                if self._replays.get(partition) is not state or not state.open:
                    continue  # meanwhile, by another task of this kind or by its owner
                first, last = begins[partition], ends[partition]
                if not isinstance(first, ListedOffset) or not isinstance(last, ListedOffset):
                    unanswered[state] += 1
                    if unanswered[state] == LOOKS_UNTOLD:
                        reason = str(last if isinstance(first, ListedOffset) else first)
                        event = "log of a planned range cannot be looked at"
                        log.warning(event, **partition._asdict(), reason=reason)
                    continue
                plan = state.tracker.replay
                assert plan is not None
                begin, end = first.offset, last.offset
                lacking = missing(plan, begin, end)
                if end < plan.until and state not in short:
                    short.add(state)  # who has just become leader may not know yet how far the log goes
                    continue
                del self._replays[partition]
                if end < plan.until:
                    try:
                        goes_on = await self._reset.end_early(state, plan, begin, end)
                    except CoordinatorFailed as error:
                        event = "a planned range cannot be given up yet"
                        log.warning(event, **partition._asdict(), reason=str(error), again=True)
                        self._replays.setdefault(partition, state)
                        continue
                else:
                    goes_on = not lacking or self._reset.begin_late(state, plan, begin)
                if not goes_on:
                    state.fail(_replay_lost(state, lacking, begin, end))
                elif state.tracker.replay is None:
                    self.start([state])
                else:
                    whole.append(state)
            self._leader_finder.add(whole)
            if self._replays:
                await anyio.sleep(PAUSE)

    async def _look(
        self, waiting: Collection[TopicPartition], at: int
    ) -> Mapping[TopicPartition, ListedOffset | KzConsumerError]:
        """Of each partition its answer, or why there is none: one without a leader holds up no other."""
        try:
            found = await self._log_offsets.once(dict.fromkeys(waiting, at))
        except KzConsumerError as error:
            return dict.fromkeys(waiting, error)
        return found

    def _assign(self, broker: Broker, states: list[PartitionFetchState]) -> None:
        assert self._tasks is not None
        present = self._fetchers.get(broker.id)
        if present is not None and present[0].broker != broker:
            # The broker came back at another address: the old fetcher sends back what it holds as it ends.
            present[1].cancel()
            present = None
        if present is None:
            fetcher = BrokerFetcher(
                broker,
                self._brokers,
                self._settings,
                self._reset,
                self._read,
                self._limit,
                self._leader_finder.add,
                self._counters,
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


def _replay_lost(state: PartitionFetchState, lacking: tuple[tuple[int, int], ...], begin: int, end: int) -> OffsetLost:
    plan = state.tracker.replay
    assert plan is not None
    gone = " and ".join(f"{first} to {until}" for first, until in lacking)
    key = 'truncated = "continue"' if end < plan.until else 'reset = "smallest"'
    way_out = f"Set [offsets] {key} to go on without"
    return OffsetLost(
        f"{state.topic_partition}: offsets {plan.first} to {plan.until} were planned and not committed, and the log, "
        f"which is from {begin} to {end}, has lost {gone}; the destination does not have the range. {way_out}"
    )
