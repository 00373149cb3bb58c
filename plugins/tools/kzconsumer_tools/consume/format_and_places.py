"""Format strings for records, as kcat's `-f` has them, and where reading starts and ends, as given on a command line.

`%t %p %o %k %s\\n`. Source: `kcat.c`, `format.c` (1.7.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kzconsumer.model import OffsetRange, TopicPartition, checked_time

FIELDS = {
    "s": "value",
    "S": "size of the value in bytes, -1 without one",
    "R": "the same as a big-endian 32-bit integer, to frame binary values",
    "k": "key",
    "K": "size of the key in bytes, -1 without one",
    "T": "timestamp in ms since 1970, -1 without one",
    "h": "headers, as name=value,name=value",
    "t": "topic",
    "p": "partition",
    "o": "offset",
}
VALUE_LINES = r"%s\n"

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
_SIGN = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)

Format = tuple[bytes | str, ...]
"""Literal bytes, and letters of FIELDS."""


def read_format(text: str) -> Format:
    """Raises ValueError for an unknown field or escape."""
    parts: list[bytes | str] = []
    for sign in _SIGN.finditer(text):
        field, escape, plain = sign.groups()
        if field in FIELDS:
            parts.append(field)
            continue
        if field is not None and field != "%":
            raise ValueError(
                f"%{field} is not a field; the fields are {' '.join(f'%{each}' for each in FIELDS)} and %%"
            )
        literal = (
            b"%" if field else _escaped(escape) if escape is not None else plain.encode("utf-8", "surrogateescape")
        )
        if parts and isinstance(parts[-1], bytes):
            parts[-1] += literal
        else:
            parts.append(literal)
    return tuple(parts)


def _escaped(escape: str) -> bytes:
    if escape.startswith("x") and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPES:
        raise ValueError(rf"\{escape} is not an escape; the escapes are \n \r \t \0 \\ and \xHH")
    return _ESCAPES[escape]


# After every offset: a range that ends there is read without end.
ENDLESS = 2**63 - 1


class Place(msgspec.Struct, frozen=True):
    """`number`: the offset (`offset`), the distance from the end (`last`), or ms since 1970 (`time`)."""

    kind: Literal["beginning", "end", "stored", "offset", "last", "time"]
    number: int = 0
    group: str | None = None
    """For `stored`: the group whose offsets are used, if it is not joined."""

    def may_precede(self, other: Place) -> bool:
        """False if it is known to be at or after the other one in every log."""
        if self.kind != other.kind or self.kind not in ("offset", "last", "time"):
            return True
        return self.number > other.number if self.kind == "last" else self.number < other.number


def read_place(text: str, read_time: Callable[[str], int]) -> Place:
    """`beginning`, `end`, `stored`, `stored:GROUP`, an offset, `-N`, `@MS`, or a time that `read_time` reads.

    Raises what `read_time` raises, and ValueError for MS that is no time.
    """
    if text in ("beginning", "end", "stored"):
        return Place(text)  # type: ignore[arg-type]
    if text.startswith("stored:") and len(text) > 7:
        return Place("stored", group=text[7:])
    kinds: dict[str, Literal["last", "time"]] = {"-": "last", "@": "time"}
    if text.isascii() and text.isdecimal():
        return Place("offset", int(text))
    if text[:1] in kinds and text[1:].isascii() and text[1:].isdecimal():
        number = int(text[1:])
        return Place(kinds[text[0]], checked_time(number) if text[0] == "@" else number)
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
