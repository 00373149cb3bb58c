"""A set of offsets as a short text, for a plan in ZooKeeper: `3 17-19`, relative to the first offset of the range."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Offsets `first <= offset < until`, in order and apart."""

LONGEST: Final = 10_000
"""In characters: 1,400 single offsets of a range of a million, or any number that follow each other. 64 plans with so
long a list fit into one request to ZooKeeper."""

_TEXT: Final = re.compile(r"\d{1,19}(-\d{1,19})?( \d{1,19}(-\d{1,19})?)*", re.ASCII)


def spans_of(offsets: Iterable[int], more: Spans = ()) -> Spans:
    """The offsets, and those of `more`."""
    found: list[tuple[int, int]] = []
    for first, until in sorted([*((each, each + 1) for each in offsets), *more]):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        else:
            found.append((first, until))
    return tuple(found)


def offset_list(spans: Spans, first: int) -> str:
    """Raises ValueError for a text that would be longer than `LONGEST`."""
    pairs = ((begin - first, until - 1 - first) for begin, until in spans)
    text = " ".join(str(begin) if begin == last else f"{begin}-{last}" for begin, last in pairs)
    if len(text) > LONGEST:
        raise ValueError(f"{sum(until - begin for begin, until in spans)} records, too many for one range")
    return text


def offsets_in(text: str, first: int) -> Spans:
    """Raises ValueError for a text that `offset_list` has not made."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a list of offsets")
    found: list[tuple[int, int]] = []
    for each in text.split(" "):
        begin, _, last = each.partition("-")
        span = first + int(begin), first + int(last or begin) + 1
        if span[0] >= span[1] or (found and span[0] <= found[-1][1]):
            raise ValueError(f"{each!r} in a list of offsets is not in order")
        found.append(span)
    return tuple(found)
