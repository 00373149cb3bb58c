"""Plan, write, commit: what is planned before a replayable sink receives a batch, and what a replay must contain."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import RangeChangedError, SessionExpiredError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.progress import Progress
from kzconsumer.records.checksums import contents_of
from kzconsumer.records.forms import Unfetched
from kzconsumer.registry.claim_record import Plan
from kzconsumer.sinks.batch_builder import OwnedBatch
from kzconsumer.sinks.interface import MOST_STEPS, Batch, RangeData, StepNotRecordedError, check_step
from kzconsumer.sinks.range_plans import RangePlans
from tests.support.owned_ranges import Nothing, Owned
from tests.support.plans import plan_of
from tests.support.range_data import range_data


class Destination(Nothing):
    fingerprint = "9f3c"


class Member(Owned):
    """Remembers what it has to store; some claims may be lost."""

    def __init__(
        self, lost: Collection[Progress] = (), error: Exception | None = None, *, refuses_loss: bool = False
    ) -> None:
        super().__init__(error=error)
        self.plans: dict[Progress, Plan] = {}
        self.steps: list[tuple[set[Progress], str]] = []
        self.resumed: list[Progress] = []
        self.contents: list[Mapping[Progress, tuple[int, str]]] = []
        self.lost = lost
        self.planning = RangePlans(self, Destination(), "read_committed", refuses_loss=refuses_loss)

    async def begin(self, batch: Batch, owned: Sequence[Progress]) -> tuple[Batch, list[Progress]]:
        planned = await self.planning.begin(owned_batch(batch, owned))
        return planned.batch, list(planned.parts)

    async def end(self, batch: Batch, owned: Sequence[Progress]) -> None:
        await self.planning.end(owned_batch(batch, owned))

    async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
        if self.error is not None:
            raise self.error
        self.plans.update(plans)
        return [progress for progress in plans if progress not in self.lost]

    async def record_step(self, owned: Collection[Progress], step: str) -> Collection[Progress]:
        if self.error is not None:
            raise self.error
        self.steps.append((set(owned), step))
        return [progress for progress in owned if progress not in self.lost]

    async def record_contents(self, figures: Mapping[Progress, tuple[int, str]]) -> Collection[Progress]:
        if self.error is not None:
            raise self.error
        self.contents.append(figures)
        return [progress for progress in figures if progress not in self.lost]

    async def resume_after_replay(self, progress: Progress) -> None:
        if self.error is not None:
            raise self.error
        self.resumed.append(progress)


def owned_batch(batch: Batch, owned: Sequence[Progress]) -> OwnedBatch:
    return OwnedBatch(dict(zip(owned, batch.ranges, strict=True)), batch)


def progress(partition: int, start: int, replay: Plan | None = None) -> Progress:
    return Progress(TopicPartition("orders", partition), start, incarnation=0x2A, replay=replay)


async def test_the_content_of_a_plan() -> None:
    member, claim, part = Member(), progress(0, 3), range_data("orders", 0, 3, 9)
    batch = Batch((part,))
    planned, owned = await member.begin(batch, [claim])
    assert (planned.ranges, owned) == ((part,), [claim])
    await member.end(planned, [claim])
    plan = member.plans[claim]
    assert msgspec.structs.replace(plan, id="") == Plan(
        id="",
        first=3,
        until=9,
        offset_version=-1,
        records=6,
        checksum=contents_of(part.batches).checksum,
        incarnation="0x2a",
        epoch=0,
        isolation="read_committed",
        fingerprint="9f3c",
    )
    assert (len(plan.id), member.resumed) == (32, [])


async def test_a_batch_names_what_its_ranges_follow() -> None:
    known, new, replayed = progress(0, 9), progress(1, 0), progress(2, 4, plan_of(4, 6))
    known.written, replayed.written = (3, 9), (1, 3)
    parts = (range_data("orders", 0, 9, 12), range_data("orders", 1, 0, 2))
    batch, _ = await Member().begin(Batch(parts), [known, new])
    assert batch.follows == (RangeIdentity("orders", 0, 0x2A, 0, 3, 9),)
    replay = Batch((range_data("orders", 2, 4, 6),), is_replay=True)
    batch, _ = await Member().begin(replay, [replayed])
    assert batch.follows == (RangeIdentity("orders", 2, 0x2A, 0, 1, 3),)


async def test_lost_ranges_are_not_written_and_empty_ranges_are_not_planned() -> None:
    kept, lost, empty = progress(0, 0), progress(1, 0), progress(2, 0)
    parts = (range_data("orders", 0, 0, 2), range_data("orders", 1, 0, 2), range_data("orders", 2, 0, 2, []))
    member = Member(lost=[lost])
    batch, owned = await member.begin(Batch(parts), [kept, lost, empty])
    assert (batch.ranges, owned) == ((parts[0], parts[2]), [kept, empty])
    assert member.plans.keys() == {kept, lost}


async def test_nothing_is_written_after_the_session_has_ended() -> None:
    member = Member(error=SessionExpiredError("over"))
    batch, owned = await member.begin(Batch((range_data("orders", 0, 0, 2),)), [progress(0, 0)])
    assert (batch.ranges, owned) == ((), [])
    part = range_data("orders", 0, 0, 2)
    await member.end(Batch((part,), is_replay=True), [progress(0, 0, planned(part))])


def planned(part: RangeData) -> Plan:
    found = contents_of(part.batches)
    more = {"offset_version": 4, "records": found.records, "checksum": found.checksum, "fingerprint": "9f3c"}
    return plan_of(part.first, part.until, **more)


async def test_a_replay_of_the_planned_range() -> None:
    part = range_data("orders", 0, 3, 9)
    member, claim = Member(), progress(0, 3, planned(part))
    again = Batch((range_data("orders", 0, 3, 9, batches=6),), is_replay=True)
    batch, owned = await member.begin(again, [claim])
    assert (batch.ranges, batch.is_replay, owned) == (again.ranges, True, [claim])
    await member.end(again, [claim])
    assert (member.plans, member.resumed) == ({}, [claim])  # its plan is already stored


async def test_of_a_range_that_the_sink_fetches_only_offsets_are_planned_and_compared() -> None:
    """Either member may write again what the other has planned."""
    part, counted = (
        msgspec.structs.replace(range_data("o", 0, 3, 9), pieces=(Unfetched(3, 9),)),
        range_data("o", 0, 3, 9),
    )
    member, claim = Member(refuses_loss=True), progress(0, 3)
    await member.begin(Batch((part,)), [claim])
    plan = member.plans[claim]
    assert (plan.first, plan.until, plan.records, plan.checksum) == (3, 9, 6, "")
    for replayed, replay in ((part, planned(counted)), (counted, plan)):
        batch, _ = await member.begin(Batch((replayed,), is_replay=True), [progress(0, 3, replay)])
        assert batch.ranges == (replayed,)


def unfetched(partition: int, first: int, until: int) -> RangeData:
    part = range_data("orders", partition, first, until)
    return msgspec.structs.replace(part, pieces=(Unfetched(first, until),))


SIX = contents_of(range_data("orders", 0, 3, 9).batches)
FIVE = contents_of(range_data("orders", 0, 4, 9).batches)


async def test_a_plan_gets_number_and_checksum_of_what_the_sink_has_fetched() -> None:
    """As they are planned where the records are at hand. A member that has lost all of them publishes nothing."""
    one, two = progress(0, 3), progress(1, 0)
    member = Member()
    batch, _ = await member.begin(Batch((unfetched(0, 3, 9), unfetched(1, 0, 2))), [one, two])
    assert batch.found is not None
    await batch.found({one.topic_partition: SIX})
    assert member.contents == [{one: (6, SIX.checksum)}]
    member.lost = [one]
    await batch.found({one.topic_partition: SIX, two.topic_partition: FIVE})
    with pytest.raises(StepNotRecordedError, match="the partitions of the batch are lost"):
        await batch.found({one.topic_partition: SIX})
    member.error = SessionExpiredError("over")
    with pytest.raises(StepNotRecordedError):
        await batch.found({two.topic_partition: FIVE})


@pytest.mark.parametrize("is_replay", [True, False], ids=["next owner", "next attempt"])
@pytest.mark.parametrize("refuses_loss", [True, False], ids=["refused", "reported"])
async def test_records_that_differ_when_the_sink_fetches_them_again(*, is_replay: bool, refuses_loss: bool) -> None:
    """They are compared before they are stored in the plan."""
    member = Member(refuses_loss=refuses_loss)
    claim = progress(0, 3, planned(range_data("orders", 0, 3, 9)) if is_replay else None)
    batch, _ = await member.begin(Batch((unfetched(0, 3, 9),), is_replay=is_replay), [claim])
    assert batch.found is not None
    with capture_logs() as logs:
        await batch.found({claim.topic_partition: SIX})
    assert logs == []
    reason = f"planned with 6 records (checksum {SIX.checksum}) and not committed; the log holds 5 there now"
    if refuses_loss:
        with pytest.raises(RangeChangedError, match=re.escape(reason)):
            await batch.found({claim.topic_partition: FIVE})
        assert member.contents == [{claim: (6, SIX.checksum)}]
        return
    with capture_logs() as logs:
        await batch.found({claim.topic_partition: FIVE})
        await batch.found({claim.topic_partition: FIVE})
    (said,) = logs  # the plan has the new ones then
    assert (said["event"], reason in said["reason"]) == ("planned range has changed in the log", True)
    assert member.contents[1:] == [{claim: (5, FIVE.checksum)}] * 2


async def test_a_plan_without_checksum_says_that_nothing_was_published() -> None:
    claim = progress(0, 3, plan_of(3, 9, checksum="", records=6))
    batch, _ = await Member(refuses_loss=True).begin(Batch((unfetched(0, 3, 9),), is_replay=True), [claim])
    assert batch.found is not None
    with capture_logs() as logs:
        await batch.found({claim.topic_partition: FIVE})
    assert logs == []


def test_rejected_records_stay_a_part_of_what_the_sink_fetches() -> None:
    """Unless the log has lost them."""
    part = msgspec.structs.replace(unfetched(0, 0, 10), pieces=(Unfetched(2, 6), Unfetched(6, 10)))
    rest = part.without(((1, 3), (5, 7))).without(((9, 10),))
    assert [(each.first, each.until) for each in rest.pieces if isinstance(each, Unfetched)] == [(3, 5), (7, 9)]
    assert (rest.left_out, rest.records) == (((2, 3), (5, 7), (9, 10)), 4)
    assert range_data("orders", 0, 0, 9).without(((1, 3),)).left_out == ()


async def test_a_range_that_the_sink_fetches_has_the_leader_epoch_of_its_plan() -> None:
    """Only the sink's own reader can compare it with the log while it fetches."""
    part = msgspec.structs.replace(range_data("o", 0, 3, 9), pieces=(Unfetched(3, 9),))
    member, claim = Member(), progress(0, 3)
    claim.leader_epochs.extend(3, ((3, 4),), 9, 3)
    batch, _ = await member.begin(Batch((part,)), [claim])
    assert (batch.ranges[0].leader_epoch, member.plans[claim].leader_epoch) == (4, 4)
    again = progress(0, 3, member.plans[claim])
    batch, _ = await member.begin(Batch((part,), is_replay=True), [again])
    assert batch.ranges[0].leader_epoch == 4
    unknown = msgspec.structs.replace(member.plans[claim], leader_epoch=msgspec.UNSET)
    batch, _ = await member.begin(Batch((part,), is_replay=True), [progress(0, 3, unknown)])
    assert batch.ranges[0].leader_epoch == -1


