"""A batch that the sink cannot write: which ranges are quarantined, and which failures are not the batch's fault."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import ConnectionLostError, DestinationWentBackError, NoNodeError, SinkError
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer.offsets.progress import Chunk, Progress
from kzconsumer.records.forms import Unfetched
from kzconsumer.registry.claim_record import Plan
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch, RangeData, StepNotRecordedError
from kzconsumer.sinks.quarantine import METADATA, RangeQuarantine
from kzconsumer.sinks.range_plans import RangePlans, destination_of
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import LeaseInHand, chunk, progress, put
from tests.support.owned_ranges import Nothing, Owned
from tests.support.range_data import range_data, record
from tests.support.sink_runs import Memory, failure_of, running, until


class Choosy(Memory):
    """Fails for these partitions."""

    def __init__(self, poison: Collection[int], lease: LeaseInHand | None = None) -> None:
        super().__init__()
        self.poison = set(poison)
        self.lease = lease
        self.tried: list[list[int]] = []

    async def write(self, batch: Batch) -> None:
        self.tried.append([part.partition for part in batch.ranges])
        if self.lease is not None and len(self.tried) == 1:
            self.lease.lose()
        if self.poison.intersection(self.tried[-1]):
            raise ValueError("cannot be cast to INT")
        await super().write(batch)


def runner_of(sink: Memory, quarantine: RangeQuarantine | None, owned: Owned) -> SinkRunner:
    limits = BatchSettings(max_records=1000, max_bytes=1 << 20, max_time=0.02)
    return SinkRunner("choosy", sink, limits, owned, quarantine=quarantine)


async def test_only_the_range_that_fails_alone_is_quarantined(tmp_path: Path) -> None:
    claims = [progress(number) for number in range(3)]
    queue, sink, commits = ChunkQueue(1 << 20), Choosy({1}), Owned(claims)
    put(queue, *(chunk(claim, 0, 5) for claim in claims))
    with capture_logs() as logs:
        async with running(runner_of(sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
            await until(lambda: commits.made)
    assert commits.made[0] == [5, 5, 5]
    assert [claim.written for claim in claims] == [(0, 5), None, (0, 5)]  # what the destination must have from here on
    assert sink.tried == [[0, 1, 2], [0], [1], [2]]
    assert sorted(sink.ranges) == [(0, 0, 5), (2, 0, 5)]
    (file,) = (tmp_path / "aside").iterdir()
    assert file.name == f"orders+1+0.0+{0:020d}+{5:020d}.parquet"
    table = pq.read_table(file)
    assert table.column("value").to_pylist() == [b"v%d" % n for n in range(5)]
    assert "cannot be cast to INT" in msgspec.json.decode(table.schema.metadata[METADATA.encode()])["reason"]
    (output,) = [each for each in logs if each["log_level"] == "error"]
    assert [output[name] for name in ("topic", "partition", "first", "until", "kept")] == ["orders", 1, 0, 5, str(file)]


class Fetching(Owned):
    """A member whose sink fetches for itself; `error` is raised instead of records."""

    async def fetched(self, part: RangeData) -> RangeData:
        if self.error is not None:
            raise self.error
        assert part.spans == (OffsetRange(*part.topic_partition, 2, part.until),)
        records = [record(offset) for offset in range(2, part.until)]
        return msgspec.structs.replace(
            range_data(part.topic, part.partition, part.first, part.until, records), incarnation=part.incarnation
        )


@pytest.mark.parametrize("error", [None, ConnectionLostError("no leader")])
async def test_a_range_that_the_sink_fetches_is_fetched_for_the_quarantine(
    tmp_path: Path, error: Exception | None
) -> None:
    """If that fails it is not committed."""
    ours = progress(0)
    queue, sink, commits = ChunkQueue(1 << 20), Choosy({0}), Fetching([ours], error)
    put(queue, Chunk(ours, 0, 5, Unfetched(2, 5)))
    runner = runner_of(sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits)
    if error is None:
        async with running(runner, [queue]):
            await until(lambda: commits.made)
        (file,) = (tmp_path / "aside").iterdir()
        assert pq.read_table(file, columns=["offset"]).column(0).to_pylist() == [2, 3, 4]
        assert commits.made[0] == [5]
        return
    raised = await failure_of(runner, [queue])
    assert raised.group_contains(SinkError, match="nor can its records be fetched for the quarantine: no leader")
    assert (commits.made, ours.processed, [*tmp_path.iterdir()]) == ([], 0, [])


async def test_records_of_a_topic_that_was_created_again_are_not_quarantined_as_those_of_the_earlier(
    tmp_path: Path,
) -> None:
    ours = progress(0)

    class Recreated(Fetching):
        was_read = False

        async def fetched(self, part: RangeData) -> RangeData:
            self.was_read = True
            return await super().fetched(part)

        async def lose_recreated(self, owned: Collection[Progress]) -> None:
            if self.was_read:
                ours.close()

    queue, commits = ChunkQueue(1 << 20), Recreated([ours])
    put(queue, Chunk(ours, 0, 5, Unfetched(2, 5)))
    async with running(runner_of(Choosy({0}), RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(lambda: commits.made)
    assert (commits.was_read, ours.processed, [*tmp_path.rglob("*.parquet")]) == (True, 0, [])


async def test_without_a_quarantine_nothing_is_retried() -> None:
    claims = [progress(number) for number in range(2)]
    queue, sink, commits = ChunkQueue(1 << 20), Choosy({1}), Owned(claims)
    put(queue, *(chunk(claim, 0, 5) for claim in claims))
    raised = await failure_of(runner_of(sink, None, commits), [queue])
    assert raised.group_contains(SinkError)
    assert (sink.tried, commits.made, [claim.processed for claim in claims]) == ([[0, 1]], [], [0, 0])


class Restored(Choosy):
    """Went back, which it notices at the first batch, or when it writes the first range alone."""

    def __init__(self, poison: Collection[int]) -> None:
        super().__init__(poison)
        self.followed: list[tuple[RangeIdentity, ...]] = []

    async def write(self, batch: Batch) -> None:
        self.followed.append(batch.follows)
        if self.tried or not self.poison:
            raise DestinationWentBackError(batch.follows[0], 3)
        await super().write(batch)


@pytest.mark.parametrize("poison", [set(), {1}], ids=["batch", "alone"])
async def test_what_a_destination_has_lost_is_not_hidden_by_the_quarantine(tmp_path: Path, poison: set[int]) -> None:
    """Nor committed: the member stops, and says what is missing."""
    claims = [progress(number) for number in range(2)]
    for claim in claims:
        claim.restart(9)
        claim.written = 5, 9
    queue, sink, commits = ChunkQueue(1 << 20), Restored(poison), Owned(claims)
    put(queue, *(chunk(claim, 9, 12) for claim in claims))
    runner = beside(Ledger([]), sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits)
    raised = await failure_of(runner, [queue])
    lost = r"^a destination: orders-0: offsets 3 to 9 were written and committed, and are missing now: .*--republish"
    assert raised.group_contains(DestinationWentBackError, match=lost)
    assert [claim.processed for claim in claims] == [9, 9]
    assert not (tmp_path / "aside").exists() or not [*(tmp_path / "aside").iterdir()]
    both = tuple(RangeIdentity("orders", number, 0, 0, 5, 9) for number in range(2))
    assert sink.followed == [both, both[:1]][: 1 + len(poison)]


class Ledger:
    """A destination that answers as the test says, or not at all."""

    fingerprint = "f"
    remembers = True

    def __init__(self, published: Collection[RangeIdentity], error: Exception | None = None) -> None:
        self.published = published
        self.error = error
        self.aside: list[tuple[RangeIdentity, int]] = []

    def __str__(self) -> str:
        return "a destination"

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        if self.error is not None:
            raise self.error
        return [each for each in ranges if each in self.published]

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        self.aside.append((part, records))
        return part not in await self.has([part])


def beside(destination: Ledger, sink: Memory, quarantine: RangeQuarantine, owned: Owned) -> SinkRunner:
    limits = BatchSettings(max_records=1000, max_bytes=1 << 20, max_time=0.02)
    return SinkRunner("choosy", sink, limits, owned, RangePlans(owned, destination, "read_committed"), quarantine)


@pytest.mark.parametrize("there", [True, False])
async def test_a_range_is_set_aside_only_behind_what_the_destination_must_have(tmp_path: Path, there: bool) -> None:
    """A table that knows each partition's end alone would end behind this range, with a gap that nobody notices."""
    ours = progress(0)
    ours.restart(9)
    ours.written = 5, 9
    queue, commits = ChunkQueue(1 << 20), Owned([ours])
    put(queue, chunk(ours, 9, 12))
    ledger = Ledger([RangeIdentity("orders", 0, 0, 0, 5, 9)] if there else [])
    runner = beside(ledger, Choosy({0}), RangeQuarantine(tmp_path / "aside", "choosy"), commits)
    if there:
        async with running(runner, [queue]):
            await until(lambda: commits.made)
        assert (commits.made[0], ours.written) == ([12], (5, 9))
        return
    raised = await failure_of(runner, [queue])
    assert raised.group_contains(
        DestinationWentBackError, match=r"^a destination: orders-0: offsets 5 to 9 were written"
    )
    assert (ledger.aside, commits.made, ours.processed) == ([], [], 9)
    assert not [*(tmp_path / "aside").iterdir()]


