"""Finds the records of a range that a destination refuses, by trying halves of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from kzconsumer.errors import ContentRefusedError
from kzconsumer.logs.logger import get_logger
from kzconsumer.records.forms import Unfetched
from kzconsumer.sinks.interface import Batch, RangeData, Rejected

log = get_logger("kzconsumer.sink")

CLASS: Final = "refused"
"""The class of errors of records that only the destination knows to be unusable."""
MOST_REFUSED: Final = 32
"""Records of one range. Each takes about twice as many trials as the range can be halved: 40 of a million."""


class Separating:
    """`trial` as in `kzconsumer.sinks.interface.Trying`."""

    def __init__(self, trial: Callable[[Batch], Awaitable[None]]) -> None:
        self._trial = trial
        self._trials = 0

    async def refused(self, part: RangeData) -> list[Rejected]:
        """The refused records of a range; empty if it is not refused, or only as a whole, or for more than
        `MOST_REFUSED` records. Raises SinkError if a trial fails for another reason.
        """
        self._trials = 0
        found: list[Rejected] = []
        whole = await self._search(part, found)
        log.info("refused records searched", **part.range._asdict(), trials=self._trials, found=len(found))
        return found if whole else []

    async def _search(self, part: RangeData, found: list[Rejected], *, refused: bool = False) -> bool:
        """Whether all of the refusal is explained by `found`. `refused`: the range is known to be."""
        single = part.records == 1
        if not refused or single:
            self._trials += 1
            try:
                await self._trial(Batch((part,)))
            except ContentRefusedError as error:
                if single:
                    found.append(Rejected(part.topic, part.partition, _first(part), str(error), CLASS))
                    return len(found) <= MOST_REFUSED
            else:
                return not refused
        before = len(found)
        lower, upper = _halves(part)
        if not await self._search(lower, found):
            return False
        # If nothing was found in the lower half, the upper one is refused, or neither is without the other.
        return await self._search(upper, found, refused=len(found) == before)


def _first(part: RangeData) -> int:
    piece = part.pieces[0]
    return piece.first if isinstance(piece, Unfetched) else next(piece.messages()).offset


def _halves(part: RangeData) -> tuple[RangeData, RangeData]:
    """Each with at least one record; bounds of offsets are the whole range's."""
    wanted = part.records // 2
    first, until = part.first, part.until
    while first < until:
        middle = (first + until) // 2
        if sum(piece.rows_below(middle) for piece in part.pieces) < wanted:
            first = middle + 1
        else:
            until = middle
    return part.between(part.first, first), part.between(first, part.until)
