"""When a partition whose position was reset may be fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.error_codes import NOT_LEADER_OR_FOLLOWER
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    ISOLATION_LEVELS,
    LATEST,
    Diverging,
    ListedOffset,
    ListOffsetsRequest,
)
from kzconsumer.errors import CoordinatorError
from kzconsumer.fetcher.fetch_rules import differs
from kzconsumer.fetcher.fetch_state import FIRST_PAUSE, LONGEST_PAUSE, REFUSALS_UNLOGGED, FetchState
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.registry.claim_record import Plan
from kzconsumer.settings.value_readers import FAIL, LARGEST, SMALLEST
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import TOPIC, progress
from tests.support.plans import plan_of

Outcome = tuple[set[Progress], dict[Any, str]]
NOW = 1000.0
BEGINNING = 7


class LogsThatBegin:
    """A broker whose logs all begin at one offset, and a store that takes every position."""

    async def call(self, request: object, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        return {progress().topic_partition: ListedOffset(0, BEGINNING, -1)}

    async def store_starts(self, offsets: Mapping[Progress, int], **_: object) -> Outcome:
        return set(offsets), {}

    def replace(self, old: Progress, new: Progress) -> None:
        pass


@pytest.mark.parametrize(("position", "fetchable"), [(None, True), (3, False)])
async def test_only_a_refused_position_is_followed_by_a_pause(position: int | None, fetchable: bool) -> None:
    logs = LogsThatBegin()
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    state = FetchState(progress(start=position or 0), ChunkQueue(1 << 20), position, 1 << 20)
    state.reset_due = True
    state.pause(NOW)  # as the fetcher does before it requests
    assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == []
    assert (state.position, state.fetchable(NOW)) == (BEGINNING, fetchable)


class Ends:
    """A broker of one log that may grow between two requests, and a store that remembers."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.stored: list[tuple[int, bool]] = []
        self.lost: list[Progress] = []

    async def call(self, request: ListOffsetsRequest, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        return {
            partition: ListedOffset(0, self.begin if timestamp == EARLIEST else self.end, -1)
            for partition, timestamp in request.partitions.items()
        }

    async def store_start(
        self, progress: Progress, offset: int, *, leader_epoch: int = -1, new_epoch: bool = False
    ) -> bool:
        self.stored.append((offset, new_epoch))
        return True

    def lose(self, progress: Progress, reason: str) -> None:
        self.lost.append(progress)

    def replace(self, old: Progress, new: Progress) -> None:
        pass

    async def store_starts(self, offsets: Mapping[Progress, int], **_: object) -> Outcome:
        return {claim for claim, offset in offsets.items() if await self.store_start(claim, offset)}, {}


async def resolved(logs: Ends, state: FetchState, policy: str, truncated: str | None) -> None:
    reset = OffsetReset(policy, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"], truncated)
    state.reset_due = True
    assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == []


def state_at(position: int, replay: Plan | None = None) -> FetchState:
    claim = Progress(TopicPartition(TOPIC, 0), position, replay=replay)
    return FetchState(claim, ChunkQueue(1 << 20), position, 1 << 20)


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
async def test_a_truncated_log_with_a_replayable_sink(policy: str) -> None:
    logs = Ends(0, 30)
    state = state_at(50)
    state.times.saw([(20, 1000), (40, 2000)], 50)
    await resolved(logs, state, policy, "continue")
    assert (state.position, state.reset_due, logs.stored) == (30, False, [(30, True)])
    assert state.times.at(25) is None, "another record"

    stopped, untouched = state_at(50), Ends(0, 30)
    await resolved(untouched, stopped, policy, "fail")
    assert (stopped.failed, untouched.stored) == (True, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
@pytest.mark.parametrize("truncated", ["continue", "fail"])
async def test_a_planned_range_that_the_log_has_lost_is_never_shortened(policy: str, truncated: str) -> None:
    """Whatever the setting: the destination may have it. Its end is stored only after it was found there or written."""
    logs, state = Ends(0, 30), state_at(40, plan_of(40, 50))
    await resolved(logs, state, policy, truncated)
    assert (state.position, logs.stored) == (40, [])
    chunk = state.queue.get_nowait()
    if truncated == "continue":  # the next claim asks the destination, and gives the range up if it is not there
        assert (logs.lost, state.failed, chunk) == ([state.progress], False, None)
        return
    assert (logs.lost, state.failed) == ([], True)
    assert chunk is not None
    assert (chunk.first, chunk.until, chunk.error is None) == (40, 40, False)


@pytest.mark.parametrize("truncated", ["continue", "fail"])
async def test_a_shorter_log_of_a_topic_that_was_created_again_is_not_truncated(truncated: str) -> None:
    logs, state = Ends(0, 30), state_at(50)

    async def lose(claims: Sequence[Progress]) -> None:
        for each in claims:
            each.close()

    level = ISOLATION_LEVELS["read_uncommitted"]
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, level, truncated, lose_recreated=lose)
    state.reset_due = True
    assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == []
    assert (state.open, state.failed, logs.stored) == (False, False, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST, FAIL])
@pytest.mark.parametrize("replayable", [False, True])
@pytest.mark.parametrize("begin", [0, 50])
async def test_a_position_that_the_log_has_is_kept_though_the_broker_refuses_it(
    policy: str, replayable: bool, begin: int
) -> None:
    """No record is skipped or read twice. A new leader may not yet know what is in tiered storage nor its log's end."""
    logs, state = Ends(begin, 60), state_at(50)
    state.progress.restart(50, 3)
    reset = OffsetReset(
        policy, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"], "fail" if replayable else None
    )
    with capture_logs() as logged:
        for _ in range(REFUSALS_UNLOGGED):
            state.reset_due = True
            assert not reset.fails_at_once(state)
            answers = await reset.ask(cast(BrokerConnection, logs), [state])
            assert await reset.resolve([state], answers) == [state]  # who leads it is looked up, and the logs compared
            assert (state.position, state.reset_due, state.failed, logs.stored) == (50, False, False, [])
    assert state.queue.get_nowait() is None
    (line,) = logged
    assert (line["offset"], line["log_start"], line["log_end"]) == (50, begin, 60)


@pytest.mark.parametrize(("policy", "position"), [(SMALLEST, 0), (LARGEST, 50)])
async def test_without_epochs_a_refused_position_is_one_where_nothing_is_skipped(policy: str, position: int) -> None:
    """The log may have been cut off before the position, and have grown past it."""
    logs, state = Ends(0, 60), state_at(50)
    reset = OffsetReset(policy, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    state.reset_due = True
    await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state]))
    assert state.position == position


