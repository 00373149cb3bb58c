"""Check that the ranges of one ledger do not overlap.

A range with other bounds has another name, so a look-up by name does not find ranges that it overlaps. Claim records
prevent such ranges; this check catches offsets that were set back where no claim record applies (another fingerprint,
a record of an earlier version). Destinations check before they decide to publish.
"""

from __future__ import annotations

from collections.abc import Iterable

from kzconsumer_files.fold_plan import Span
from kzconsumer_files.names import AnyRange


class Overlap(OSError):
    """A range overlaps a published one and is not the same. `end` is the end of all published ranges."""

    def __init__(self, part: AnyRange, other: Span, end: int) -> None:
        super().__init__(
            f"{part.topic}-{part.partition} [{part.first}, {part.until}) of epoch {part.epoch} is not published: it"
            f" overlaps [{other.first}, {other.until}), which is. Offsets were set back by a tool that raises no reset"
            f" epoch. To continue after the published ranges: kzconsumer offsets reset GROUP --to-offset {end}"
            f" --topic {part.topic}:{part.partition} --execute"
        )


def require_apart(part: AnyRange, others: Iterable[Span], folded: Iterable[Span] = ()) -> None:
    """Raises Overlap. `others` and `folded` are published under the topic, partition, incarnation and epoch of `part`.

    A range within a folded span counts as published: the bounds of the ranges in a folded span are unknown.
    """
    others, folded = list(others), list(folded)
    if any(other.first <= part.first and part.until <= other.until for other in folded):
        return
    for other in (*others, *folded):
        if other != (part.first, part.until) and other.first < part.until and part.first < other.until:
            raise Overlap(part, other, max(each.until for each in (*others, *folded)))
