"""What a member has to know of a replayable sink's destination: which one it is, and what it holds.

Pure, owns nothing. The sink implements it; claims ask it about ranges that somebody planned and did not commit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from kzconsumer.model import RangeIdentity


class Destination(Protocol):
    """Where publishing a range is atomic, the first publication wins, and nothing is deleted.

    `fingerprint` tells it from any other: target, format, partition columns, function. Two members with the same one
    write the same things to the same place. It is never empty; what it is counts once the sink is entered, since a
    destination may be known by a mark that is found in it.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether `has` knows a range for ever once it is published.

        Each claim asks such a destination for the last range that was committed: one that is missing stops the
        partition.
        """
        ...

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that are published, whole and for good, whoever published them."""
        ...
