"""What a claim does with what it finds: a stored offset, and perhaps a range that somebody planned and did not commit.

Pure. The claims ask `compare` after each claim, on what they read after it. Every answer carries the positions that an
operator has to be told. The rules, and why each: kzconsumer/README.md, "Plans".
"""

from __future__ import annotations

import msgspec

from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.ownership import refusal


class Start(msgspec.Struct, frozen=True):
    """Nothing is in flight: go on at `offset`; None: nothing is stored, the reset policy decides."""

    offset: int | None


class Replay(msgspec.Struct, frozen=True):
    """Write exactly `first <= offset < until` before anything else, and commit `until`.

    `moved_to` is where somebody who knows no plans has moved the stored offset meanwhile, None when nobody has.
    """

    first: int
    until: int
    moved_to: int | None = None


class Clear(msgspec.Struct, frozen=True):
    """The plan means nothing any more: remove it, fenced, and go on at `offset` (None: by the reset policy)."""

    offset: int | None
    reason: str


class Loss(msgspec.Struct, frozen=True):
    """The range has to be replayed, and the log does not hold all of it: what it lacks, as (first, until)."""

    first: int
    until: int
    missing: tuple[tuple[int, int], ...]


class Refuse(msgspec.Struct, frozen=True):
    """This member must not consume the partition."""

    reason: str


Adoption = Start | Replay | Clear | Loss | Refuse


def compare(
    plan: Plan | None,
    stored: int | None,
    stored_version: int,
    log_start: int | None,
    log_end: int | None,
    incarnation: str,
    epoch: int,
    fingerprint: str,
) -> Adoption:
    """What becomes of a plan found at a claim, of a topic and an epoch as they are now, by a sink of this fingerprint.

    `stored` is where the claim goes on without a plan (`resume`), `stored_version` the offset node's (-1: there is
    none). With a `log_start` and `log_end` of None
    the log has not been asked yet, and is taken to hold the range: it matters to Replay alone, and not even to that
    when the destination has the range.
    """
    if plan is None:
        return Start(stored)
    if (reason := refusal(plan, fingerprint)) is not None:
        return Refuse(reason)
    planned = f"the planned range {plan.first} to {plan.until}"
    if plan.incarnation != incarnation:
        return Clear(stored, f"{planned} is of a topic {plan.incarnation} that is gone; there is {incarnation} now")
    if plan.epoch != epoch:
        return Clear(stored, f"{planned} is of reset epoch {plan.epoch}; it is {epoch} now")
    if stored is None:
        return Clear(stored, f"{planned} has no stored offset any more")
    if not plan.first <= stored < plan.until:
        return Clear(stored, f"the stored offset was moved to {stored}, out of {planned}")
    if lacking := missing(plan, log_start, log_end):
        return Loss(plan.first, plan.until, lacking)
    as_planned = stored == plan.first and stored_version == plan.offset_version
    return Replay(plan.first, plan.until, None if as_planned else stored)


def resume(stored: int | None, committed_until: int | None) -> int | None:
    """Where a claim goes on: at the stored offset, and never below what its destination is committed up to.

    `committed_until` is the claim record's (None for a sink that is not replayable, and where it is not known). A lower
    offset was set back, or deleted, by a program that knows no claim records: the destination has those records.
    """
    if committed_until is None or (stored is not None and stored >= committed_until):
        return stored
    return committed_until


def missing(plan: Plan, log_start: int | None, log_end: int | None) -> tuple[tuple[int, int], ...]:
    """What of the range a log from `log_start` to `log_end` lacks, as (first, until); None: not asked, nothing."""
    begins = plan.first if log_start is None else min(max(plan.first, log_start), plan.until)
    ends = plan.until if log_end is None else max(min(plan.until, log_end), begins)
    return tuple(part for part in ((plan.first, begins), (ends, plan.until)) if part[0] < part[1])
