"""The last defence against records that are published twice: ranges of one ledger lie apart, or are the same.

A range that is cut otherwise has another name, so its name alone does not find what it overlaps. Claims go on where the
destination is committed; this check is for offsets that were set back where no claim record knows better (another
fingerprint, a record of an earlier version). Destinations ask before they decide for a range.
"""

from __future__ import annotations

from collections.abc import Iterable

from kzconsumer.model import RangeIdentity
from kzconsumer_spark.fold_plan import Span
from kzconsumer_spark.messages import SpooledRange


class Overlap(OSError):
    """A range overlaps one that is published, and is not the same. `end` is that of all that is published there."""

    def __init__(self, part: RangeIdentity, other: Span, end: int) -> None:
        super().__init__(
            f"{part.topic}-{part.partition} [{part.first}, {part.until}) of epoch {part.epoch} is not published: it"
            f" overlaps [{other.first}, {other.until}), which is. Offsets were set back by a tool that raises no reset"
            f" epoch. To go on behind what is published: kzconsumer offsets reset GROUP --to-offset {end}"
            f" --topic {part.topic}:{part.partition} --execute"
        )


def identity_of(part: SpooledRange | RangeIdentity) -> RangeIdentity:
    return RangeIdentity(part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)


def require_apart(part: RangeIdentity, others: Iterable[Span], folded: Iterable[Span] = ()) -> None:
    """Raises Overlap. `others` and `folded` are published under the topic, partition, incarnation and epoch of `part`.

    What lies within a folded span is published: the ranges that it was made of are not known any more.
    """
    others, folded = list(others), list(folded)
    if any(other.first <= part.first and part.until <= other.until for other in folded):
        return
    for other in (*others, *folded):
        if other != (part.first, part.until) and other.first < part.until and part.first < other.until:
            raise Overlap(part, other, max(each.until for each in (*others, *folded)))
