"""`prove` over random histories: correct behaviour is never a finding, and every fault is one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch, HeldRange, Holdings, QuarantinedRange
from kzconsumer_tools.commands.sink_commands import lost
from kzconsumer_tools.proof import GroupProgress, InLog, Planned, Proof, gaps, prove, unlisted
from kzconsumer_tools.tables.offset_tables import proof_table

PARTITION = TopicPartition("t", 0)
INCARNATION = -5  # a czxid may be above 63 bits


class History(NamedTuple):
    """A partition of a group at work: `done` are its ranges in order; the offsets between them hold no records."""

    epoch: int
    done: list[tuple[RangeIdentity, str]]
    stored: int
    later: int
    in_flight: bool


@st.composite
def histories(draw: DrawFn) -> History:
    """Ranges that tile from a start on: published, set aside, or without records; the last ones may be in flight."""
    epoch = draw(st.integers(0, 2))
    at = draw(st.integers(0, 5))
    done: list[tuple[RangeIdentity, str]] = []
    for kind in draw(st.lists(st.sampled_from(["held", "held", "held", "aside", "empty"]), max_size=8)):
        until = at + draw(st.integers(1, 4))
        done.append((RangeIdentity(*PARTITION, INCARNATION, epoch, at, until), kind))
        at = until
    ends = [each.until for each, _ in done] or [at]
    # Between the two reads of the group, commits may have been made; one more range may be published and not committed.
    before, later = sorted(draw(st.tuples(*[st.integers(0, len(ends) - 1)] * 2)))
    return History(epoch, done, ends[before], ends[later], draw(st.booleans()))


def held(identity: RangeIdentity) -> HeldRange:
    size = identity.until - identity.first
    return HeldRange(identity=identity, records_in=size, records_out=size, records_quarantined=0, rows=size)


class Seen(NamedTuple):
    """The input of `prove`."""

    before: GroupProgress
    holdings: Holdings
    after: GroupProgress
    aside: list[QuarantinedRange]


def seen(history: History) -> Seen:
    """As three reads may find it: the destination has everything up to `later`, and perhaps the range in flight."""
    there = [(each, kind) for each, kind in history.done if each.until <= history.later]
    flying = next((each for each, kind in history.done if each.first >= history.later and kind == "held"), None)
    if not history.in_flight or flying is None or flying.first != history.later:
        flying = None
    planned = Planned(flying, flying.until - flying.first, "f") if flying is not None else None
    ranges = [held(each) for each, kind in there if kind == "held"] + ([held(flying)] if flying is not None else [])
    return Seen(
        GroupProgress(INCARNATION, history.epoch, history.stored),
        Holdings(destination="files", fingerprint="f", ranges=tuple(ranges)),
        GroupProgress(INCARNATION, history.epoch, history.later, planned),
        [QuarantinedRange(each, each.until - each.first) for each, kind in there if kind == "aside"],
    )


def proof(found: Seen, in_log: InLog = "none") -> Proof:
    before, after = {PARTITION: found.before}, {PARTITION: found.after}
    missing = gaps(before, found.holdings, found.aside)
    return prove("g", before, found.holdings, after, found.aside, dict.fromkeys(missing, in_log))


def kinds(found: Proof) -> set[str]:
    assert found.healthy == (not found.findings)
    assert found.destination in proof_table(found)
    return {each.kind for each in found.findings}


def with_ranges(found: Seen, *ranges: HeldRange) -> Seen:
    return found._replace(holdings=msgspec.structs.replace(found.holdings, ranges=ranges))


@given(histories())
def test_a_group_at_work_is_healthy_at_any_moment(history: History) -> None:
    found = seen(history)
    output = proof(found)
    assert kinds(output) == set()
    (line,) = output.partitions
    assert line.ranges == len(found.holdings.ranges)
    assert line.records_in == line.rows == sum(each.records_in for each in found.holdings.ranges)
    assert line.aside_records == sum(each.records or 0 for each in found.aside)


@given(histories())
def test_older_ranges_that_are_reported_as_one_leave_the_same_gaps(history: History) -> None:
    found = seen(history)
    ranges = found.holdings.ranges
    older = [each for each in ranges if each.identity.until <= history.later]
    if len(older) < 2:
        return
    ends = [(one.identity.until, other.identity.first) for one, other in pairwise(older)]
    one = msgspec.structs.replace(
        held(older[0].identity._replace(until=older[-1].identity.until)),
        ranges=len(older),
        gaps=tuple(gap for gap in ends if gap[0] < gap[1]),
        **{name: sum(each.records_in for each in older) for name in ("records_in", "records_out", "rows")},
    )
    assert one.runs[0].first == older[0].identity.first
    folded = with_ranges(found, one, *ranges[len(older) :])
    assert kinds(proof(folded)) == set()
    before = {PARTITION: found.before}
    assert gaps(before, folded.holdings, found.aside) == gaps(before, found.holdings, found.aside)


@given(histories(), st.data())
def test_a_lost_range_is_a_gap(history: History, data: st.DataObject) -> None:
    """Any range but the first, up to what was stored before the destination was read."""
    found = seen(history)
    first = min(
        [each.identity.first for each in found.holdings.ranges] + [e.identity.first for e in found.aside] or [0]
    )
    losable = [each for each in found.holdings.ranges if first < each.identity.first < history.stored]
    assume(losable)
    lost = data.draw(st.sampled_from(losable))
    left = with_ranges(found, *(each for each in found.holdings.ranges if each != lost))
    output = proof(left, "records")
    assert "gap" in kinds(output)
    gap_offsets = {n for each in output.findings if each.kind == "gap" for n in range(each.first or 0, each.until or 0)}
    assert gap_offsets >= set(range(lost.identity.first, min(lost.identity.until, history.stored)))
    assert {each.kind for each in proof(left, "gone").findings} == kinds(output) == kinds(proof(left, "unknown"))
    whose = "a gap may be what a member without this sink has consumed"
    assert [each.startswith(whose) for each in output.notes].count(True) == 1
    assert not any(each.startswith(whose) for each in proof(found, "none").notes), "there is none"
    # In the sink's quarantine it counts as present.
    aside = [*found.aside, QuarantinedRange(lost.identity, lost.records_in)]
    assert "gap" not in kinds(proof(left._replace(aside=aside)))


@given(histories(), st.data())
def test_a_range_that_is_there_twice_is_an_overlap(history: History, data: st.DataObject) -> None:
    found = seen(history)
    assume(found.holdings.ranges)
    ranges = [each.identity for each in found.holdings.ranges]
    at = data.draw(st.sampled_from(ranges))
    last = data.draw(st.sampled_from([each for each in ranges if each[:4] == at[:4] and each >= at]))
    again = at._replace(first=at.first - 1, until=last.until + data.draw(st.integers(0, 1)))
    assume(again.first >= 0)
    every = sorted([*ranges, again])
    twice = [b for n, b in enumerate(every) if any(a[:4] == b[:4] and b.first < a.until for a in every[:n])]
    output = proof(with_ranges(found, *found.holdings.ranges, held(again)))
    assert [each.first for each in output.findings if each.kind == "overlap"] == [each.first for each in twice]


@given(histories())
def test_a_partition_of_which_everything_was_lost_is_a_gap(history: History) -> None:
    """Nothing of the destination says where it began: the last range that was written does."""
    found = seen(history)
    written = [each for each, kind in history.done if kind == "held" and each.until <= history.stored]
    if not written:
        return
    last = written[-1]
    before = msgspec.structs.replace(found.before, written=(last.first, last.until), fingerprint="f")
    whole = found._replace(before=before)
    assert unlisted({PARTITION: before}, whole.holdings) == []
    other = msgspec.structs.replace(before, fingerprint="of an earlier destination")
    assert unlisted({PARTITION: other}, with_ranges(whole).holdings) == []
    empty = with_ranges(whole)._replace(aside=[])
    assert unlisted({PARTITION: before}, empty.holdings) == [last]
    assert gaps({PARTITION: before}, empty.holdings, [], [last]) == [last._replace(until=history.stored)]
    assert gaps({PARTITION: before}, empty.holdings, []) == [], "its history does not go back so far"
    part = [each for each in whole.holdings.ranges if each.identity.until < last.first]
    if part:
        found_gaps = gaps({PARTITION: before}, with_ranges(whole, *part).holdings, [], [last])
        assert found_gaps[-1].first == part[-1].identity.until


class Forgetful:
    """A sink that was not entered, whose destination lacks some ranges."""

    fingerprint = "f"

    def __init__(self, has: Collection[RangeIdentity], *, remembers: bool) -> None:
        self._has, self.remembers = has, remembers

    async def __aenter__(self) -> Forgetful:
        raise AssertionError

    async def __aexit__(self, kind: object, error: object, trace: object) -> None: ...

    async def write(self, batch: Batch) -> None: ...

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if each in self._has]

    async def holdings(self, *, count_rows: bool) -> Holdings:
        raise AssertionError


async def test_a_destination_is_asked_for_the_last_range_that_it_does_not_list() -> None:
    one, two = (RangeIdentity("t", number, INCARNATION, 0, 0, 3) for number in range(2))
    settings = Settings.from_dict(
        {
            "zookeeper": {"connect": "zk"},
            "group": {"id": "g"},
            "sink": {"plugin": "stdout"},
            "subscription": {"topics": ["t"]},
        }
    )
    assert await lost(settings, Forgetful([one], remembers=True), [one, two]) == [two]
    assert await lost(settings, Forgetful([], remembers=False), [one, two]) == []


@given(histories(), st.integers(1, 3))
def test_a_range_neither_planned_nor_committed_is_ahead(history: History, size: int) -> None:
    found = seen(history)
    end = max([each.identity.until for each in found.holdings.ranges] + [history.later])
    ends = range(end, end + size)
    beyond = [held(RangeIdentity(*PARTITION, INCARNATION, history.epoch, each, each + 1)) for each in ends]
    output = proof(with_ranges(found, *found.holdings.ranges, *beyond))
    assert [(each.kind, each.first, each.until) for each in output.findings] == [("ahead", end, end + size)]
    assert ("no plan names this range: its" in output.findings[0].text) == (size == 1)
    unplanned = found._replace(after=msgspec.structs.replace(found.after, plan=None))
    assert ("ahead" in kinds(proof(unplanned))) == (found.after.plan is not None)


@given(histories(), st.data())
def test_every_count_that_differs_is_reported(history: History, data: st.DataObject) -> None:
    found = seen(history)
    assume(found.holdings.ranges)
    chosen = data.draw(st.sampled_from(found.holdings.ranges))
    change = data.draw(st.sampled_from(["rows", "in", "fault", "plan"]))
    others = [each for each in found.holdings.ranges if each != chosen]
    if change == "rows":
        bad, kind = msgspec.structs.replace(chosen, rows=(chosen.rows or 0) + 1), "count"
    elif change == "in":
        bad, kind = msgspec.structs.replace(chosen, records_in=99), "count"
    elif change == "fault":
        bad, kind = msgspec.structs.replace(chosen, faults=("gone",)), "damaged"
    else:
        assume(found.after.plan is not None and found.after.plan.identity == chosen.identity)
        bad, kind = msgspec.structs.replace(chosen, records_in=chosen.records_in - 1), "count"
    assert kinds(proof(with_ranges(found, *others, bad))) == {kind}
    # What cannot be counted is no finding.
    unknown = proof(with_ranges(found, *others, msgspec.structs.replace(chosen, rows=None)))
    assert kinds(unknown) == set()
    assert unknown.partitions[0].rows is None


@given(histories())
def test_another_epoch_and_another_topic_of_the_name_are_lines_of_their_own(history: History) -> None:
    found = seen(history)
    assume(found.holdings.ranges)
    later = found._replace(
        before=GroupProgress(INCARNATION, history.epoch + 1, 0), after=GroupProgress(INCARNATION, history.epoch + 1, 0)
    )
    assert kinds(proof(later)) == set()
    renewed = found._replace(before=GroupProgress(7, 0, 0), after=GroupProgress(7, 0, 0))
    assert kinds(proof(renewed)) == set()
    if history.epoch:
        back = found._replace(before=GroupProgress(INCARNATION, 0, 0), after=GroupProgress(INCARNATION, 0, 0))
        assert kinds(proof(back)) == {"forgotten"}
    missing = gaps({}, found.holdings, found.aside)
    assert kinds(prove("g", {}, found.holdings, {}, found.aside, dict.fromkeys(missing, "none"))) == {"forgotten"}


def test_a_plan_for_another_destination_and_strays_are_reported() -> None:
    at = RangeIdentity(*PARTITION, INCARNATION, 0, 0, 3)
    other = GroupProgress(INCARNATION, 0, 0, Planned(at, 3, "another"))
    empty = Holdings(destination="files", fingerprint="f", ranges=(), strays=("x.parquet is of no range",))
    output = proof(Seen(other, empty, other, []))
    assert [each.kind for each in output.findings] == ["plan", "stray"]
    assert output.findings[0].text.startswith("planned for another destination")


def test_records_consumed_again_after_a_reset_are_a_note() -> None:
    spans = ((0, 0, 3), (0, 3, 10), (0, 10, 12), (1, 4, 6), (1, 6, 10))
    ranges = tuple(held(RangeIdentity(*PARTITION, INCARNATION, *each)) for each in spans)
    found = Seen(GroupProgress(INCARNATION, 1, 10), Holdings(destination="f", fingerprint="f", ranges=ranges), *_rest())
    assert proof(found).notes == ("t-0: 6 offsets of epoch 0 were consumed again in epoch 1, after a reset",)


def _rest() -> tuple[GroupProgress, list[QuarantinedRange]]:
    return GroupProgress(INCARNATION, 1, 10), []
