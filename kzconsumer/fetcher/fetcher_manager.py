"""The fetchers of one membership: one per broker and 100 partitions. The LeaderFinder feeds them.

The claimer starts partitions here. Closing a partition's progress stops its fetching: there is nothing to stop or wait
for.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import count, islice

import anyio
from anyio.abc import TaskGroup

from kzconsumer.brokers.leaders import END_PATIENCE, LATE, LOWER_EPOCHS, Leaders, LogOffsets
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import EARLIEST, LATEST, EpochEnd, ListedOffset
from kzconsumer.clock import now
from kzconsumer.counters import Counters
from kzconsumer.end_offsets import EndOffsets
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    CoordinatorError,
    KzConsumerError,
    OffsetLostError,
    ZooKeeperError,
)
from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.fetch_rules import UNKNOWN_END, FetchForm
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.leader_finder import LeaderFinder
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.throttle import RateLimit
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.start_rules import missing
from kzconsumer.registry.claim_record import Plan
from kzconsumer.settings.sections import FetchSettings

log = get_logger("kzconsumer.fetcher")

# Partitions of one fetch session at most. For each answer a broker looks at the logs of all that the session has: with
# more, it costs a record more of the broker's processor and of time. Each session has a connection of its own, since a
# broker reads no other request from it while it holds an answer back. The original consumer's `num.consumer.fetchers`
# is the number of them (`AbstractFetcherManager`, 1.1.1); here it follows the partitions.
SESSION_PARTITIONS = 100
# Seconds between two attempts to read the log offsets of planned ranges.
PAUSE = 1.0
# Seconds between two looks at brokers that are late.
LOOK = 2.0
# Failed attempts before one is logged: a new leader is often there within a moment.
ATTEMPTS_UNLOGGED = 3


class FetcherManager:
    """`run` lasts as long as the membership; cancelling it ends all fetching."""

    def __init__(
        self,
        leaders: Leaders,
        brokers: Brokers,
        settings: FetchSettings,
        reset: OffsetReset,
        read: FetchForm,
        log_offsets: LogOffsets,
        end_offsets: EndOffsets | None,
        counters: Counters,
        rack: str = "",
    ) -> None:
        self._brokers = brokers
        self._settings = settings
        self._rack = rack
        self._reset = reset
        self._read = read
        self._log_offsets = log_offsets
        self._end_offsets = end_offsets
        self._counters = counters
        self._limit = RateLimit(settings.rate_limit)
        self._endless: dict[TopicPartition, FetchState] = {}  # no end offset known, or left out
        self._ending: dict[TopicPartition, FetchState] = {}  # with an end offset, which may still change
        self._replays: dict[TopicPartition, FetchState] = {}  # planned ranges that the log may have lost
        self._deciding = set[FetchState]()  # of these what a task is deciding about, and no other one may
        self._leaders = leaders
        self._leader_finder = LeaderFinder(leaders, self._assign)
        self._fetchers: dict[int, tuple[BrokerFetcher, anyio.CancelScope]] = {}  # by number
        self._numbers = count()
        self._tasks: TaskGroup | None = None

    def __contains__(self, state: FetchState) -> bool:
        """It is fetched, or its leader, end offset or planned range is being looked up."""
        return (
            state in self._leader_finder
            or self._fetcher_of(state) is not None
            or state in self._deciding
            or state in (self._endless.get(state.topic_partition), self._replays.get(state.topic_partition))
        )

    def seeks_leader(self, state: FetchState) -> bool:
        return state in self._leader_finder

    def leader_of(self, state: FetchState) -> int | None:
        """Id of the broker that it is fetched from at the moment."""
        return fetcher.broker.id if (fetcher := self._fetcher_of(state)) is not None else None

    def throttled(self, state: FetchState) -> bool:
        """A quota of its broker holds this member back."""
        return (fetcher := self._fetcher_of(state)) is not None and fetcher.throttled

    @property
    def rate_limited(self) -> bool:
        """`[fetch] rate_limit` forbids requests at the moment."""
        return self._limit.wait(now()) > 0

    def _fetcher_of(self, state: FetchState) -> BrokerFetcher | None:
        fetcher, _ = self._fetchers.get(state.fetcher, (None, None))
        return fetcher if fetcher is not None and state in fetcher else None

    def limit(self, per_second: int | None) -> None:
        """Set the rate limit, in bytes per second."""
        self._limit.change(per_second)
        self._wake()

    def _wake(self) -> None:
        for fetcher, _ in self._fetchers.values():
            fetcher.wake()

    async def run(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            try:
                self.look_for_ends()
                self._tasks.start_soon(self.check_replays)
                self._tasks.start_soon(self._look_for_late_brokers)
                await self._leader_finder.run()
            finally:
                self._tasks = None  # a stop ends fetching before the rebalancer, which may still claim partitions

    def start(self, states: Iterable[FetchState]) -> None:
        # A claim that was closed meanwhile must not replace the state of a later one.
        going = [state for state in states if state.open]
        replays = {state.topic_partition: state for state in going if state.progress.replay is not None}
        if replays:
            self._replays.update(replays)
            if self._tasks is not None:
                self._tasks.start_soon(self.check_replays)
            going = [state for state in going if state.topic_partition not in replays]
        if self._end_offsets is None:
            self._leader_finder.add(going)
            return
        self._endless.update({state.topic_partition: state for state in going})
        self.look_for_ends()

    def look_for_ends(self) -> None:
        """Call when end offsets may have become known, have changed, or partitions were added."""
        if self._end_offsets is not None and self._tasks is not None:
            self._tasks.start_soon(self._find_ends, self._end_offsets)

    async def _find_ends(self, end_offsets: EndOffsets) -> None:
        """Fetching begins once it is known where it ends."""
        await end_offsets.known.wait()
        self._endless = {partition: state for partition, state in self._endless.items() if state.open}
        found = [s for p, s in self._endless.items() if not end_offsets.leaves_out(p, s.progress.incarnation)]
        for state in found:
            self._ending[state.topic_partition] = self._endless.pop(state.topic_partition)
        self._ending = {partition: state for partition, state in self._ending.items() if state.open}
        for partition, state in self._ending.items():
            state.stop = end_offsets.of(partition, state.progress.incarnation)
        self._wake()
        self._leader_finder.add(found)

    async def check_replays(self) -> None:
        """A planned range is fetched once the log is known to hold all of it; else the reset policy decides."""
        short: dict[FetchState, float] = {}  # since when
        unanswered = Counter[FetchState]()
        patience = LATE  # with leaders that do not answer: others may lead by now, and other ranges wait
        while waiting := {partition: state for partition, state in self._replays.items() if state.open}:
            asked = now()
            begins = await self._log_offsets_at(waiting, EARLIEST, patience)
            answered = {each: state for each, state in waiting.items() if isinstance(begins[each], ListedOffset)}
            ends = begins | await self._log_offsets_at(answered, LATEST, patience)
            epoch_ends = await self._epoch_ends(answered, patience)
            if now() - asked >= patience:
                patience = min(2 * patience, self._settings.request_timeout)
            for partition, state in waiting.items():
                if self._replays.get(partition) is not state or not state.open:
                    continue  # another task like this one, or its claim, was faster
                first, last, differs = begins[partition], ends[partition], epoch_ends.get(partition)
                answers = (first, last, differs)
                if (
                    not isinstance(first, ListedOffset)
                    or not isinstance(last, ListedOffset)
                    or isinstance(differs, KzConsumerError)
                ):
                    unanswered[state] += 1
                    if unanswered[state] == ATTEMPTS_UNLOGGED:
                        reason = str(next(each for each in answers if isinstance(each, KzConsumerError)))
                        event = "log offsets of a planned range not available"
                        log.warning(event, **partition._asdict(), reason=reason)
                    continue
                plan = state.progress.replay
                assert plan is not None
                begin, end = first.offset, last.offset if differs is None else min(last.offset, differs)
                if end == last.offset < plan.until and now() - short.setdefault(state, now()) < END_PATIENCE:
                    continue
                del self._replays[partition]
                self._deciding.add(state)  # a minute, if the destination takes that long
                try:
                    if await self._is_replayed(state, plan, begin, end, last.offset):
                        self._leader_finder.add([state])
                finally:
                    self._deciding.discard(state)
            if self._replays:
                await anyio.sleep(PAUSE)

    async def _is_replayed(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
        """Whether the range is fetched now. Its records are in the log from `begin` up to `end`, the log up to
        `log_end`; the reset policy decides about those that are not.
        """
        lacking = missing(plan, begin, end)
        if end < plan.until:
            try:
                resumes = await self._reset.end_early(state, plan, begin, end, log_end)
            except CoordinatorError as error:
                event = "planned range not abandoned, retrying"
                log.warning(event, **state.topic_partition._asdict(), reason=str(error), again=True)
                self._replays.setdefault(state.topic_partition, state)
                return False
        else:
            resumes = not lacking or self._reset.begin_late(state, plan, begin)
        if not resumes:
            state.fail(_replay_lost(state, lacking, begin, end, log_end, refuses=self._reset.refuses))
            return False
        if state.progress.replay is None:
            self.start([state])
            return False
        return True

    async def _look_for_late_brokers(self) -> None:
        """Partitions whose broker does not answer, and that another one leads by now, are not left waiting for it."""
        while True:
            await anyio.sleep(LOOK)
            time = now()
            late = {state.topic_partition for fetcher, _ in self._fetchers.values() for state in fetcher.late(time)}
            if not late:
                continue
            try:
                leaders = await self._leaders.of(late)
            except (ConnectionLostError, ZooKeeperError, BrokersUnreachableError):
                continue
            for fetcher, _ in list(self._fetchers.values()):
                moved = []
                for state in fetcher.late(now()):
                    leader = leaders.get(state.topic_partition)
                    if isinstance(leader, Broker) and not leader.is_at(fetcher.broker):  # another, or elsewhere
                        moved.append(state)
                if moved:
                    log.info("broker does not answer, others lead", broker=fetcher.broker.id, partitions=len(moved))
                    fetcher.leave(moved)

    async def _epoch_ends(
        self, waiting: Mapping[TopicPartition, FetchState], within: float
    ) -> dict[TopicPartition, int | KzConsumerError]:
        """Where the log's records up to the epoch of a planned range end, for those of known epoch, or why there is no
        answer. UNKNOWN_END: the log is another one, and nothing says from where on."""
        epochs: dict[TopicPartition, int] = {}
        for partition, state in waiting.items():
            if (plan := state.progress.replay) is not None and plan.epoch_before_end >= 0:
                epochs[partition] = plan.epoch_before_end
        try:
            found = await self._log_offsets.epoch_ends(epochs, within=within) if epochs else {}
        except KzConsumerError as error:
            return dict.fromkeys(epochs, error)
        return {
            partition: end if not isinstance(end, EpochEnd) else UNKNOWN_END if end == LOWER_EPOCHS else end.end_offset
            for partition, end in found.items()
            if not isinstance(end, EpochEnd) or end.end_offset >= 0
        }

    async def _log_offsets_at(
        self, waiting: Collection[TopicPartition], at: int, within: float
    ) -> dict[TopicPartition, ListedOffset | KzConsumerError]:
        """The log offset of each partition, or the error that kept it from being read."""
        try:
            return {**await self._log_offsets.once(dict.fromkeys(waiting, at), within=within)} if waiting else {}
        except KzConsumerError as error:
            return dict.fromkeys(waiting, error)

    def _assign(self, broker: Broker, states: list[FetchState]) -> None:
        # A state that a fetcher has stays there, or two would queue its records: `start` may be called twice for it, by
        # a seek in `on_assigned` that takes longer than the call.
        new = [state for state in states if self._fetcher_of(state) is None]
        for former in self._of(broker.id):
            if not former.broker.is_at(broker):  # it has another address now
                self._fetchers[former.number][1].cancel()
        fetchers = self._of(broker.id)
        partitions = sum(map(len, fetchers)) + len(new)
        while len(fetchers) * SESSION_PARTITIONS < partitions:
            fetchers.append(self._begin(broker))
        rest = iter(new)
        for fetcher in fetchers:
            fetcher.share(len(fetchers))
            fetcher.add(islice(rest, max(0, math.ceil(partitions / len(fetchers)) - len(fetcher))))

    def merge(self) -> None:
        """Call when partitions have left: a few need no more than a fetcher. Others have theirs found again."""
        for broker in {fetcher.broker.id for fetcher, _ in self._fetchers.values()}:
            fetchers = sorted(self._of(broker), key=len)
            needed = max(1, math.ceil(sum(map(len, fetchers)) / SESSION_PARTITIONS))
            if len(fetchers) > 2 * needed:
                for fetcher in fetchers[:-needed]:
                    self._fetchers[fetcher.number][1].cancel()

    def _of(self, broker: int) -> list[BrokerFetcher]:
        """Those that are not about to end."""
        return [
            fetcher
            for fetcher, scope in self._fetchers.values()
            if fetcher.broker.id == broker and not scope.cancel_called
        ]

    def _begin(self, broker: Broker) -> BrokerFetcher:
        assert self._tasks is not None
        fetcher = BrokerFetcher(
            broker,
            self._brokers,
            self._settings,
            self._reset,
            self._read,
            self._limit,
            self._leader_finder.add,
            self._counters,
            self._rack,
            next(self._numbers),
        )
        scope = anyio.CancelScope()
        self._fetchers[fetcher.number] = fetcher, scope
        self._tasks.start_soon(self._run, fetcher, scope)
        return fetcher

    async def _run(self, fetcher: BrokerFetcher, scope: anyio.CancelScope) -> None:
        """It sends back its partitions as it ends, once a thread that decodes has ended: they are in it until then."""
        try:
            with scope:
                await fetcher.run()
        finally:
            del self._fetchers[fetcher.number]


def _replay_lost(
    state: FetchState, lacking: tuple[tuple[int, int], ...], begin: int, end: int, log_end: int, *, refuses: bool
) -> OffsetLostError:
    plan = state.progress.replay
    assert plan is not None
    gone = " and ".join(f"{first} to {until}" for first, until in lacking)
    differs = f", with other records from {end} on" if end < log_end else ""
    if end == UNKNOWN_END:
        differs = ", with leader epochs that are all lower"
    keys = ['truncated = "continue"'] if end < plan.until else []
    if refuses:
        keys.append('reset = "smallest"')
    way_out = f"Set [offsets] {' and '.join(keys)} to go on without"
    return OffsetLostError(
        f"{state.topic_partition}: offsets {plan.first} to {plan.until} were planned and not committed, and the log, "
        f"which is from {begin} to {log_end}{differs}, has lost {gone}; the destination does not have the range. "
        f"{way_out}"
    )
