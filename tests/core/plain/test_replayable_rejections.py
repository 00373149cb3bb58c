"""A sink rejects records before it publishes any: dead letters, then the plan, then the rest is written.

Replayable sinks, whose replays repeat none, and those that fetch for themselves, which have no plans.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from kzconsumer.brokers.protocol.error_codes import NOT_LEADER_OR_FOLLOWER, broker_error
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    ContentRefusedError,
    NoNodeError,
    RecordRejectedError,
    SinkError,
)
from kzconsumer.model import RangeIdentity, TopicPartition, Wants
from kzconsumer.offsets.progress import Chunk, Message, Progress
from kzconsumer.records.forms import Unfetched
from kzconsumer.registry.claim_record import Plan, Spans, offset_list, offsets_in, spans_of
from kzconsumer.rejected import RejectedRecord
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks import sink_rejections
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, Rejected
from kzconsumer.sinks.quarantine import RangeQuarantine
from kzconsumer.sinks.range_plans import RangePlans
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.core.plain.test_rejections import fails
from tests.core.plain.test_separating import offsets_of
from tests.support.chunks import TOPIC, LeaseInHand, chunk, progress, put
from tests.support.extent import seeds
from tests.support.owned_ranges import Nothing, Owned
from tests.support.plans import plan_of
from tests.support.simulated.virtual_time import in_virtual_time
from tests.support.sink_runs import Memory, running, until

POSITION = tuple[int, int]


class Journal(Owned):
    """The membership of one member; writes down what it stores, and has the plans."""

    def __init__(self, owned: Sequence[Progress], error: Exception | None = None) -> None:
        super().__init__(owned)
        self.events: list[str] = []
        self.plans: dict[Progress, Plan] = {}
        self.rejected: dict[Progress, str] = {}
        self.refusal = error
        self.fails_at: int | None = None  # by its policy
        self.lost_at_record: Callable[[], None] = lambda: None

    async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
        self.plans.update(plans)
        return list(plans)

    async def record_rejected(self, offsets: Mapping[Progress, Spans]) -> Collection[Progress]:
        if self.refusal is not None:
            raise self.refusal
        self.lost_at_record()
        for claim, spans in offsets.items():
            first = 0
            known = offsets_in(self.rejected[claim], first) if claim in self.rejected else ()
            self.rejected[claim] = offset_list(spans_of((), (*known, *spans)), first)
        self.events += [f"plan {claim.topic_partition.partition} without {self.rejected[claim]}" for claim in offsets]
        return [claim for claim in offsets if not claim.lost]

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None:
        for spans in offsets.values():
            offset_list(spans, 0)

    async def resume_after_replay(self, progress: Progress) -> None:
        return None

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        self.events.append(f"fetch {offset}")
        return Message(*partition, offset, b"key", b"fetched", 1, (), 0)

    def check(self, at: TopicPartition, offset: int, error_class: str, reason: str) -> None:
        if offset == self.fails_at:
            raise RecordRejectedError(*at, offset, error_class, reason)

    async def handle(self, records: Sequence[RejectedRecord], lost: Callable[[], bool]) -> bool:
        self.events += [f"letter {m.partition}/{m.offset} {m.value!r} {error_class}" for m, error_class, _ in records]
        return not lost()


class Table(Memory):
    """A replayable sink that cannot hold some records, and a destination that refuses some more."""

    fingerprint = "f"
    wants: Wants = "columns"
    remembers = False

    def __init__(
        self, journal: Journal, bad: Collection[POSITION] = (), refused: Collection[POSITION] = (), outage: int = 0
    ) -> None:
        super().__init__()
        self.journal = journal
        self.bad, self.refused, self.outage = set(bad), set(refused), outage
        self.trials = 0

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return ()

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return True

    async def write(self, batch: Batch) -> None:
        found = sorted(self.bad & at(batch))
        if found:
            why = "column at: out of range", "unstorable"
            raise RecordsRejectedError(Rejected(TOPIC, *each, *why) for each in found)
        self.refuse(batch)
        await super().write(batch)
        self.journal.events.append(f"write {[(part.partition, offsets_of(part)) for part in batch.ranges]}")

    async def trial(self, batch: Batch) -> None:
        self.trials += 1
        if self.trials == self.outage:
            raise SinkError("connection refused")
        self.refuse(batch)

    def refuse(self, batch: Batch) -> None:
        if self.refused & at(batch):
            raise ContentRefusedError("the table: value too long for type character varying(5)")


def at(batch: Batch) -> set[POSITION]:
    return {(part.partition, offset) for part in batch.ranges for offset in offsets_of(part)}


def runner_of(sink: Table, journal: Journal, quarantine: RangeQuarantine | None = None) -> SinkRunner:
    limits = BatchSettings(max_records=1000, max_time=0.02)
    plans = RangePlans(journal, Nothing(), "read_committed") if sink.fingerprint else None
    return SinkRunner("table", sink, limits, journal, plans, quarantine, journal)


async def written(sink: Table, journal: Journal, *chunks: Chunk) -> None:
    queue = ChunkQueue(1 << 20)
    put(queue, *chunks)
    async with running(runner_of(sink, journal), [queue]):
        await until(lambda: journal.made and all(claim.settled for claim in journal.claims))


async def test_letters_are_durable_before_the_plan_and_the_plan_before_the_rest() -> None:
    claims = [progress(0), progress(1)]
    journal = Journal(claims)
    sink = Table(journal, bad=[(0, 1), (0, 3)])
    await written(sink, journal, chunk(claims[0], 0, 5), chunk(claims[1], 0, 2))
    assert journal.events == [
        "letter 0/1 b'v1' unstorable",
        "letter 0/3 b'v3' unstorable",
        "plan 0 without 1 3",
        "write [(0, [0, 2, 4]), (1, [0, 1])]",
    ]
    assert journal.made[-1] == [5, 2]
    assert [claim.written for claim in claims] == [(0, 5), (0, 2)], "the destination must have both ranges from now on"


async def test_of_a_range_whose_records_are_all_rejected_nothing_is_written() -> None:
    """Nor must the destination have it: a later claim asks for the last range that was written."""
    claim = progress(0)
    journal = Journal([claim])
    await written(Table(journal, bad=[(0, 0), (0, 1)]), journal, chunk(claim, 0, 2))
    assert journal.events[-1] == "plan 0 without 0-1"
    assert (journal.made[-1], claim.written) == ([2], None)


def replaying(plan: Plan) -> Progress:
    return Progress(TopicPartition(TOPIC, 0), plan.first, replay=plan)


@pytest.mark.parametrize("left", [(0, 1, 2, 4), ()])
async def test_a_replay_writes_the_same_records_and_no_letter_again(left: tuple[int, ...]) -> None:
    rejected = offset_list(spans_of(set(range(5)) - set(left)), 0)
    claim = replaying(plan_of(0, 5, rejected=rejected, checksum=""))
    journal = Journal([claim])
    sink = Table(journal, bad=[(0, 3)])
    await written(sink, journal, chunk(claim, 0, 5))
    assert journal.events == ([f"write {[(0, list(left))]}"] if left else [])
    assert journal.made[-1] == [5]


async def test_a_replay_of_a_member_that_died_before_the_plan_had_them_finds_them_itself() -> None:
    claim = replaying(plan_of(0, 5, checksum=""))
    journal = Journal([claim])
    await written(Table(journal, bad=[(0, 3)]), journal, chunk(claim, 0, 5))
    assert journal.events == ["letter 0/3 b'v3' unstorable", "plan 0 without 3", "write [(0, [0, 1, 2, 4])]"]


async def test_nothing_is_written_if_the_plan_cannot_be_stored() -> None:
    claim = progress(0)
    journal = Journal([claim], NoNodeError("gone"))
    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 5))
    async with running(runner_of(Table(journal, bad=[(0, 3)]), journal), [queue]) as task:
        await fails(task, "gone")
    assert journal.events == ["letter 0/3 b'v3' unstorable"]


@pytest.mark.parametrize("fails_at", [None, 19_995])
async def test_no_letter_is_written_of_a_range_whose_plan_has_no_room_for_all(fails_at: int | None) -> None:
    """Each start would repeat them. The policy "fail" comes first, and names its record, of whatever piece it is."""
    claim = progress(0)
    journal = Journal([claim])
    journal.fails_at = fails_at
    queue = ChunkQueue(1 << 24)
    put(queue, chunk(claim, 0, 20_000))
    sink = Table(journal, bad=[(0, at) for at in range(0, 20_000, 5)])
    async with running(runner_of(sink, journal), [queue]) as task:
        if fails_at is None:
            await fails(task, "4000 records, too many for one range")
        else:
            await fails(task, "orders-0 at offset 19995 was rejected as unstorable: .* .and 3999 more")
    assert (journal.events, claim.processed) == ([], 0)


async def test_no_letter_is_written_if_the_policy_of_a_later_record_fails() -> None:
    claim = progress(0)
    journal = Journal([claim])
    journal.fails_at = 599
    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 600))
    sink = Table(journal, bad=[(0, at) for at in range(600)])
    async with running(runner_of(sink, journal), [queue]) as task:
        await fails(task, "orders-0 at offset 599 was rejected as unstorable")
    assert journal.events == []


async def test_the_policy_fail_names_the_record_and_takes_no_other_with_it(tmp_path: Path) -> None:
    """Also with a quarantine: it is for ranges that cannot be separated."""
    claim = progress(0)
    journal = Journal([claim])
    journal.fails_at = 3
    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 5))
    quarantine = RangeQuarantine(tmp_path / "aside", "table")
    sink = Table(journal, bad=[(0, 3), (0, 4)])
    async with running(runner_of(sink, journal, quarantine), [queue]) as task:
        await fails(task, "orders-0 at offset 3 was rejected as unstorable: column at: out of range .and 1 more")
    assert (claim.processed, list(tmp_path.iterdir())) == (0, [])


class Fickle(Table):
    """Things happen at its trials, and two records may only be refused together."""

    def __init__(self, journal: Journal, chance: random.Random, positions: Sequence[POSITION]) -> None:
        def some(*numbers: int) -> list[POSITION]:
            return chance.sample(positions, min(len(positions), chance.choice(numbers)))

        super().__init__(journal, some(0, 0, 1, 3), some(0, 1, 1, 4), outage=chance.choice((0, 0, 0, 1, 3, 8)))
        self.together = {*some(0, 0, 2)}
        self.happens = {chance.randint(1, 9): chance.choice(("lost", "lease")) for _ in range(chance.randrange(3))}
        if chance.random() < 0.3:  # a function with two arguments in Spark
            self.fingerprint, self.wants = "", "ranges"
            self.refused, self.together = set(), set()
        self._chance = chance
        self._asked: list[set[POSITION]] = []

    async def write(self, batch: Batch) -> None:
        assert at(batch) not in self._asked, "nothing of it has changed"
        self._asked.append(at(batch))
        await super().write(batch)

    async def trial(self, batch: Batch) -> None:
        await asyncio.sleep(0.1)
        match self.happens.pop(self.trials + 1, ""):
            case "lost":
                self._chance.choice(self.journal.claims).close()
            case "lease":
                lease = self.journal.lease
                assert isinstance(lease, LeaseInHand)
                lease.lose()
                asyncio.get_running_loop().call_later(1, lease.hold)
                raise SinkError("the lease was lost")
        await super().trial(batch)

    def refuse(self, batch: Batch) -> None:
        super().refuse(batch)
        if self.together and self.together <= at(batch):
            raise ContentRefusedError("the table: two rows of one key")


@pytest.mark.parametrize("seed", seeds(60, 3000))
def test_each_record_is_written_once_or_is_a_letter(seed: int) -> None:
    """Whatever the destination refuses, and whatever happens during the search. A batch that fails has no effect."""

    @in_virtual_time
    async def play() -> None:
        chance = random.Random(seed)
        claims = [progress(number) for number in range(chance.randint(1, 3))]
        ends = [chance.choice((1, 2, 20, chance.randint(1, 40))) for _ in claims]
        positions = [(number, offset) for number, end in enumerate(ends) for offset in range(end)]
        journal = Journal(claims)
        sink = Fickle(journal, chance, positions)
        if chance.random() < 0.2:
            journal.lost_at_record = chance.choice(claims).close
        queue = ChunkQueue(1 << 20)
        put(queue, *(chunk(claim, 0, end) for claim, end in zip(claims, ends, strict=True)))
        async with running(runner_of(sink, journal), [queue]) as task:
            await asyncio.sleep(50)
        why = [each for error in (task.exception(),) if error is not None for each in reasons(error)]
        rows = [each for batch in sink.batches for each in at(batch)]
        found = [re.fullmatch(r"letter (\d+)/(\d+) b'v\2' (\w+)", event) for event in journal.events]
        classes = {(int(each[1]), int(each[2])): each[3] for each in found if each is not None}
        letters = [*classes]
        assert len(letters) == sum(event.startswith("letter") for event in journal.events), "once"
        assert sorted({*rows, *letters}) == sorted(rows + letters), "once"
        assert all(each in (sink.bad if kind == "unstorable" else sink.refused) for each, kind in classes.items())
        for claim, end in zip(claims, ends, strict=True):
            number = claim.topic_partition.partition
            mine = [each for each in positions if each in rows and each[0] == number]
            assert claim.processed == end or (not mine and (why or claim.lost))
            if claim.processed == end:
                aside = [offset for n, offset in letters if n == number]
                assert len(mine) + len(aside) == end
                assert not sink.fingerprint or journal.rejected.get(claim, "") == offset_list(spans_of(aside), 0)
        if why:
            assert sink.outage or sink.together
            assert any("connection refused" in each or "the table" in each for each in why)

    play()


def reasons(error: BaseException) -> list[str]:
    if not isinstance(error, BaseExceptionGroup):
        return [str(error)]
    return [text for each in error.exceptions for text in reasons(each)]


class Slow(Table):
    """Each trial takes a second; at one of them a claim is lost."""

    claim: Progress
    begun = 0

    async def trial(self, batch: Batch) -> None:
        self.begun += 1
        if self.begun == 3:
            asyncio.get_running_loop().call_later(0.5, self.claim.close)
        await asyncio.sleep(1)
        await super().trial(batch)


@in_virtual_time
async def test_a_search_ends_when_the_partition_is_lost() -> None:
    """A trial may be a job of Spark, and a search of a million records takes forty."""
    claim = progress(0)
    journal = Journal([claim])
    sink = Slow(journal, refused=[(0, 7)])
    sink.claim = claim
    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 500))
    async with running(runner_of(sink, journal), [queue]):
        await asyncio.sleep(60)
    assert (sink.begun, sink.trials, journal.events) == (3, 2, [])


async def test_a_range_of_which_a_search_leaves_nothing_is_done() -> None:
    claim = progress(0)
    journal = Journal([claim])
    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 2))
    runner = runner_of(Table(journal, refused=[(0, 0), (0, 1)]), journal)
    async with running(runner, [queue]):
        await until(lambda: journal.made)
    assert journal.events[-1] == "plan 0 without 0-1"
    assert (journal.made[-1], runner.status is not None and runner.status.written) == ([2], True)


async def test_a_quarantined_range_is_without_the_records_that_were_rejected_before(tmp_path: Path) -> None:
    """They are dead letters already."""
    claim = progress(0)
    journal = Journal([claim])
    kept: list[RangeData] = []

    class Keeping(RangeQuarantine):
        async def keep(self, part: RangeData, *others: object) -> Path | None:
            kept.append(part)
            return tmp_path / "kept"

    class Broken(Table):
        async def write(self, batch: Batch) -> None:
            await super().write(batch)
            raise OSError("the disk is full")

    queue = ChunkQueue(1 << 20)
    put(queue, chunk(claim, 0, 5))
    runner = runner_of(Broken(journal, bad=[(0, 3)]), journal, Keeping(tmp_path, "table"))
    async with running(runner, [queue]):
        await until(lambda: journal.made)
    assert [offsets_of(part) for part in kept] == [[0, 1, 2, 4]]
    assert journal.events.count("letter 0/3 b'v3' unstorable") == 1


async def test_a_record_that_executors_fetch_is_fetched_for_its_letter() -> None:
    claim = progress(0)
    journal = Journal([claim])
    await written(Table(journal, bad=[(0, 2)]), journal, Chunk(claim, 0, 5, Unfetched(0, 5)))
    assert journal.events == [
        "fetch 2",
        "letter 0/2 b'fetched' unstorable",
        "plan 0 without 2",
        "write [(0, [0, 1, 3, 4])]",
    ]


async def test_no_letter_is_written_of_a_topic_that_was_created_again() -> None:
    """What was fetched may be a record of the new one."""
    claim = progress(0)

    class Recreated(Journal):
        async def lose_recreated(self, owned: Collection[Progress]) -> None:
            if self.events:
                claim.close()

    journal = Recreated([claim])
    queue = ChunkQueue(1 << 20)
    put(queue, Chunk(claim, 0, 5, Unfetched(0, 5)))
    async with running(runner_of(Table(journal, bad=[(0, 2)]), journal), [queue]):
        await until(lambda: journal.made)
    assert (journal.events, claim.processed) == (["fetch 2"], 0)


OUTAGES = (
    BrokersUnreachableError("no broker answers"),
    broker_error(NOT_LEADER_OR_FOLLOWER),
    ConnectionLostError("not a member of the group at the moment"),
)


@pytest.mark.parametrize("lost", [False, True])
async def test_a_rejected_record_waits_for_brokers_as_long_as_its_partition_is_owned(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage of brokers ends no member, nor does the end of a membership during the search."""
    monkeypatch.setattr(sink_rejections, "PAUSE", 0.001)
    claim, other = progress(0), progress(1)

    class Away(Journal):
        asked = 0

        async def message(self, partition: TopicPartition, offset: int) -> Message | None:
            self.asked += 1
            if self.asked == 3 and lost:
                claim.close()
            if self.asked < 4:
                raise OUTAGES[self.asked - 1]
            return await super().message(partition, offset)

    journal = Away([claim, other])
    sink = Table(journal, refused=[(0, 2)])
    queue = ChunkQueue(1 << 20)
    put(queue, Chunk(claim, 0, 5, Unfetched(0, 5)), Chunk(other, 0, 2, Unfetched(0, 2)))
    async with running(runner_of(sink, journal), [queue]):
        await until(lambda: journal.made and other.settled)
    if lost:
        assert journal.events == ["write [(1, [0, 1])]"]
    else:
        assert journal.events[:3] == ["fetch 2", "letter 0/2 b'fetched' refused", "plan 0 without 2"]
        assert journal.events[3] == "write [(0, [0, 1, 3, 4]), (1, [0, 1])]"
