"""The start and end of reading as given on the command line, and their offsets in a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kzconsumer.model import OffsetRange, TopicPartition

# After every offset: a range that ends there is read without end.
ENDLESS = 2**63 - 1


class Place(msgspec.Struct, frozen=True):
    """`number`: the offset (`offset`), the distance from the end (`last`), or ms since 1970 (`time`)."""

    kind: Literal["beginning", "end", "stored", "offset", "last", "time"]
    number: int = 0
    group: str | None = None
    """For `stored`: the group whose offsets are used, if it is not joined."""


def read_place(text: str, read_time: Callable[[str], int]) -> Place:
    """`beginning`, `end`, `stored`, `stored:GROUP`, an offset, `-N`, `@MS`, or a time that `read_time` reads.

    Raises what `read_time` raises.
    """
    if text in ("beginning", "end", "stored"):
        return Place(text)  # type: ignore[arg-type]
    if text.startswith("stored:") and len(text) > 7:
        return Place("stored", group=text[7:])
    kinds: dict[str, Literal["last", "time"]] = {"-": "last", "@": "time"}
    if text.isascii() and text.isdecimal():
        return Place("offset", int(text))
    if text[:1] in kinds and text[1:].isascii() and text[1:].isdecimal():
        return Place(kinds[text[0]], int(text[1:]))
    return Place("time", read_time(text))


def offset_at(
    place: Place,
    partition: TopicPartition,
    log: tuple[int, int],
    times: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, int],
) -> int:
    """The offset of a place in a log `(first, until)`, clamped to the log.

    `times` has the first offset at the place's time; without an entry it is the end. Without a stored offset it is the
    first.
    """
    first, end = log
    wanted = {
        "beginning": first,
        "end": end,
        "stored": stored.get(partition, first),
        "offset": place.number,
        "last": end - place.number,
        "time": times.get(partition, end),
    }[place.kind]
    return min(max(first, wanted), end)


def ranges(
    logs: Mapping[TopicPartition, tuple[int, int]],
    begin: Mapping[TopicPartition, int],
    until: Mapping[TopicPartition, int] | None,
) -> list[OffsetRange]:
    """The range to read of each partition; without `until` there is no end."""
    return [OffsetRange(*each, begin[each], until[each] if until is not None else ENDLESS) for each in sorted(logs)]