CHANGED = pytest.mark.parametrize(
    "now", [range_data("orders", 0, 3, 9, [{"offset": 3, "value": b"other"}]), range_data("orders", 0, 3, 9, [])]
)


@CHANGED
async def test_a_replay_of_other_records_is_refused_if_loss_is(now: RangeData) -> None:
    claim = progress(0, 3, planned(range_data("orders", 0, 3, 9)))
    with pytest.raises(RangeChangedError, match="offsets 3 to 9 were planned with 6 records"):
        await Member(refuses_loss=True).begin(Batch((now,), is_replay=True), [claim])


@CHANGED
async def test_a_replay_of_other_records_is_reported(now: RangeData) -> None:
    claim = progress(0, 3, planned(range_data("orders", 0, 3, 9)))
    batch = Batch((now,), is_replay=True)
    with capture_logs() as logs:
        written, owned = await Member().begin(batch, [claim])
    assert (written.ranges, owned) == (batch.ranges, [claim])
    (output,) = logs
    assert (output["log_level"], output["topic"], output["partition"], output["first"], output["until"]) == (
        "error",
        "orders",
        0,
        3,
        9,
    )


@pytest.mark.parametrize("until", [8, 10])
async def test_a_replay_of_another_range(until: int) -> None:
    claim = progress(0, 3, planned(range_data("orders", 0, 3, 9)))
    with pytest.raises(AssertionError, match="is not what was planned"):
        await Member().begin(Batch((range_data("orders", 0, 3, until),), is_replay=True), [claim])


