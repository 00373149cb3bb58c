"""The reset policy: a position for a partition that has no stored offset, or whose log does not have the stored one.

A position found is stored, fenced, before anything is delivered from it: otherwise another member that takes over
before the first commit would resolve `largest` again and lose the records in between. Positions of a replayable sink
never move back silently, because its destination already has the records. Before a log is read, it is asked whether it
still holds what was read before the position (`find_divergence`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import error_code
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    LATEST,
    NOT_PERMITTED,
    AskedEpoch,
    Diverging,
    EpochEnd,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH
from kzconsumer.clock import now
from kzconsumer.errors import CoordinatorError, OffsetLostError
from kzconsumer.fetcher.fetch_rules import UNKNOWN_END, differs
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import UNKNOWN, Progress
from kzconsumer.registry.claim_record import Plan
from kzconsumer.settings.value_readers import FAIL, LARGEST, SMALLEST

log = get_logger("kzconsumer.fetcher")


_WAY_OUT: Final = 'set [offsets] truncated = "continue" to go on where it ends or differs'


class AskedLogs(NamedTuple):
    """What a leader says of logs whose positions are to be found."""

    begins: Mapping[TopicPartition, ListedOffset]
    """Of those that are not what was read before the position."""
    ends: Mapping[TopicPartition, ListedOffset]
    """Likewise."""
    listed: Mapping[TopicPartition, ListedOffset]
    """Of the others: where the policy begins; the end if that is before the position of a replayable sink."""
    behind: Sequence[FetchState]
    """Those of which it is the end."""
    inside: Mapping[FetchState, tuple[int, int]]
    """Those whose position is in the log, contrary to the answer to the fetch: where the log begins and ends."""


class OffsetReset:
    """The policy of one member: `smallest`, `largest` or `fail`.

    With `isolation` READ_COMMITTED `largest` is the last stable offset, as for Kafka's own consumer. For a replayable
    sink `truncated` says what to do about a log that ends before what was consumed: `fail` or `continue`; `set_aside`
    excludes a range from its destination. `lose_recreated` ends claims whose log is that of another topic.
    """

    def __init__(
        self,
        policy: str,
        committer: Committer,
        timeout: float,
        isolation: int,
        truncated: str | None = None,
        set_aside: Callable[[RangeIdentity, int], Awaitable[bool]] | None = None,
        lose_recreated: Callable[[Sequence[Progress]], Awaitable[None]] | None = None,
    ) -> None:
        self._policy = policy
        self._isolation = isolation
        self._committer = committer
        self._timeout = timeout
        self._truncated = truncated
        self._set_aside = set_aside
        self._lose_recreated = lose_recreated

    @property
    def refuses(self) -> bool:
        return self._policy == FAIL

    def fails_at_once(self, state: FetchState) -> bool:
        """The policy is to fail, and nothing that the leader may say changes that."""
        return self.refuses and (state.diverging is not None or not self._may_be_kept(state))

    def refusal(self, state: FetchState) -> OffsetLostError:
        if state.diverging is not None:
            return OffsetLostError(f'{_divergence(state, state.diverging)}, and reset = "fail"')
        what = (
            "has no stored offset"
            if state.position is None
            else f"is not in the log any more, or not yet, at offset {state.position}"
        )
        return OffsetLostError(f'{state.topic_partition} {what}, and reset = "fail"')

    def begin_late(self, state: FetchState, plan: Plan, begin: int) -> bool:
        """The log begins behind the first offset of a planned range: fetch what is left of it, if the policy allows.

        False when the policy is to fail. What is left is written as that range: its destination takes a range once, so
        it has these records once, even if another member is still writing all of them.
        """
        if self.refuses:
            return False
        until = min(begin, plan.until)
        log.error(
            "records are gone from the log",
            **state.topic_partition._asdict(),
            first=plan.first,
            until=until,
            policy=self._policy,
            planned=f"{plan.first} to {plan.until}",
        )
        state.pass_over(plan.first, until)
        return True

    async def end_early(self, state: FetchState, plan: Plan, begin: int, end: int, log_end: int) -> bool:
        """The log ends, or has other records, before a planned range does: give the plan up, in a new epoch, if the
        policy allows.

        False when the policy is to fail. What is left of the range is redelivered, perhaps in other ranges. `end` is
        where the log ends or begins to differ (UNKNOWN_END: somewhere), `log_end` where it ends. Raises
        CoordinatorError, and SinkError if the destination does not answer.
        """
        if self.refuses or self._truncated != "continue":
            return False
        at = min(max(plan.first, begin), log_end if end == UNKNOWN_END else end)
        progress = state.progress
        # The member that planned the range may still be writing it. It would publish, in the earlier epoch, what is
        # left of the range in the log and is about to be written in the new one: once is enough. So the destination
        # decides, before the new epoch begins, that nobody publishes the range, or it has it by now.
        planned = RangeIdentity(*state.topic_partition, progress.incarnation, progress.epoch, plan.first, plan.until)
        if self._set_aside is not None and not await self._set_aside(planned, plan.records):
            self._committer.lose(progress, "the planned range was published meanwhile")  # a new claim only commits it
            return True
        if await self._committer.store_start(progress, at, new_epoch=True):
            progress.give_up_replay(at)
            state.move_to(at)
            self._log_truncated(state, max(plan.first, end), plan.until, log_end, at)
        return True

    async def ask(self, connection: BrokerConnection, states: Sequence[FetchState]) -> AskedLogs:
        """What `resolve` has to know of their logs. Raises ConnectionLostError, ProtocolError."""
        diverged = [state for state in states if state.diverging is not None]
        begins = await self._list(connection, dict.fromkeys(diverged, EARLIEST))
        ends = await self._list(connection, dict.fromkeys(diverged, LATEST))
        others = [state for state in states if state.diverging is None]
        listed = await self._list(connection, {state: self._timestamp(state) for state in others})
        # For a position behind the end of the log that end is needed: the destination has what is before it.
        behind = [s for s in others if self._truncated is not None and _moves_back(s, listed.get(s.topic_partition))]
        other_ends = {s: self._other_end(s) for s in others if self._may_be_inside(s, listed)}
        found = await self._list(connection, other_ends)
        inside: dict[FetchState, tuple[int, int]] = {}
        answers = dict(listed)
        for state, asked in other_ends.items():
            partition = state.topic_partition
            one, other = listed[partition], found.get(partition)
            if other is None:
                answers.pop(partition)
                continue
            if not _is_offset(other):
                answers[partition] = other  # asked again later
                continue
            begin, end = (one.offset, other.offset) if asked == LATEST else (other.offset, one.offset)
            if state.position is not None and begin <= state.position <= end:
                inside[state] = begin, end
            elif state in behind and asked == LATEST:
                answers[partition] = other
        return AskedLogs(begins, ends, answers, behind, inside)

    async def resolve(self, states: Sequence[FetchState], logs: AskedLogs) -> list[FetchState]:
        """Give each state a position; returns those whose broker did not say it, or that could not be stored."""
        diverged = [state for state in states if state.diverging is not None]
        elsewhere = await self._resolve_diverged(diverged, logs)
        starts: dict[FetchState, int] = {}
        epochs: dict[Progress, int] = {}
        for state in states:
            if state in diverged:
                continue
            answer = logs.listed.get(state.topic_partition)
            if answer is None or not _is_offset(answer):
                elsewhere.append(_refused(state, answer))
            elif state in logs.inside:
                elsewhere.append(_kept(state, *logs.inside[state]))
            elif self.refuses:
                if state.open:
                    state.fail(self.refusal(state))
            elif state.open and state in logs.behind:
                try:
                    await self._shorten(state, answer.offset)
                except CoordinatorError as error:
                    elsewhere.append(_not_stored(state, error))
            elif state.open and (start := self._start(state, answer.offset)) is not None:
                starts[state] = start
                epochs[state.progress] = answer.leader_epoch if start == answer.offset else -1
        return elsewhere + await self._begin(starts, epochs)

    async def _resolve_diverged(self, states: Sequence[FetchState], logs: AskedLogs) -> list[FetchState]:
        elsewhere = []
        for state in states:
            begin, end = logs.begins.get(state.topic_partition), logs.ends.get(state.topic_partition)
            if begin is None or not _is_offset(begin):
                elsewhere.append(_refused(state, begin))
            elif end is None or not _is_offset(end):
                elsewhere.append(_refused(state, end))
            elif state.open and state.diverging is not None:
                try:
                    await self._replaced(state, state.diverging, begin.offset, end.offset)
                except CoordinatorError as error:
                    elsewhere.append(_not_stored(state, error))
        return elsewhere

    async def _replaced(self, state: FetchState, found: Diverging, begin: int, end: int) -> None:
        """The log, from `begin` to `end`, has other records than those that were read before the position.

        The destination of a replayable sink has the old ones: it goes on where the log differs, as one that is too
        short does, in a new epoch.
        """
        before, progress, replayable = state.position, state.progress, self._truncated is not None
        assert before is not None
        if await self._is_of_another_topic(state):
            return
        if replayable and self._truncated != "continue":
            state.fail(OffsetLostError(f"{_divergence(state, found)}; {_WAY_OUT}"))
            return
        if progress.replay is not None:
            self._claim_again(progress)
            return
        if found.end_offset >= 0 and (replayable or self._policy == SMALLEST):
            at = max(found.end_offset, begin)
        elif replayable:
            at = min(before, end)
        else:
            at = begin if self._policy == SMALLEST else end
        if not (progress.settled and progress.consumed == before):
            return  # what was fetched before may not be processed yet: asked again later
        led = found.epoch if at == found.end_offset else -1
        first, replaced = (found.end_offset, before - found.end_offset) if found.end_offset >= 0 else (None, None)
        about = {"leader_epoch": state.epoch, "log_epoch": found.epoch, "replaced": replaced}
        self._log_truncated(state, first, before, end, at, **about)
        if await self._committer.store_start(progress, at, leader_epoch=led, new_epoch=replayable):
            state.restart(at, led, self._committer.replace)
            state.diverging = None
            _read_from(state, at)

    async def _begin(self, starts: Mapping[FetchState, int], epochs: Mapping[Progress, int]) -> list[FetchState]:
        """Store these positions, and read on from there; returns those that could not be stored."""
        if not starts:
            return []
        at = {state.progress: start for state, start in starts.items()}
        try:
            stored, refused = await self._committer.store_starts(at, leader_epochs=epochs)
        except CoordinatorError as error:
            return [_not_stored(state, error) for state in starts]
        for state, start in starts.items():
            if state.progress in stored:  # else it is no longer ours, and the committer has closed the claim
                state.restart(start, epochs[state.progress], self._committer.replace)
                _read_from(state, start)
        return [_not_stored(s, refused[s.topic_partition]) for s in starts if s.topic_partition in refused]

    async def _list(
        self, connection: BrokerConnection, asked: Mapping[FetchState, int]
    ) -> Mapping[TopicPartition, ListedOffset]:
        if not asked:
            return {}
        times = {state.topic_partition: timestamp for state, timestamp in asked.items()}
        return await connection.call(ListOffsetsRequest(times, self._isolation), timeout=self._timeout)

    def _may_be_kept(self, state: FetchState) -> bool:
        """Whether a position that the broker refuses is kept, if the broker then says that its log has it.

        New leaders refuse offsets of tiered storage of which they do not know yet. If the log was cut off and has
        grown past the position meanwhile, only epochs show it. Without them the member goes on where it skips least.
        """
        if state.position is None:
            return False
        return self._truncated is not None or state.epoch >= 0 or self._policy == LARGEST

    def _may_be_inside(self, state: FetchState, listed: Mapping[TopicPartition, ListedOffset]) -> bool:
        """By the end of the log that was asked for."""
        answer = listed.get(state.topic_partition)
        if state.position is None or answer is None or not _is_offset(answer) or not self._may_be_kept(state):
            return False
        begins = self._timestamp(state) == EARLIEST
        return answer.offset <= state.position if begins else answer.offset >= state.position

    def _timestamp(self, state: FetchState) -> int:
        return LATEST if self._policy == LARGEST and state.progress.replay is None else EARLIEST

    def _other_end(self, state: FetchState) -> int:
        return LATEST if self._timestamp(state) == EARLIEST else EARLIEST

    async def _shorten(self, state: FetchState, end: int) -> None:
        """The log of a replayable sink's partition ended before the position when it was asked."""
        before, progress = state.position, state.progress
        assert before is not None
        if await self._is_of_another_topic(state):
            pass
        elif self._truncated != "continue":
            state.fail(_truncation(state, end))
        elif progress.replay is not None:
            self._claim_again(progress)
        elif progress.settled and progress.consumed == before:
            self._log_truncated(state, end, before, end, end)
            if await self._committer.store_start(progress, end, new_epoch=True):
                state.restart(end, UNKNOWN, self._committer.replace)
                state.move_to(end)
                state.reset_due = False
                state.succeed()

    async def _is_of_another_topic(self, state: FetchState) -> bool:
        """Whether the claim is lost. The new topic's log is no truncated one, of which an operator should hear."""
        if self._lose_recreated is not None:
            await self._lose_recreated([state.progress])
        return not state.open

    def _claim_again(self, progress: Progress) -> None:
        """The log has lost records of a planned range while they were read again.

        Part of the range may be queued already. A new claim asks the destination for the range, and compares all of it
        with the log before it reads anything: it gives the range up then (`end_early`).
        """
        self._committer.lose(progress, "the log has lost records of a planned range")

    def _start(self, state: FetchState, offset: int) -> int | None:
        """The position to be stored before anything is read from it; None if there is none."""
        before, progress = state.position, state.progress
        where = state.topic_partition._asdict()
        if progress.replay is not None:
            offset = min(offset, progress.replay.until)
            if offset == before:
                return None  # all of the range is read, but not yet committed: asked again once it is
        if before is not None and offset > before and (self._policy == SMALLEST or progress.replay is not None):
            log.error("records are gone from the log", **where, first=before, until=offset, policy=self._policy)
            # The claim passes the gap in its place in the queue, after what was fetched before it. That is not stored
            # first: the next owner would find the same gap, or a larger one.
            state.pass_over(before, offset)
            _read_from(state, offset)
        elif before is None:
            return offset
        elif progress.settled and progress.consumed == before:
            log.error("stored offset out of range", **where, stored=before, now=offset)
            return offset
        return None  # what was fetched before may not be processed yet: asked again later

    @staticmethod
    def _log_truncated(
        state: FetchState, first: int | None, until: int, end: int, at: int, **epochs: int | None
    ) -> None:
        where = state.topic_partition._asdict()
        event = "log truncated below the consumed offset"
        log.error(event, **where, first=first, until=until, log_end=end, continues_at=at, **epochs)