async def test_a_position_outside_of_the_log_fails_if_the_policy_says_so() -> None:
    logs, state = Ends(0, 30), state_at(50)
    state.progress.restart(50, 3)
    reset = OffsetReset(FAIL, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    state.reset_due = True
    await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state]))
    assert (state.failed, state.position, logs.stored) == (True, 50, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
async def test_a_planned_range_that_retention_overtakes_ends_as_planned(policy: str) -> None:
    logs, state = Ends(40, 60), state_at(10, plan_of(10, 20))
    await resolved(logs, state, policy, "fail")
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert (chunk.first, chunk.until, len(chunk.records), state.position, logs.stored) == (10, 20, 0, 20, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
async def test_nothing_is_said_or_stored_of_a_gap_behind_a_planned_range_that_is_not_committed_yet(policy: str) -> None:
    logs, state = Ends(32, 40), state_at(30, plan_of(0, 30))
    with capture_logs() as lines:
        await resolved(logs, state, policy, "continue")
    assert (state.position, logs.stored, state.reset_due, lines) == (30, [], True, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
async def test_what_is_left_of_a_planned_range_is_read(policy: str) -> None:
    """Also where the policy would jump to the end of the log: the destination has nothing of the range yet."""
    logs, state = Ends(15, 60), state_at(10, plan_of(10, 20))
    await resolved(logs, state, policy, "fail")
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert (chunk.first, chunk.until, state.position, logs.stored) == (10, 15, 15, [])


async def test_largest_is_asked_for_at_the_isolation_level() -> None:
    """With open transactions the end that may be read is not the high watermark."""
    asked: list[tuple[int, int]] = []

    class Noting(Ends):
        async def call(self, request: ListOffsetsRequest, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
            asked.extend((timestamp, request.isolation) for timestamp in request.partitions.values())
            return await super().call(request, timeout=timeout)

    logs, state = Noting(0, 60), state_at(90)
    reset = OffsetReset(LARGEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_committed"])
    await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state]))
    assert asked == [(LATEST, ISOLATION_LEVELS["read_committed"])]


class Lost(Ends):
    """A store that finds the claim lost, and closes it as the committer does."""

    async def store_start(
        self, progress: Progress, offset: int, *, leader_epoch: int = -1, new_epoch: bool = False
    ) -> bool:
        progress.close()
        return False


@pytest.mark.parametrize("truncated", [None, "continue"])
async def test_a_claim_that_is_lost_while_its_position_is_stored_gets_none(truncated: str | None) -> None:
    state = state_at(50)
    await resolved(Lost(0, 30), state, SMALLEST, truncated)
    assert (state.position, state.progress.consumed, state.reset_due) == (50, 50, True)


class RefusesOne(Ends):
    """A coordinator that takes no offsets of partition 1."""

    async def store_starts(self, offsets: Mapping[Progress, int], **_: object) -> Outcome:
        refused = {claim.topic_partition: "refused" for claim in offsets if claim.topic_partition.partition == 1}
        return {claim for claim in offsets if claim.topic_partition not in refused}, refused


async def test_a_position_that_cannot_be_stored_does_not_keep_the_others() -> None:
    claims = [Progress(TopicPartition(TOPIC, number), 0) for number in range(3)]
    states = [FetchState(claim, ChunkQueue(1 << 20), None, 1 << 20) for claim in claims]
    logs = RefusesOne(4, 60)
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    assert await reset.resolve(states, await reset.ask(cast(BrokerConnection, logs), states)) == [states[1]]
    assert [(state.position, state.reset_due) for state in states] == [(4, False), (None, True), (4, False)]


class Vague(Ends):
    """A broker that answers one of the two questions about a log in another way."""

    def __init__(self, about: int, answer: ListedOffset | None) -> None:
        super().__init__(0, 60)
        self.about, self.answer = about, answer

    async def call(self, request: ListOffsetsRequest, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        found = await super().call(request, timeout=timeout)
        vague = {partition for partition, timestamp in request.partitions.items() if timestamp == self.about}
        answers = {partition: self.answer if partition in vague else at for partition, at in found.items()}
        return {partition: at for partition, at in answers.items() if at is not None}


@pytest.mark.parametrize("about", [EARLIEST, LATEST])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "left out"),
        (ListedOffset(0, -1, -1), "no offset"),
        (ListedOffset(NOT_LEADER_OR_FOLLOWER, -1, -1), "NOT_LEADER_OR_FOLLOWER"),
    ],
)
async def test_a_leader_that_does_not_say_where_a_log_begins_or_ends_is_reported_with_its_answer(
    about: int, answer: ListedOffset | None, reason: str
) -> None:
    logs, state = Vague(about, answer), state_at(50)
    state.progress.restart(50, 3)
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    with capture_logs() as logged:
        for _ in range(REFUSALS_UNLOGGED):
            state.reset_due = True
            assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == [state]
    assert [each["reason"] for each in logged] == [reason]


