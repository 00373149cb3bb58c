"""Each case of what a claim may find: the resulting action and the reported reason."""

from __future__ import annotations

import pytest

from kzconsumer.offsets.start_rules import Adoption, Clear, Refuse, Replay, StartAt, compare, resume
from kzconsumer.registry.claim_record import Plan
from tests.support.plans import plan_of

PLAN = plan_of(100, 200, offset_version=7, epoch=1, fingerprint="9f3c")


def found(
    plan: Plan | None = PLAN,
    stored: int | None = 100,
    version: int = 7,
    incarnation: str = "0x2a",
    epoch: int = 1,
    fingerprint: str = "9f3c",
) -> Adoption:
    return compare(plan, stored, version, incarnation, epoch, fingerprint)


@pytest.mark.parametrize("stored", [None, 0, 100, 5000])
@pytest.mark.parametrize("fingerprint", ["", "9f3c"])
def test_without_a_plan_the_claim_begins_at_the_stored_offset(stored: int | None, fingerprint: str) -> None:
    assert found(None, stored, fingerprint=fingerprint) == StartAt(stored)


@pytest.mark.parametrize(
    ("stored", "until", "begin"),
    [
        (400, 1000, 1000),  # moved back
        (None, 1000, 1000),  # deleted
        (0, 1, 1),
        (1000, 1000, 1000),
        (1500, 1000, 1500),  # an original member has consumed more
        (400, None, 400),  # a stream, or a record without a mark
        (None, None, None),
    ],
)
def test_offsets_below_the_mark_of_the_destination_are_refused(
    stored: int | None, until: int | None, begin: int | None
) -> None:
    assert resume(stored, until) == begin


@pytest.mark.parametrize("version", [0, 6, 8])
@pytest.mark.parametrize("stored", [100, 101, 199])
def test_an_offset_moved_within_the_planned_range_replays_the_whole_range(stored: int, version: int) -> None:
    """The destination takes a range whole or not at all."""
    assert found(stored=stored, version=version) == Replay(100, 200, moved_to=stored)


def test_a_recreated_offset_node_may_have_the_version_of_the_previous_one() -> None:
    """Deleted and created by another program, and written as often as ours was."""
    assert found(stored=150, version=7) == Replay(100, 200, moved_to=150)


@pytest.mark.parametrize("version", [7, 9])
@pytest.mark.parametrize("stored", [0, 99, 200, 201])
def test_an_offset_moved_out_of_the_planned_range(stored: int, version: int) -> None:
    cleared = found(stored=stored, version=version)
    assert cleared == Clear(stored, f"the stored offset was moved to {stored}, out of the planned range 100 to 200")


def test_a_deleted_offset() -> None:
    cleared = found(stored=None, version=-1)
    assert cleared == Clear(None, "the planned range 100 to 200 has no stored offset any more")


def test_a_recreated_topic() -> None:
    cleared = found(incarnation="0x99")
    reason = "the planned range 100 to 200 is of a deleted topic (0x2a); the present one is 0x99"
    assert cleared == Clear(100, reason)


def test_a_reset_of_the_offsets() -> None:
    assert found(epoch=2) == Clear(100, "the planned range 100 to 200 is of reset epoch 1; it is 2 now")


def test_a_plan_for_another_destination() -> None:
    """Also if the plan is obsolete: a member with that destination clears it, as it cannot lose anything by that."""
    reason = "offsets 100 to 200 are planned for another destination (9f3c), ours is 77aa"
    for dead in ({}, {"incarnation": "0x99"}, {"stored": None}, {"epoch": 2}):
        refused = found(fingerprint="77aa", **dead)
        assert isinstance(refused, Refuse)
        assert refused.reason == f"{reason}: only a member with that destination can finish them"


def test_a_sink_that_cannot_replay() -> None:
    refused = found(fingerprint="")
    assert isinstance(refused, Refuse)
    assert "this sink cannot replay" in refused.reason