def _is_offset(answer: ListedOffset) -> bool:
    return answer.error == error_codes.NONE and answer.offset >= 0


def count_refusal(state: FetchState, broker: int, reason: str) -> None:
    """The broker that is said to have it answers with an error, and its leader is looked up: logged if it lasts."""
    if state.count_refusal(now()):
        where = {**state.topic_partition._asdict(), "broker": broker, "reason": reason}
        if state.preferred == broker:
            log.warning("partition refused by the replica that its leader names, retrying", **where)
        else:
            log.warning("partition refused by its leader, retrying", **where)


def _refused(state: FetchState, answer: ListedOffset | EpochEnd | None) -> FetchState:
    """The broker does not say where the partition's log ends."""
    reason = "left out" if answer is None else error_code(answer.error).name if answer.error else "no offset"
    count_refusal(state, state.broker, reason)
    return state


def _kept(state: FetchState, begin: int, end: int) -> FetchState:
    """The log, from `begin` to `end`, holds the position, though the broker refused it: it is asked for again."""
    state.reset_due = False
    if state.count_refusal(now()):
        where = {**state.topic_partition._asdict(), "broker": state.broker}
        event = "offset refused though the log has it, retrying"
        log.warning(event, **where, offset=state.position, log_start=begin, log_end=end)
    return state