@pytest.mark.parametrize("before", [None, 50])
async def test_an_answer_without_offset_is_no_position(before: int | None) -> None:
    """Offset -1 without an error: the broker does not know, and the next one may."""
    logs, state = Ends(-1, -1), state_at(before or 0)
    state.position, state.reset_due = before, True
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == [state]
    assert (state.position, state.reset_due, logs.stored) == (before, True, [])


@pytest.mark.parametrize("policy", [SMALLEST, LARGEST])
async def test_a_truncated_log_sets_back_nobody_who_has_records_in_hand(policy: str) -> None:
    """They may still be written: the next attempt is made when they are."""
    logs, state = Ends(0, 30), state_at(50)
    state.progress.restart(48)
    state.progress.hand_over(50)
    await resolved(logs, state, policy, "continue")
    assert (state.position, state.reset_due, logs.stored) == (50, True, [])
    state.progress.mark(48, 50)
    await resolved(logs, state, policy, "continue")
    assert (state.position, state.reset_due, logs.stored) == (30, False, [(30, True)])


class StoresNothing(Ends):
    """A coordinator that does not answer."""

    async def store_start(
        self, progress: Progress, offset: int, *, leader_epoch: int = -1, new_epoch: bool = False
    ) -> bool:
        raise CoordinatorError("no answer")


