"""The whole case table of `compare`: every situation is decided by exactly one rule, and no range is split."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from kzconsumer.offsets.adoption import Clear, Refuse, Replay, Start, compare, missing
from kzconsumer.registry.claim_record import Plan

# Few values, so that equal and neighbouring ones are frequent.
OFFSETS = st.integers(0, 12)
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
    return Plan(
        id="p",
        first=first,
        until=first + draw(st.integers(1, 6)),
        offset_version=draw(st.integers(0, 3)),
        records=draw(st.integers(0, 6)),
        checksum="0",
        incarnation=draw(NAMES),
        epoch=draw(st.integers(0, 1)),
        isolation="read_committed",
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


@given(situations())
@settings(max_examples=400)
def test_every_case_has_one_rule(found: Found) -> None:
    """The rules as a table: the first one that applies decides."""
    plan, stored = found.plan, found.stored
    answer = compare(*found)
    if plan is None:
        assert answer == Start(stored)
    elif not found.fingerprint or plan.fingerprint != found.fingerprint:
        assert isinstance(answer, Refuse)
    elif (plan.incarnation, plan.epoch) != (found.incarnation, found.epoch) or stored is None:
        assert isinstance(answer, Clear)
        assert answer.offset == stored
    elif stored < plan.first or stored >= plan.until:
        assert isinstance(answer, Clear)
        assert answer.offset == stored
        assert str(stored) in answer.reason
        assert f"{plan.first} to {plan.until}" in answer.reason
    else:
        moved = (stored, found.version) != (plan.first, plan.offset_version)
        assert answer == Replay(plan.first, plan.until, stored if moved else None)


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
