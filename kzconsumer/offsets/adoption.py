"""What a claim does about the stored offset and a plan that it finds. The rules: kzconsumer/README.md, "Plans"."""

from __future__ import annotations

import msgspec

from kzconsumer.registry.claim_record import Plan
from kzconsumer.registry.ownership import refusal


class Start(msgspec.Struct, frozen=True):
    """Nothing is in flight: begin at `offset`; None: nothing is stored, the reset policy decides."""

    offset: int | None


class Replay(msgspec.Struct, frozen=True):
    """Write exactly `first <= offset < until` before anything else, and commit `until`.

    `moved_to` is the stored offset if a program that does not know plans has moved it, else None.
    """

    first: int
    until: int
    moved_to: int | None = None


class Clear(msgspec.Struct, frozen=True):
    """The plan no longer applies: remove it, fenced, and begin at `offset` (None: by the reset policy)."""

    offset: int | None
    reason: str


class Refuse(msgspec.Struct, frozen=True):
    """This member must not consume the partition."""

    reason: str


Adoption = Start | Replay | Clear | Refuse


def compare(
    plan: Plan | None, stored: int | None, stored_version: int, incarnation: str, epoch: int, fingerprint: str
) -> Adoption:
    """What to do about a plan found at a claim; `incarnation`, `epoch` and `fingerprint` are the present ones.

    `stored` is where the claim begins without a plan (`resume`), `stored_version` the version of the offset's node (-1:
    there is none).
    """
    if plan is None:
        return Start(stored)
    if (reason := refusal(plan, fingerprint)) is not None:
        return Refuse(reason)
    planned = f"the planned range {plan.first} to {plan.until}"
    if plan.incarnation != incarnation:
        return Clear(stored, f"{planned} is of a deleted topic ({plan.incarnation}); the present one is {incarnation}")
    if plan.epoch != epoch:
        return Clear(stored, f"{planned} is of reset epoch {plan.epoch}; it is {epoch} now")
    if stored is None:
        return Clear(stored, f"{planned} has no stored offset any more")
    if not plan.first <= stored < plan.until:
        return Clear(stored, f"the stored offset was moved to {stored}, out of {planned}")
    as_planned = stored == plan.first and stored_version == plan.offset_version
    return Replay(plan.first, plan.until, None if as_planned else stored)


def resume(stored: int | None, committed_until: int | None) -> int | None:
    """Where a claim begins: at the stored offset, but never below `committed_until` of the claim record.

    That is None for a sink that is not replayable, and if unknown. A lower stored offset was written by a program that
    does not know claim records; the destination has the records in between.
    """
    if committed_until is None or (stored is not None and stored >= committed_until):
        return stored
    return committed_until


def missing(plan: Plan, log_start: int, log_end: int) -> tuple[tuple[int, int], ...]:
    """The parts of the range that a log from `log_start` to `log_end` lacks, as (first, until)."""
    begins = min(max(plan.first, log_start), plan.until)
    ends = max(min(plan.until, log_end), begins)
    return tuple(part for part in ((plan.first, begins), (ends, plan.until)) if part[0] < part[1])