@pytest.mark.parametrize("case", ["no offset", "log cut off", "other records"])
async def test_a_position_that_nobody_stores_is_found_again(case: str) -> None:
    """Meanwhile nothing is read: another member that claims the partition would begin elsewhere."""
    logs, state = StoresNothing(0, 30), state_at(50)
    if case == "no offset":
        state.position = None
    elif case == "other records":
        state.diverging = Diverging(2, 20)
    state.reset_due = True
    before = state.position
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"], "continue")
    assert await reset.resolve([state], await reset.ask(cast(BrokerConnection, logs), [state])) == [state]
    assert (state.position, state.reset_due, state.failed) == (before, True, False)


@pytest.mark.parametrize("policy", [SMALLEST, FAIL])
@pytest.mark.parametrize("begin", [12, 30])
def test_what_retention_has_left_of_a_planned_range_is_read_unless_the_policy_is_to_fail(
    policy: str, begin: int
) -> None:
    state, plan = state_at(10, plan_of(10, 20)), plan_of(10, 20)
    reset = OffsetReset(policy, cast(Committer, Ends(begin, 60)), 1.0, ISOLATION_LEVELS["read_uncommitted"], "continue")
    with capture_logs() as logged:
        assert reset.begin_late(state, plan, begin) == (policy != FAIL)
    passed, until = state.queue.get_nowait(), min(begin, 20)
    if policy == FAIL:
        assert (state.position, passed, logged) == (10, None, [])
        return
    assert passed is not None
    assert (state.position, passed.first, passed.until, passed.at_end) == (until, 10, until, until == 20)
    (line,) = logged
    assert (line["first"], line["until"], line["policy"], line["planned"]) == (10, until, SMALLEST, "10 to 20")