async def test_a_range_that_was_published_though_its_write_failed_is_not_quarantined(tmp_path: Path) -> None:
    """The reply was lost, or a file is still to be put in place: in the quarantine the records would exist twice."""
    claims = [progress(number) for number in range(3)]
    queue, sink, commits = ChunkQueue(1 << 20), Choosy({1, 2}), Owned(claims)
    put(queue, *(chunk(claim, 0, 5) for claim in claims))
    ledger = Ledger([RangeIdentity("orders", 1, 0, 0, 0, 5)])
    async with running(beside(ledger, sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(lambda: commits.made)
    assert commits.made[0] == [5, 5, 5]
    assert [file.name.split("+")[1] for file in (tmp_path / "aside").iterdir()] == ["2"]
    assert [claim.written for claim in claims] == [(0, 5), (0, 5), None]
    assert ledger.aside == [(RangeIdentity("orders", number, 0, 0, 0, 5), 5) for number in (1, 2)]


async def test_the_decision_falls_when_the_records_are_on_disk_and_before_they_have_their_name(
    tmp_path: Path,
) -> None:
    """A member that dies in between leaves the plan to a member that finds the decision and quarantines the range as
    well.
    """
    claim, queue, commits = progress(), ChunkQueue(1 << 20), Owned()
    found: list[list[Path]] = []

    class Deciding(Ledger):
        async def set_aside(self, part: RangeIdentity, records: int) -> bool:
            found.append(list((tmp_path / "aside").iterdir()))
            return await super().set_aside(part, records)

    put(queue, chunk(claim, 0, 5))
    runner = beside(Deciding(()), Choosy({0}), RangeQuarantine(tmp_path / "aside", "choosy"), commits)
    async with running(runner, [queue]):
        await until(lambda: commits.made)
    ((staged,),) = found
    assert staged.name.startswith(".orders+0")
    (kept,) = (tmp_path / "aside").iterdir()
    assert kept.name.startswith("orders+0")


async def test_a_range_is_set_aside_only_with_the_lease(tmp_path: Path) -> None:
    """It is lost while the records are written to the quarantine: by then another member may write the range."""
    claim, queue, lease = progress(), ChunkQueue(1 << 20), LeaseInHand()
    asked: list[bool] = []
    lost = asyncio.Event()

    class Leased(Ledger):
        async def set_aside(self, part: RangeIdentity, records: int) -> bool:
            asked.append(lease.held)
            return await super().set_aside(part, records)

    class Slow(RangeQuarantine):
        async def keep(self, part: RangeData, reason: str, decide: Callable[[], Awaitable[bool]]) -> Path | None:
            async def deciding() -> bool:
                lease.lose()
                lost.set()
                return await decide()

            return await super().keep(part, reason, deciding)

    put(queue, chunk(claim, 0, 5))
    commits = Owned(lease=lease)
    async with running(beside(Leased(()), Choosy({0}), Slow(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(lost.is_set)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asked
        lease.hold()
        await until(lambda: commits.made)
    assert asked == [True]


async def test_a_planned_batch_is_written_only_with_the_lease(tmp_path: Path) -> None:
    """This process is suspended while ZooKeeper stores the plan: by then another member may write the range."""
    claim, queue, lease, sink = progress(), ChunkQueue(1 << 20), LeaseInHand(), Choosy(())
    planned = asyncio.Event()

    class Suspended(Owned):
        async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
            lease.lose()
            planned.set()
            return await super().plan(plans)

    put(queue, chunk(claim, 0, 5))
    commits = Suspended(lease=lease)
    async with running(beside(Ledger(()), sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(planned.is_set)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not sink.tried
        lease.hold()
        await until(lambda: commits.made)
    assert sink.tried == [[0]]


async def test_nothing_is_quarantined_if_it_is_unknown_whether_it_was_published(tmp_path: Path) -> None:
    claim, queue, commits = progress(), ChunkQueue(1 << 20), Owned()
    put(queue, chunk(claim, 0, 5))
    runner = beside(
        Ledger([], SinkError("no database")), Choosy({0}), RangeQuarantine(tmp_path / "aside", "choosy"), commits
    )
    raised = await failure_of(runner, [queue])
    assert raised.group_contains(SinkError, match=r"cast to INT.*the destination has it is unknown.*no database")
    assert (claim.processed, list((tmp_path / "aside").iterdir())) == (0, [])


async def test_a_sink_without_set_aside_is_asked_what_it_has(tmp_path: Path) -> None:
    class Plain(Memory):
        fingerprint = "f"

        async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
            return [each for each in ranges if each.partition == 1]

    destination = destination_of("plain", capabilities(Plain()))
    assert destination is not None
    identities = [RangeIdentity("orders", number, 0, 0, 0, 5) for number in (0, 1)]
    assert [await destination.set_aside(each, 5) for each in identities] == [True, False]


async def test_a_destination_that_does_not_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance waits for the answer."""
    monkeypatch.setattr("kzconsumer.sinks.range_plans.PATIENCE", 0.01)

    class Silent(Memory):
        fingerprint = "f"

        async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
            await asyncio.Event().wait()
            return ()

    destination = destination_of("silent", capabilities(Silent()))
    assert destination is not None
    with pytest.raises(SinkError, match=r"sink silent: no answer within 0\.01 s"):
        async with asyncio.timeout(5):
            await destination.has([RangeIdentity("orders", 1, 0, 0, 0, 5)])


@pytest.mark.parametrize("answer", [None, True, iter(())])
async def test_an_answer_that_is_no_collection_is_a_failure(answer: object) -> None:
    """Of an iterator the first look at it would leave nothing: published ranges would be missed."""

    class Odd(Memory):
        fingerprint = "f"

        async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
            return answer  # type: ignore[return-value]

    destination = destination_of("odd", capabilities(Odd()))
    assert destination is not None
    with pytest.raises(SinkError, match=r"sink odd: `has` returned a \w+; it returns a collection of ranges"):
        await destination.has([RangeIdentity("orders", 1, 0, 0, 0, 5)])


@pytest.mark.parametrize("error", [StepNotRecordedError("none is ours"), NoNodeError("/consumers/g/claims/orders/0")])
async def test_a_step_that_cannot_be_recorded_is_a_failure_of_the_write(tmp_path: Path, error: Exception) -> None:
    claims = [progress(0), progress(1)]
    queue, commits = ChunkQueue(1 << 20), Owned(claims)

    class Stepping(Choosy):
        async def write(self, batch: Batch) -> None:
            if len(batch.ranges) > 1:
                raise error
            await super().write(batch)

    sink = Stepping(())
    put(queue, *(chunk(claim, 0, 5) for claim in claims))
    async with running(runner_of(sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(lambda: commits.made)
    assert (sink.tried, commits.made[0]) == ([[0], [1]], [5, 5])


async def test_a_range_that_cannot_be_quarantined_either_stops_the_member(tmp_path: Path) -> None:
    claim, queue, sink, commits = progress(), ChunkQueue(1 << 20), Choosy({0}), Owned()
    (tmp_path / "aside").write_text("not a directory")
    put(queue, chunk(claim, 0, 5))
    raised = await failure_of(runner_of(sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue])
    assert raised.group_contains(SinkError, match=r"cannot be cast to INT.*nor can it be quarantined")
    assert (claim.processed, commits.made) == (0, [])


@pytest.mark.parametrize("aside", [False, True])
async def test_a_failure_without_the_lease_is_not_counted(tmp_path: Path, aside: bool) -> None:
    """The sink may have refused to publish because the lease had ended."""
    claim, queue, lease = progress(), ChunkQueue(1 << 20), LeaseInHand()
    commits = Owned(lease=lease)
    sink = Choosy({0}, lease)
    put(queue, chunk(claim, 0, 5))
    quarantine = RangeQuarantine(tmp_path / "aside", "choosy") if aside else None
    async with running(runner_of(sink, quarantine, commits), [queue]):
        await until(lambda: sink.tried)
        sink.poison.clear()
        assert sink.tried == [[0]]
        lease.hold()
        await until(lambda: commits.made)
    assert sink.ranges == [(0, 0, 5)]
    assert not (tmp_path / "aside").exists()


async def test_ranges_lost_while_waiting_for_the_lease_are_not_written_again() -> None:
    """For instance when the session has expired: a write that is cancelled at once would cost the sink its Spark."""
    lost, staying, queue, lease = progress(0), progress(1), ChunkQueue(1 << 20), LeaseInHand()
    commits = Owned(lease=lease)
    sink = Choosy({0}, lease)
    put(queue, chunk(lost, 0, 5))
    async with running(runner_of(sink, None, commits), [queue]):
        await until(lambda: sink.tried)
        lost.close()
        lease.hold()
        put(queue, chunk(staying, 0, 5))
        await until(lambda: staying.processed == 5)
    assert sink.tried == [[0], [1]]


async def test_a_range_lost_meanwhile_is_left_to_its_next_owner(tmp_path: Path) -> None:
    staying, going = progress(0), progress(1)
    queue, commits = ChunkQueue(1 << 20), Owned([staying, going])

    class Losing(Choosy):
        async def write(self, batch: Batch) -> None:
            if len(self.tried) == 1:
                going.close()
            await super().write(batch)

    sink = Losing({1})
    put(queue, chunk(staying, 0, 5), chunk(going, 0, 5))
    async with running(runner_of(sink, RangeQuarantine(tmp_path / "aside", "choosy"), commits), [queue]):
        await until(lambda: commits.made)
    assert (sink.tried, commits.made[0]) == ([[0, 1], [0]], [5, 0])
    assert not (tmp_path / "aside").exists()


@pytest.mark.parametrize("aside", [False, True])
async def test_a_failure_of_a_range_lost_at_that_moment_is_not_counted(tmp_path: Path, aside: bool) -> None:
    """Other members write it: it is neither a reason to stop nor to be reported as missing in the destination."""
    staying, going = progress(0), progress(1)
    queue, commits = ChunkQueue(1 << 20), Owned([staying, going])

    class Losing(Choosy):
        async def write(self, batch: Batch) -> None:
            if batch.ranges[0].partition == 1:
                going.close()
            await super().write(batch)

    sink = Losing({1})
    quarantine = RangeQuarantine(tmp_path / "aside", "choosy") if aside else None
    put(queue, chunk(going, 0, 1000))
    async with running(runner_of(sink, quarantine, commits), [queue]):
        await until(lambda: sink.tried)
        put(queue, chunk(staying, 0, 5))
        await until(lambda: staying.processed == 5)
    assert (sink.tried[-1], going.processed) == ([0], 0)
    assert not (tmp_path / "aside").exists()


async def yes() -> bool:
    return True


async def test_a_quarantined_range_is_recognized_when_it_is_delivered_again(tmp_path: Path) -> None:
    quarantine, part = RangeQuarantine(tmp_path, "choosy"), range_data("orders", 0, 3, 9)
    first = await quarantine.keep(part, "one reason", yes)
    assert first is not None
    before = first.read_bytes()
    assert await quarantine.keep(part, "another", yes) == first
    assert (first.read_bytes(), list(tmp_path.iterdir())) == (before, [first])


async def test_a_step_recorded_for_a_range_that_is_tried_alone_does_not_count_for_the_others(tmp_path: Path) -> None:
    claims = [progress(number) for number in range(2)]
    queue = ChunkQueue(1 << 20)
    recorded: list[tuple[set[int], str]] = []

    class Recording(Owned):
        async def record_step(self, owned: Collection[Progress], step: str) -> Collection[Progress]:
            recorded.append(({progress.topic_partition.partition for progress in owned}, step))
            return owned

    class Stepping(Memory):
        async def write(self, batch: Batch) -> None:
            assert batch.steps is not None
            await batch.steps.record("staged")
            if len(batch.ranges) > 1:
                raise ValueError("too much at once")
            await batch.steps.record("table")
            await super().write(batch)

    limits = BatchSettings(max_records=1000, max_bytes=1 << 20, max_time=0.02)
    commits = Recording(claims)
    plans = RangePlans(commits, Nothing(), "read_committed")
    runner = SinkRunner("stepping", Stepping(), limits, commits, plans, RangeQuarantine(tmp_path / "aside", "stepping"))
    put(queue, *(chunk(claim, 0, 5) for claim in claims))
    async with running(runner, [queue]):
        await until(lambda: commits.made)
    assert recorded == [({0, 1}, "staged"), ({0}, "table"), ({1}, "table")]
