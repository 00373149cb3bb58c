"""The destination of a replayable sink, as claims use it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from kzconsumer.model import RangeIdentity


class Destination(Protocol):
    """A place where publishing a range is atomic, the first publication wins, and nothing is deleted.

    `fingerprint` identifies it: target, format, partition columns, function. Two members with the same one write the
    same to the same place. It is not empty, and valid once the sink is entered.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether `has` knows a published range for ever.

        Each claim asks such a destination for the last committed range; if it is missing, the partition is not
        consumed.
        """
        ...

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that are published, by any member."""
        ...