def _read_from(state: FetchState, offset: int) -> None:
    if state.position is None:
        state.retry_at = 0.0  # no error; but a position outside the log may be followed by another
    state.move_to(offset)
    state.reset_due = False
    state.succeed()


def _not_stored(state: FetchState, reason: object) -> FetchState:
    log.warning("start position not stored, retrying", partition=str(state.topic_partition), reason=str(reason))
    return state


def _truncation(state: FetchState, end: int) -> OffsetLostError:
    return OffsetLostError(
        f"{state.topic_partition}: the log ends at {end}, before offset {state.position} that was consumed: it was "
        f"truncated (an unclean leader election); {_WAY_OUT}"
    )


def _divergence(state: FetchState, found: Diverging) -> str:
    return differs(state.topic_partition, state.position or 0, state.epoch, found)


def _moves_back(state: FetchState, listed: ListedOffset | None) -> bool:
    before = state.position
    return before is not None and listed is not None and _is_offset(listed) and listed.offset < before


# Whether a leader's log still holds what was read before a position: asked before it is fetched from.
#
# A log that was cut off (an unclean election, a broker restored from a copy) and has grown past the position again
# would be read on without a log line. The leader epoch of the last record before the position shows the
# difference (KIP-320).


class EpochEnds(NamedTuple):
    """What a leader says of the leader epochs before positions."""

    ends: Mapping[TopicPartition, EpochEnd]
    """Where the epoch before each position ends."""
    first: Mapping[TopicPartition, EpochEnd]
    """Of logs without such an epoch, the same of epoch 0."""


