"""Which items of a ledger are folded into one: published ranges of one partition, by a rule of the ranges alone.

A ledger has items of several levels: level 0 is a range, an item of level n contains several consecutive ones of level
n-1, also with gaps between them: ranges without records are not published, and some are set aside. A hash of the end
offset decides where an item ends, so that processes that fold at the same time, or late, make the same items: no item
overlaps only a part of another one of its level.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, groupby
from typing import Final, NamedTuple

#: An item stands for 16 of the level below, on average.
FAN_OUT_BITS: Final = 4


class Span(NamedTuple):
    first: int
    until: int

    def overlaps(self, other: Span) -> bool:
        return self.first < other.until and other.first < self.until


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


def enclosed(items: Iterable[Item]) -> Iterator[tuple[Item, list[Item]]]:
    """Items within the bounds of others of higher levels, with these: what lies in their gaps is enclosed, too."""
    higher: list[Item] = []
    for _, level in groupby(sorted(items, key=lambda each: (-each.level, each.span)), lambda each: each.level):
        own = list(level)
        if higher:
            higher.sort()
            firsts = [each.span.first for each in higher]
            reach = list(accumulate((each.span.until for each in higher), max))
            for each in own:
                around, place = [], bisect_right(firsts, each.span.first)
                while place and reach[place - 1] >= each.span.until:
                    place -= 1
                    around += [higher[place]] if higher[place].span.until >= each.span.until else []
                if around:
                    yield each, around
        higher += own


def foldable(
    line: str, items: Collection[Item], level: int, newest: int, bits: int = FAN_OUT_BITS
) -> Iterator[list[Item]]:
    """The items of `level` that become one of the next level, by groups. `items` are all of the line.

    A group is all that lies between two ends of items of the next level, gaps included. It is folded as a whole or not
    at all, so nothing may be added to it: ranges are published in order, so all of those before `newest` are known if
    that was published before the items were listed. What an item of a higher level encloses is in no group.
    """
    known = set(items)
    group: list[Item] = []
    is_whole, reach = True, 0
    for item in sorted(known.difference(each for each, _ in enclosed(known))):
        is_whole = is_whole and item.level == level and not item.is_fixed and item.span.first >= reach
        reach = max(reach, item.span.until)
        group.append(item)
        if item.level > level or height(line, item.span.until, bits) > level:
            if is_whole and newest >= item.span.until:
                yield group
            group, is_whole = [], True


def runs(span: Span, gaps: Iterable[Span]) -> list[Span]:
    """What `gaps`, in order and within `span`, leave of it."""
    ends = [span.first, *chain.from_iterable(gaps), span.until]
    return [Span(first, until) for first, until in zip(ends[::2], ends[1::2], strict=True)]


def is_within(spans: Iterable[Span], of: Sequence[Span]) -> bool:
    """Whether each of `spans` lies within one of `of`, which are in order and apart."""

    def has(span: Span) -> bool:
        place = bisect_right(of, span.first, key=lambda each: each.first)
        return place > 0 and span.until <= of[place - 1].until

    return all(map(has, spans))