async def test_steps_are_recorded_once_for_all_owned_ranges() -> None:
    kept, lost, empty = progress(0, 0), progress(1, 0), progress(2, 0)
    parts = (range_data("orders", 0, 0, 2), range_data("orders", 1, 0, 2), range_data("orders", 2, 0, 2, []))
    member = Member(lost=[lost])
    batch, _ = await member.begin(Batch(parts), [kept, lost, empty])
    assert batch.steps is not None
    for step in ("table", "index", "table"):
        await batch.steps.record(step)
    assert batch.steps.done == ("table", "index")
    assert member.steps == [({kept, empty}, "table"), ({kept, empty}, "index")]
    with pytest.raises(ValueError, match="is not the name of a step"):
        await batch.steps.record("")
    member.lost = [kept, empty]
    with pytest.raises(StepNotRecordedError, match='step "late" is not recorded'):
        await batch.steps.record("late")
    member.error = SessionExpiredError("over")
    with pytest.raises(StepNotRecordedError):
        await batch.steps.record("later")
    assert batch.steps.done == ("table", "index")


async def test_a_replay_begins_with_the_recorded_steps() -> None:
    part = range_data("orders", 0, 3, 9)
    claim = progress(0, 3, msgspec.structs.replace(planned(part), steps=("table",)))
    batch, _ = await Member().begin(Batch((part,), is_replay=True), [claim])
    assert batch.steps is not None
    assert batch.steps.done == ("table",)


@pytest.mark.parametrize("step", ["", "a\nb", "x" * 101])
def test_invalid_step_names(step: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a step"):
        check_step(step, ())


def test_the_number_of_steps_of_a_batch_is_limited() -> None:
    most = [f"step {number}" for number in range(MOST_STEPS)]
    check_step(most[0], most)
    with pytest.raises(ValueError, match="has 32 steps at most"):
        check_step("another", most)
