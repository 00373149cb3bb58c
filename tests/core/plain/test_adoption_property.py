"""What `compare` leads to in any situation: which records are written, how often, and by whom.

The rules themselves are in test_adoption.py, case by case.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kzconsumer.offsets.start_rules import Clear, Refuse, Replay, StartAt, compare, missing
from kzconsumer.registry.claim_record import Plan
from tests.support.plans import plan_of

# Few values, so that equal and neighbouring ones are frequent.
OFFSETS = st.integers(0, 12)
END = 25
"""Of the log: beyond all plans."""
NAMES = st.sampled_from(["0x1", "0x2"])
FINGERPRINTS = st.sampled_from(["a", "a", "b", ""])
T = TypeVar("T")


class Found(NamedTuple):
    plan: Plan | None
    stored: int | None
    version: int
    incarnation: str
    epoch: int
    fingerprint: str


@st.composite
def plans(draw: DrawFn) -> Plan:
    first = draw(OFFSETS)
    return plan_of(
        first,
        first + draw(st.integers(1, 6)),
        offset_version=draw(st.integers(0, 3)),
        incarnation=draw(NAMES),
        epoch=draw(st.integers(0, 1)),
        fingerprint=draw(FINGERPRINTS),
    )


@st.composite
def situations(draw: DrawFn) -> Found:
    """Mostly as planned, since otherwise no drawn situation would get past the first rules."""
    plan = draw(plans())
    near = st.integers(max(plan.first - 2, 0), plan.until + 2)
    stored = draw(st.none() | st.just(plan.first) | near)
    return Found(
        plan=draw(st.sampled_from([plan, plan, plan, None])),
        stored=stored,
        version=-1 if stored is None else draw(st.just(plan.offset_version) | st.integers(0, 3)),
        incarnation=draw(mostly(plan.incarnation, NAMES)),
        epoch=draw(mostly(plan.epoch, st.integers(0, 1))),
        fingerprint=draw(mostly(plan.fingerprint, FINGERPRINTS)),
    )


def mostly(value: T, others: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    return st.integers(0, 3).flatmap(lambda n: others if n == 0 else st.just(value))


@given(situations(), st.booleans())
@settings(max_examples=400)
def test_each_record_from_the_stored_offset_on_is_written_once(found: Found, published: bool) -> None:
    """Whether the range in flight was published before the crash or not."""
    plan, answer = found.plan, compare(*found)
    if plan is None or isinstance(answer, Refuse):
        return
    ranges = {(plan.first, plan.until)} if published and is_of_the_present(plan, found) else set()
    begin = answer.offset or 0 if isinstance(answer, (StartAt, Clear)) else answer.until
    if isinstance(answer, Replay):
        assert is_of_the_present(plan, found), "its offsets mean other records now"
        ranges.add((answer.first, answer.until))
    ranges.add((begin, END))
    written = Counter(offset for part in ranges for offset in range(*part))
    stored = found.stored or 0
    in_flight = range(plan.first, plan.until)
    assert set(range(stored, END)) <= written.keys(), "left out"
    if found.stored is not None and stored >= plan.first:  # else it was moved back, which is for the mark to notice
        assert max(written.values()) == 1, "written twice"
    passed = {offset for offset in written if offset < stored} - (set(in_flight) if published else set())
    assert not passed or stored in in_flight, "written though the group has passed it"


@given(situations())
def test_only_a_member_with_the_destination_of_the_plan_takes_it_over(found: Found) -> None:
    foreign = found.plan is not None and {found.plan.fingerprint} != {found.fingerprint} - {""}
    assert isinstance(compare(*found), Refuse) == foreign


def is_of_the_present(plan: Plan, found: Found) -> bool:
    return (plan.incarnation, plan.epoch) == (found.incarnation, found.epoch)


@given(plans(), OFFSETS, OFFSETS)
def test_a_plan_of_which_the_log_lacks_records(plan: Plan, start: int, length: int) -> None:
    held = range(start, start + length)
    gone = [offset for offset in range(plan.first, plan.until) if offset not in held]
    assert [offset for part in missing(plan, start, start + length) for offset in range(*part)] == gone


@given(situations())
def test_a_planned_range_is_never_split(found: Found) -> None:
    """The planned range is written whole: a part of it would be a second name for the same records."""
    answer = compare(*found)
    if isinstance(answer, Replay):
        assert found.plan is not None
        assert (answer.first, answer.until) == (found.plan.first, found.plan.until)


@given(plans().filter(lambda plan: plan.fingerprint))
def test_a_plan_is_replayed_only_for_its_own_destination(plan: Plan) -> None:
    """Nothing but the crash happened between the plan and the claim: all destinations but its own refuse."""
    as_made = Found(plan, plan.first, plan.offset_version, plan.incarnation, plan.epoch, plan.fingerprint)
    assert compare(*as_made) == Replay(plan.first, plan.until)
    assert isinstance(compare(*as_made._replace(fingerprint="other")), Refuse)
