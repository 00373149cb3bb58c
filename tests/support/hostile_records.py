"""Whole records that sinks, files and readers are known to change: the second table of docs/spark-values.md."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from kzconsumer.offsets.progress import Message
from kzconsumer_files.parquet import FIRST_MS, LAST_MS
from tests.support.producing import Headers, Sent
from tests.support.range_data import record

_USUAL: Final = 1_700_000_000_000


class Hostile(NamedTuple):
    """A record, of which one field is unusual; `timestamp` in ms."""

    group: str
    name: str
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    timestamp: int = _USUAL
    headers: Headers = ()


_BYTES: Final[dict[str, bytes | None]] = {
    "null": None,
    "empty": b"",
    "U+0000": b"\0",
    "no UTF-8": b"\xff\xfe\x80",
    "all bytes": bytes(range(256)),
    "half a character": "\U0001f600".encode()[:2],
    "a line break": b'a\r\n"b",\\',
    "the word null": b"null",
    "what begins like snappy": b"\x82SNAPPY\0",
    "900,000 bytes": b"x" * 900_000,
}
_TIMES: Final = {
    "the first of year 1": FIRST_MS,
    "before the Gregorian calendar": -12_219_292_800_001,
    "a millisecond before 1969-12-31T23:59:59.999": -2,
    "a millisecond after 1970": 1,
    "beyond 32 bits of seconds": 2**31 * 1000,
    "beyond 64 bits of nanoseconds": 9_223_372_036_855,
    "the last of 9999": LAST_MS,
}
_HEADERS: Final[dict[str, Headers]] = {
    "a null": (("h", None),),
    "an empty value and name": (("", b""),),
    "one name twice": (("h", b"1"), ("h", b"2")),
    "a name with odd characters": (("\u202e\x01\U0001f600", b"\0\xff"),),
    "2,000": tuple((f"h{n % 7}", b"%d" % n) for n in range(2000)),
    "500,000 bytes": (("h", b"x" * 500_000),),
}
OUTSIDE: Final = {
    "a millisecond before year 1": FIRST_MS - 1,
    "year 10000": LAST_MS + 1,
    "nanoseconds": 1_700_000_000_000_000_000,
    "the last there is": 2**63 - 1,
}
"""Timestamps by which a record is rejected."""


def records() -> list[Hostile]:
    return [
        *(Hostile("keys", name, key=key) for name, key in _BYTES.items()),
        *(Hostile("values", name, value=value) for name, value in _BYTES.items()),
        *(Hostile("timestamps", name, timestamp=timestamp) for name, timestamp in _TIMES.items()),
        *(Hostile("headers", name, headers=headers) for name, headers in _HEADERS.items()),
    ]


def refused() -> list[Hostile]:
    return [Hostile("timestamps", name, timestamp=timestamp) for name, timestamp in OUTSIDE.items()]


def sent(found: Iterable[Hostile]) -> list[Sent]:
    return [Sent(0, each.key, each.value, each.headers, each.timestamp) for each in found]


def decoded(found: Iterable[Hostile]) -> list[dict[str, Any]]:
    """For `range_data`, with offsets from 0 on."""
    return [
        record(
            offset,
            key=each.key,
            value=each.value,
            timestamp=each.timestamp,
            headers=[{"key": name, "value": value} for name, value in each.headers],
        )
        for offset, each in enumerate(found)
    ]


Row = tuple[bytes | None, bytes | None, int | None, Headers]
"""Key, value, timestamp in ms, headers."""


def rows(found: Iterable[Hostile]) -> list[Row]:
    return [(each.key, each.value, each.timestamp, each.headers) for each in found]


def rows_of_table(table: pa.Table) -> list[Row]:
    """With the columns of Spark's Kafka source, by offset. A record without headers has null ones."""
    table = table.sort_by("offset")
    micros = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    return [
        (
            row["key"],
            row["value"],
            at and at // 1000,
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for row, at in zip(table.select(["key", "value", "headers"]).to_pylist(), micros, strict=True)
    ]


def rows_of_messages(messages: Iterable[Message]) -> list[Row]:
    return [(each.key, each.value, each.timestamp, tuple(each.headers)) for each in messages]


def differences(found: list[Row], of: list[Hostile]) -> list[str]:
    """The names of those that came out in another way."""
    assert len(found) == len(of)
    return [f"{each.group}: {each.name}" for each, one, other in zip(of, found, rows(of), strict=True) if one != other]


_PLACES: Final = {
    "sink `parquet`": "pyarrow, DuckDB, Spark",
    "sink `callable`": "its messages",
    "Spark source, query": "foreachBatch",
    "Spark source, batch read": "its DataFrame",
}


def page() -> str:
    """The second table of docs/spark-values.md."""
    lines = [
        f"| | records | {' | '.join(_PLACES)} |",
        f"|---|---|{'---|' * len(_PLACES)}",
        f"| read by | | {' | '.join(_PLACES.values())} |",
    ]
    good, bad = records(), refused()
    for group in dict.fromkeys(each.group for each in good):
        of = [each for each in good if each.group == group]
        lines.append(
            f"| {group}: {', '.join(each.name for each in of)} | {len(of)} | {' | '.join('same' for _ in _PLACES)} |"
        )
    cells = ["same" if "callable" in place else "refused" for place in _PLACES]
    lines.append(f"| timestamps: {', '.join(each.name for each in bad)} | {len(bad)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