async def epoch_ends(connection: BrokerConnection, states: Iterable[FetchState], timeout: float) -> EpochEnds | None:
    """What `find_divergence` has to know, by one request about all positions of known epoch; None if nothing is known:

    of positions without epoch, of brokers before 0.11, of logs in the formats before that, and without
    permission. Raises ConnectionLostError, ProtocolError.
    """
    asked = {state.topic_partition: state for state in states if state.epoch >= 0}
    if not asked or OFFSET_FOR_LEADER_EPOCH not in connection.versions.ranges:
        return None
    ends = await _ends(connection, {each: state.epoch for each, state in asked.items()}, asked, timeout)
    # A log of records without epochs, or of epochs that all are lower? The latter has one for its first record.
    without = [each for each, end in ends.items() if each in asked and not end.error and end.end_offset < 0]
    first = await _ends(connection, dict.fromkeys(without, 0), asked, timeout) if without else {}
    return EpochEnds(ends, first)


def find_divergence(found: EpochEnds | None, states: Iterable[FetchState]) -> list[FetchState]:
    """Set `diverging` of those whose log does not hold the position. Returns those whose leader has to be looked up."""
    elsewhere = []
    for state in states:
        if found is None or state.epoch < 0:
            continue
        partition, end = state.topic_partition, found.ends.get(state.topic_partition)
        if end is None or (end.error != error_codes.NONE and end.error not in NOT_PERMITTED):
            elsewhere.append(_refused(state, end))
        elif end.error != error_codes.NONE:
            _report_unchecked(partition, end.error)
        elif end.end_offset >= 0:
            _compare(state, Diverging(end.epoch, end.end_offset))
        elif (first := found.first.get(partition)) is not None and not first.error and first.end_offset >= 0:
            _compare(state, Diverging(first.epoch, UNKNOWN_END))
    return elsewhere


def _compare(state: FetchState, end: Diverging) -> None:
    if state.open and state.position is not None and end.end_offset < state.position:
        state.diverging = end
        state.reset_due = True


async def _ends(
    connection: BrokerConnection,
    epochs: Mapping[TopicPartition, int],
    states: Mapping[TopicPartition, FetchState],
    timeout: float,
) -> Mapping[TopicPartition, EpochEnd]:
    asked = {partition: AskedEpoch(epoch, states[partition].leader_epoch) for partition, epoch in epochs.items()}
    return await connection.call(OffsetForLeaderEpochRequest(asked), timeout=timeout)


def _report_unchecked(partition: TopicPartition, error: int) -> None:
    log.warning(
        "log not compared with the stored position",
        **partition._asdict(),
        reason=error_code(error).name,
        needed=NOT_PERMITTED[error],
    )
