"""Which items of a ledger become one: contiguous published ranges of one partition, by a rule of the ranges alone.

A ledger has items of several levels: level 0 is a range, an item of level n stands for several of level n-1 that follow
each other. Where an item of level n ends is decided by a hash of the offset at which it ends, so that processes which
fold at the same time, or late, make the same items: of two items of one level none cuts the other in two.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

#: An item stands for 16 of the level below, on average.
FAN_OUT_BITS: Final = 4


class Span(NamedTuple):
    first: int
    until: int


class Item(NamedTuple):
    """`is_fixed`: it cannot become part of another one yet."""

    span: Span
    level: int
    is_fixed: bool = False


def height(line: str, offset: int, bits: int = FAN_OUT_BITS) -> int:
    """The highest level of an item that ends at this offset of `line`, which names partition, incarnation and epoch."""
    digest = hashlib.blake2b(f"{line}+{offset}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest) | 1 << 63
    return ((number & -number).bit_length() - 1) // bits


def redundant(items: Sequence[Item]) -> list[Item]:
    """Items that one of a higher level stands for."""
    found = []
    for level in sorted({each.level for each in items}):
        higher = sorted(each.span for each in items if each.level > level)
        firsts = [span.first for span in higher]
        reach = list(accumulate((span.until for span in higher), max))
        for each in items:
            place = bisect_right(firsts, each.span.first)
            if each.level == level and place and reach[place - 1] >= each.span.until:
                found.append(each)
    return found


def foldable(line: str, items: Sequence[Item], level: int, bits: int = FAN_OUT_BITS) -> Iterator[list[Item]]:
    """The items of `level` that become one of the next level, by groups. `items` are all of the line.

    The newest ones stay: only what a later item follows was certainly committed.
    """
    there = sorted(each for each in set(items).difference(redundant(items)) if each.level == level)
    ends = {each.span.until for each in items}
    newest = max((each.span.first for each in items), default=0)
    group: list[Item] = []
    for item in there:
        if group and group[-1].span.until != item.span.first:
            group = []
        if item.is_fixed:
            group = []
            continue
        # What ends here and ends no group is the beginning of this one, though it is not of this level (yet).
        if not group and item.span.first in ends and height(line, item.span.first, bits) <= level:
            continue
        group.append(item)
        if height(line, item.span.until, bits) > level:
            if newest >= item.span.until:
                yield group
            group = []