@pytest.mark.parametrize("policy", [SMALLEST, FAIL])
@pytest.mark.parametrize("truncated", ["fail", "continue"])
async def test_a_planned_range_is_only_shortened_if_both_settings_allow_it(policy: str, truncated: str) -> None:
    logs, state, plan = Ends(0, 15), state_at(10, plan_of(10, 20)), plan_of(10, 20)
    reset = OffsetReset(policy, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"], truncated)
    allowed = policy != FAIL and truncated == "continue"
    with capture_logs() as logged:
        assert await reset.end_early(state, plan, 0, 15, 17) == allowed
    assert (state.position, logs.stored) == ((10, [(10, True)]) if allowed else (10, []))
    assert [(each["first"], each["until"], each["log_end"], each["continues_at"]) for each in logged] == (
        [(15, 20, 17, 10)] if allowed else []
    )


async def test_a_log_with_other_records_is_refused_with_what_differs() -> None:
    logs, state = Ends(0, 60), state_at(50)
    state.progress.restart(50, 3)
    state.diverging = Diverging(2, 20)
    reset = OffsetReset(FAIL, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    assert reset.fails_at_once(state)
    assert str(reset.refusal(state)) == f'{differs(state.topic_partition, 50, 3, state.diverging)}, and reset = "fail"'


OFFSETS = st.integers(0, 9)


@given(
    position=OFFSETS, begin=OFFSETS, size=OFFSETS, policy=st.sampled_from([SMALLEST, LARGEST]), replayable=st.booleans()
)
async def test_a_position_that_is_not_in_the_log_becomes_one_that_is(
    position: int, begin: int, size: int, policy: str, replayable: bool
) -> None:
    """It is stored first, unless records are gone: those are passed over behind what was fetched before.

    Without epochs `smallest` keeps no position: the log may have been cut off, and have grown past it.
    """
    end = begin + size
    assume((policy == SMALLEST and not replayable) or not begin <= position <= end)
    logs, state = Ends(begin, end), state_at(position)
    with capture_logs() as logged:
        await resolved(logs, state, policy, "continue" if replayable else None)
    truncated = replayable and position > end
    gone = not truncated and policy == SMALLEST and position < begin
    expected = end if truncated or policy == LARGEST else begin
    assert (state.position, state.reset_due) == (expected, False)
    assert logs.stored == ([] if gone else [(expected, truncated)])
    assert state.progress.processed == (position if gone else expected)
    passed = state.queue.get_nowait()
    assert (passed and (passed.first, passed.until)) == ((position, begin) if gone else None)
    about: dict[str, object] = {"event": "stored offset out of range", "stored": position, "now": expected}
    if truncated:
        about = {"event": "log truncated below the consumed offset", "first": end, "until": position}
        about |= {"log_end": end, "continues_at": end}
    elif gone:
        about = {"event": "records are gone from the log", "first": position, "until": begin, "policy": policy}
    assert logged == [about | {"topic": TOPIC, "partition": 0, "log_level": "error"}]


@given(first=OFFSETS, length=st.integers(1, 9), begin=OFFSETS, size=OFFSETS)
async def test_a_planned_range_that_the_log_has_lost_is_given_up_inside_the_log(
    first: int, length: int, begin: int, size: int
) -> None:
    """Retention may have deleted its beginning, too."""
    plan, end = plan_of(first, first + length), begin + size
    assume(end < plan.until)
    logs, state = Ends(begin, end), state_at(first, plan)
    reset = OffsetReset(LARGEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"], "continue")
    assert await reset.end_early(state, plan, begin, end, end)
    expected = next((offset for offset in range(first, end) if offset >= begin), end)
    assert (state.position, state.progress.replay, logs.stored) == (expected, None, [(expected, True)])


@pytest.mark.parametrize("published", [False, True])
async def test_a_planned_range_is_given_up_once_nobody_can_publish_it(published: bool) -> None:
    """The member that planned it may still be writing it; a new claim finds what it has published."""
    plan, logs, asked = plan_of(3, 9), Ends(0, 7), list[tuple[RangeIdentity, int]]()
    state = state_at(3, plan)

    async def set_aside(part: RangeIdentity, records: int) -> bool:
        assert logs.stored == []
        asked.append((part, records))
        return not published

    isolation = ISOLATION_LEVELS["read_uncommitted"]
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, isolation, "continue", set_aside)
    assert await reset.end_early(state, plan, 0, 7, 7)
    progress = state.progress
    part = RangeIdentity(*state.topic_partition, progress.incarnation, progress.epoch, 3, 9)
    assert asked == [(part, plan.records)]
    assert (logs.stored, logs.lost) == (([], [progress]) if published else ([(3, True)], []))


@given(st.integers(1, 40), st.floats(0, 1e9))
def test_pauses_grow_up_to_the_longest(failures: int, began: float) -> None:
    state, time, before = state_at(0), began, 0.0
    for number in range(failures):
        state.pause(time)
        pause = state.retry_at - time
        assert pause == pytest.approx(min(FIRST_PAUSE * 2**number, LONGEST_PAUSE), abs=1e-6)
        assert pause > before or pause == pytest.approx(LONGEST_PAUSE, abs=1e-6)
        time, before = state.retry_at, pause
    state.succeed()
    state.pause(time)
    assert state.retry_at - time == pytest.approx(FIRST_PAUSE, abs=1e-6)
