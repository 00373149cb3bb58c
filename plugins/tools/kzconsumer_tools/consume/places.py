"""Where reading begins and where it ends, as words, and what they mean for the logs there are.

Pure. `cli/consume` reads the words, `printing` asks the logs and applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kzconsumer.model import OffsetRange, TopicPartition

# Behind every offset: a range that ends there is read for ever.
ENDLESS = 2**63 - 1


class Place(msgspec.Struct, frozen=True):
    """`number`: of offset, the offset; of last, how many before the end; of time, ms since 1970."""

    kind: Literal["beginning", "end", "stored", "offset", "last", "time"]
    number: int = 0
    group: str | None = None
    """Of stored: whose offsets, when they are only looked at."""


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
    """The offset a place means in a log (its first offset, and the one behind its last), within the log.

    `times` has what lies at the place's time; a partition that is not there has nothing that young. Without a stored
    offset the log's first is meant.
    """
    first, end = log
    meant = {
        "beginning": first,
        "end": end,
        "stored": stored.get(partition, first),
        "offset": place.number,
        "last": end - place.number,
        "time": times.get(partition, end),
    }[place.kind]
    return min(max(first, meant), end)


def ranges(
    logs: Mapping[TopicPartition, tuple[int, int]],
    begin: Mapping[TopicPartition, int],
    until: Mapping[TopicPartition, int] | None,
) -> list[OffsetRange]:
    """What is to be read of each partition; without `until` there is no end."""
    return [OffsetRange(*each, begin[each], until[each] if until is not None else ENDLESS) for each in sorted(logs)]
