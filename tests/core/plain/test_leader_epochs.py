"""Of which leader epoch the records before a position are, and what a leader's answer about it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    AskedEpoch,
    Diverging,
    EpochEnd,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH, Versions
from kzconsumer.errors import OffsetLostError
from kzconsumer.fetcher.fetch_rules import UNKNOWN_END
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.fetcher.offset_reset import OffsetReset, epoch_ends, find_divergence
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import UNKNOWN, LeaderEpochs, Progress
from kzconsumer.registry.claim_record import ClaimRecord, StoredPosition
from kzconsumer.streams.chunk_queue import ChunkQueue

PARTITION = TopicPartition("orders", 0)


RUNS = st.lists(st.tuples(st.integers(1, 9), st.integers(-1, 4)), max_size=3)


@given(reads=st.lists(st.tuples(st.integers(-6, 3), RUNS), max_size=12), needed=st.integers(0, 60))
def test_it_is_as_a_list_of_all_records(reads: list[tuple[int, list[tuple[int, int]]]], needed: int) -> None:
    """An offset that is read again has the epoch of the new read. One that was skipped, or only looked at, has none."""
    epochs, before, least = LeaderEpochs(10, 3), {10: 3}, 10
    for moved, runs in reads:
        at = start = max(max(before) + moved, least)
        before = {each: before.get(each, UNKNOWN) for each in range(10, start + 1)}
        begins = []
        for count, epoch in runs or [(2, UNKNOWN)]:
            begins.append((at, epoch))
            before |= dict.fromkeys(range(at + 1, at + count + 1), epoch)
            at += count
        least = max(min(needed, start), least)
        epochs.extend(start, begins if runs else (), at, least)
        assert [epochs.before(each) for each in (9, at + 1)] == [UNKNOWN] * 2
        assert {each: epochs.before(each) for each in before if each >= least} == {
            each: epoch for each, epoch in before.items() if each >= least
        }


def test_a_stored_position_counts_for_its_offset_only() -> None:
    record = ClaimRecord(1, "range", "0x2a").after(7, None, 0, leader_epoch=3)
    assert record.position == StoredPosition(7, 3)
    assert [record.leader_epoch_before(at) for at in (7, 8, None)] == [3, -1, -1]
    assert record.after(9, None, 0).leader_epoch_before(9) == -1


class Leader:
    """Says where epochs end, and where the log does; a store that takes every position."""

    def __init__(self, ends: Mapping[int, EpochEnd], log: tuple[int, int] = (0, 0)) -> None:
        self.versions = Versions({OFFSET_FOR_LEADER_EPOCH: (0, 4)})
        self.ends = ends
        self.log = log
        self.asked: list[AskedEpoch] = []
        self.stored: list[tuple[int, int, bool]] = []

    async def call(self, request: Any, *, timeout: float) -> Any:
        if isinstance(request, ListOffsetsRequest):
            return {each: ListedOffset(0, self.log[at != EARLIEST], -1) for each, at in request.partitions.items()}
        assert isinstance(request, OffsetForLeaderEpochRequest)
        self.asked += request.partitions.values()
        return {each: self.ends[asked.epoch] for each, asked in request.partitions.items() if asked.epoch in self.ends}

    async def store_start(
        self, progress: Progress, offset: int, *, leader_epoch: int = -1, new_epoch: bool = False
    ) -> bool:
        self.stored.append((offset, leader_epoch, new_epoch))
        return True

    def replace(self, old: Progress, new: Progress) -> None:
        pass

    def as_connection(self) -> BrokerConnection:
        return cast(BrokerConnection, self)


def at(position: int, epoch: int) -> FetchState:
    progress = Progress(PARTITION, position, leader_epoch=epoch)
    return FetchState(progress, ChunkQueue(1 << 20), position, 1 << 20, leader_epoch=9)


async def compared(leader: BrokerConnection, states: list[FetchState]) -> list[FetchState]:
    return find_divergence(await epoch_ends(leader, states, 1.0), states)


@pytest.mark.parametrize(
    ("ends", "diverging"),
    [
        ({3: EpochEnd(0, 3, 100)}, None),
        ({3: EpochEnd(0, 2, 100)}, None),  # nothing before the position was lost
        ({3: EpochEnd(0, 3, 60)}, Diverging(3, 60)),
        ({3: EpochEnd(0, 2, 60)}, Diverging(2, 60)),
        ({3: EpochEnd(0, -1, -1), 0: EpochEnd(0, 0, 60)}, Diverging(0, UNKNOWN_END)),  # all its epochs are lower
        ({3: EpochEnd(0, -1, -1), 0: EpochEnd(0, -1, -1)}, None),  # records without epochs
    ],
)
async def test_a_leaders_answer(ends: Mapping[int, EpochEnd], diverging: Diverging | None) -> None:
    leader, state = Leader(ends), at(100, 3)
    assert await compared(leader.as_connection(), [state]) == []
    assert (state.diverging, state.reset_due) == (diverging, diverging is not None)
    assert {asked.leader_epoch for asked in leader.asked} == {9}


async def test_the_log_of_a_former_leader_decides_nothing() -> None:
    """It led for a moment, and could not be asked where its log begins and ends; the next one has all records."""
    state = at(100, 3)
    await compared(Leader({3: EpochEnd(0, 3, 60)}).as_connection(), [state])
    assert state.reset_due
    state.led_by(9)
    await compared(Leader({3: EpochEnd(0, 3, 100)}).as_connection(), [state])
    assert (state.diverging, state.reset_due) == (None, False)


@pytest.mark.parametrize("answer", [EpochEnd(74, -1, -1), EpochEnd(6, -1, -1), None])
async def test_a_leader_that_does_not_lead_any_more_is_looked_up(answer: EpochEnd | None) -> None:
    leader, state = Leader({3: answer} if answer is not None else {}), at(100, 3)
    assert await compared(leader.as_connection(), [state]) == [state]
    assert state.diverging is None


@pytest.mark.parametrize(("error", "needed"), [(29, "Describe"), (31, "ClusterAction")])
async def test_without_permission_nothing_is_compared_which_is_logged(error: int, needed: str) -> None:
    with capture_logs() as logs:
        leader = Leader({3: EpochEnd(error, -1, -1)})
        assert await compared(leader.as_connection(), [at(100, 3)]) == []
    (line,) = logs
    assert (line["event"], needed in line["needed"]) == ("log not compared with the stored position", True)


async def test_nothing_is_asked_about_unknown_epochs_nor_of_old_brokers() -> None:
    leader = Leader({})
    assert await compared(leader.as_connection(), [at(100, -1)]) == []
    leader.versions = Versions({})
    assert await compared(leader.as_connection(), [at(100, 3)]) == []
    assert leader.asked == []


async def resolved(found: Diverging, policy: str, truncated: str | None) -> tuple[FetchState, Leader, list[Any]]:
    leader, state = Leader({}, (5, 150)), at(100, 3)
    state.diverging, state.reset_due = found, True
    reset = OffsetReset(policy, cast(Committer, leader), 1.0, 0, truncated)
    with capture_logs() as logs:
        assert await reset.resolve([state], await reset.ask(leader.as_connection(), [state])) == []
    return state, leader, [line for line in logs if line["log_level"] == "error"]


@pytest.mark.parametrize(
    ("found", "policy", "truncated", "continues_at", "epoch"),
    [
        (Diverging(2, 60), "smallest", None, 60, 2),
        (Diverging(2, 60), "largest", None, 150, -1),
        (Diverging(2, 60), "smallest", "continue", 60, 2),
        (Diverging(2, 60), "largest", "continue", 60, 2),
        (Diverging(2, 3), "smallest", None, 5, -1),  # retention has gone further
        (Diverging(2, UNKNOWN_END), "smallest", None, 5, -1),
        (Diverging(2, UNKNOWN_END), "smallest", "continue", 100, -1),
    ],
)
async def test_where_a_diverging_log_is_read_on(
    found: Diverging, policy: str, truncated: str | None, continues_at: int, epoch: int
) -> None:
    state, leader, (line,) = await resolved(found, policy, truncated)
    assert (state.position, state.diverging, state.reset_due) == (continues_at, None, False)
    assert leader.stored == [(continues_at, epoch, truncated is not None)]
    assert state.progress.leader_epochs.before(continues_at) == epoch
    known = found.end_offset >= 0
    assert (line["first"], line["until"], line["replaced"]) == (
        found.end_offset if known else None,
        100,
        100 - found.end_offset if known else None,
    )
    assert (line["leader_epoch"], line["log_epoch"], line["continues_at"]) == (3, 2, continues_at)


async def test_a_replayable_sink_fails_unless_it_may_continue() -> None:
    state, leader, lines = await resolved(Diverging(2, 60), "smallest", "fail")
    chunk = state.queue.get_nowait()
    assert chunk is not None
    assert (state.failed, leader.stored, lines) == (True, [], [])
    said = r"consumed up to 100 \(leader epoch 3\); .* up to 60 \(epoch 2\): 40 were replaced .*truncated = .continue"
    assert isinstance(chunk.error, OffsetLostError)
    assert re.search(said, str(chunk.error))


async def test_what_is_in_hand_is_waited_for() -> None:
    """Else it would be committed behind the position at which the log is read on."""
    leader, state = Leader({}, (5, 150)), at(90, 3)
    state.progress.hand_over(100)
    state.position = 100
    state.diverging, state.reset_due = Diverging(2, 60), True
    reset = OffsetReset("smallest", cast(Committer, leader), 1.0, 0)
    await reset.resolve([state], await reset.ask(leader.as_connection(), [state]))
    assert (state.position, leader.stored) == (100, [])
    state.progress.mark(90, 100)
    await reset.resolve([state], await reset.ask(leader.as_connection(), [state]))
    assert state.position == 60
