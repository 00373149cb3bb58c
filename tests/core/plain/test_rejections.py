"""A sink that rejects records: when its batch counts as written, and which records it must not name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from kzconsumer.errors import RecordRejectedError, SinkError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.progress import Progress
from kzconsumer.rejected import RejectedRecord
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks import sink_rejections
from kzconsumer.sinks.interface import Batch, RecordsRejectedError, Rejected
from kzconsumer.sinks.runner import SinkRunner
from tests.support.chunks import TOPIC, chunk, progress
from tests.support.owned_ranges import Owned
from tests.support.sink_runs import LIMIT, Memory, running
from tests.support.streams import stream_of


class Decided:
    """The decisions that were requested and their outcome; a test may delay one."""

    def __init__(self, error: Exception | None = None, *, open_gate: bool = True) -> None:
        self.pieces: list[list[tuple[int, bytes | None, str, str]]] = []
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.error = error
        if open_gate:
            self.gate.set()

    def check(self, at: TopicPartition, offset: int, error_class: str, reason: str) -> None: ...

    async def handle(self, records: Sequence[RejectedRecord], lost: Callable[[], bool]) -> bool:
        self.pieces.append([(m.offset, m.value, error_class, reason) for m, error_class, reason in records])
        self.asked.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return not lost()


def rejecting(*offsets: int, topic: str = TOPIC) -> Memory:
    return Memory(RecordsRejectedError(Rejected(topic, 0, at, "of no use", "odd") for at in offsets))


def runner_of(sink: Memory, decided: Decided | None, owned: Owned | None = None) -> SinkRunner:
    return SinkRunner("memory", sink, BatchSettings(max_records=5, max_time=0.02), owned or Owned(), rejected=decided)


async def fails(task: asyncio.Task[None], match: str) -> None:
    with pytest.raises(BaseExceptionGroup) as raised:
        await asyncio.wait_for(task, LIMIT)
    assert raised.group_contains(SinkError, match=match)


async def test_a_batch_is_written_once_its_rejections_are_settled() -> None:
    claim, decided = progress(), Decided(open_gate=False)
    stream = stream_of(chunk(claim, 0, 5))
    commits = Owned([claim])
    async with running(runner_of(rejecting(1, 4), decided, commits), [stream.cursor.queue]), asyncio.timeout(LIMIT):
        await decided.asked.wait()
        assert (claim.processed, commits.made) == (0, [])
        decided.gate.set()
        while not commits.made:
            await asyncio.sleep(0.001)
    assert commits.made[0] == [5]
    assert decided.pieces == [[(1, b"v1", "odd", "of no use"), (4, b"v4", "odd", "of no use")]]


async def test_many_records_are_handled_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rejections, "_PIECE", 2)
    for offsets in ((0, 1, 2, 3), (0, 1, 2, 3, 4)):
        claim, decided = progress(), Decided()
        commits = Owned([claim])
        queue = stream_of(chunk(claim, 0, 5)).cursor.queue
        async with running(runner_of(rejecting(*offsets), decided, commits), [queue]), asyncio.timeout(LIMIT):
            while not commits.made:
                await asyncio.sleep(0.001)
        assert [[at for at, *_ in piece] for piece in decided.pieces] == [[0, 1], [2, 3], [4]][
            : (len(offsets) + 1) // 2
        ]
        assert claim.processed == 5


async def test_after_a_piece_whose_claims_are_all_lost_nothing_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_rejections, "_PIECE", 2)
    claim, decided = progress(), Decided(open_gate=False)
    async with running(runner_of(rejecting(0, 1, 2), decided), [stream_of(chunk(claim, 0, 5)).cursor.queue]):
        async with asyncio.timeout(LIMIT):
            await decided.asked.wait()
        claim.close()
        decided.gate.set()
        await asyncio.sleep(0.02)
    assert (len(decided.pieces), claim.processed) == (1, 0)


async def test_a_policy_that_fails_fails_the_batch() -> None:
    claim, decided = progress(), Decided(RecordRejectedError(TOPIC, 0, 1, "odd", "of no use"))
    commits = Owned([claim])
    async with running(runner_of(rejecting(1), decided, commits), [stream_of(chunk(claim, 0, 5)).cursor.queue]) as task:
        await fails(task, r"^orders-0 at offset 1 was rejected as odd: of no use$")
    assert (claim.processed, commits.made) == (0, [])


async def test_the_others_of_a_batch_that_a_policy_fails_for_are_counted() -> None:
    claim, decided = progress(), Decided(RecordRejectedError(TOPIC, 0, 1, "odd", "of no use"))
    async with running(runner_of(rejecting(1, 2, 4), decided), [stream_of(chunk(claim, 0, 5)).cursor.queue]) as task:
        await fails(task, r"was rejected as odd: of no use \(and 2 more of this batch were rejected\)$")


@pytest.mark.parametrize("sink", [rejecting(7), rejecting(5), rejecting(1, topic="payments")])
async def test_a_sink_can_only_reject_records_of_its_batch(sink: Memory) -> None:
    claim = progress()
    async with running(runner_of(sink, Decided()), [stream_of(chunk(claim, 0, 5)).cursor.queue]) as task:
        await fails(task, "which is not in its batch")
    assert claim.processed == 0


async def test_a_record_that_is_not_in_the_log_cannot_be_rejected() -> None:
    claim = progress()
    queue = stream_of(chunk(claim, 0, 5, offsets=[0, 4])).cursor.queue
    async with running(runner_of(rejecting(2), Decided()), [queue]) as task:
        await fails(task, "which is not in its batch")


@pytest.mark.parametrize(("offsets", "others"), [((1,), ""), ((1, 3, 4), r" \(and 2 more records of the batch\)")])
async def test_a_rejection_without_a_policy_is_a_failure_that_names_the_record(
    offsets: tuple[int, ...], others: str
) -> None:
    claim = progress()
    async with running(runner_of(rejecting(*offsets), None), [stream_of(chunk(claim, 0, 5)).cursor.queue]) as task:
        why = f"{TOPIC}-0 offset 1: of no use{others}, and single records cannot be rejected here"
        await fails(task, why)


async def test_waiting_ends_with_the_claim() -> None:
    """Another member owns the partition: the batch is abandoned and the member continues."""
    claim, decided = progress(), Decided(open_gate=False)
    async with running(runner_of(rejecting(1), decided), [stream_of(chunk(claim, 0, 5)).cursor.queue]) as task:
        async with asyncio.timeout(LIMIT):
            await decided.asked.wait()
        claim.close()
        await asyncio.sleep(0.01)
        assert not task.done()
    assert claim.processed == 0


class Losing(Memory):
    """A sink that rejects records, while claims are lost."""

    def __init__(self, rejected: Sequence[Rejected], *lost: Progress) -> None:
        super().__init__()
        self._rejected, self._lost = rejected, lost

    async def write(self, batch: Batch) -> None:
        if not self.batches:
            self.batches.append(batch)
            for each in self._lost:
                each.close()
            raise RecordsRejectedError(self._rejected)


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_records_of_claims_that_are_lost_are_left_to_the_next_owner_and_others_are_not(lost: int) -> None:
    claims = [progress(partition) for partition in range(3)]
    rejected = [Rejected(TOPIC, each.topic_partition.partition, 1, "of no use", "odd") for each in claims]
    decided, commits = Decided(), Owned([claims[each] for each in range(3) if each != lost])
    sink = Losing(rejected, claims[lost])
    queues = [stream_of(chunk(each, 0, 5)).cursor.queue for each in claims]
    runner = SinkRunner("memory", sink, BatchSettings(max_records=15, max_time=0.2), commits, rejected=decided)
    async with running(runner, queues), asyncio.timeout(LIMIT):
        while not commits.made:
            await asyncio.sleep(0.001)
    handled = [offset for piece in decided.pieces for offset, *_ in piece]
    assert handled == [1, 1]
    assert [each.processed for each in claims] == [0 if number == lost else 5 for number in range(3)]
