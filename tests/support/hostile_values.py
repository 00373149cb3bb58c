"""Values that formats, tables and readers are known to change, and what becomes of each: the table of the page."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa

UTC = datetime.UTC
MICROSECOND: Final = pa.timestamp("us")
INSTANT: Final = pa.timestamp("us", tz="UTC")


class Value(NamedTuple):
    """`content` of `column`, in a row where all other columns are null."""

    group: str
    name: str
    column: str
    content: Any


COLUMNS: Final[dict[str, pa.DataType]] = {
    "at": INSTANT,
    "wall": MICROSECOND,
    "day": pa.date32(),
    "price": pa.decimal128(10, 2),
    "exact": pa.decimal128(38, 18),
    "real": pa.float64(),
    "single": pa.float32(),
    "number": pa.int64(),
    "small": pa.int32(),
    "yes": pa.bool_(),
    "text": pa.string(),
    "raw": pa.binary(),
    "texts": pa.list_(pa.string()),
    "times": pa.list_(INSTANT),
    "inside": pa.struct([("at", INSTANT), ("text", pa.string())]),
    "names": pa.map_(pa.string(), pa.string()),
}
FLAT: Final = ("at", "wall", "day", "price", "exact", "real", "single", "number", "small", "yes", "text")

_TIMES: Final = {
    "the first of year 1": (1, 1, 1),
    "the last of year 1": (1, 12, 31, 23, 59, 59, 999_999),
    "year 999": (999, 12, 31, 23, 59, 59, 1),
    "before the Gregorian calendar": (1582, 10, 4, 12),
    "a day that was left out in 1582": (1582, 10, 10, 12),
    "before time zones": (1883, 11, 18, 12, 3, 58),
    "before 1900": (1899, 12, 31, 23, 59, 59, 999_999),
    "a microsecond before 1970": (1969, 12, 31, 23, 59, 59, 999_999),
    "1970": (1970, 1, 1),
    "the hour that is left out in New York": (2026, 3, 8, 2, 30),
    "the hour that comes twice in New York": (2026, 11, 1, 5, 30),
    "that hour again": (2026, 11, 1, 6, 30),
    "the hour that is left out in Berlin": (2026, 3, 29, 2, 30),
    "a leap day": (2024, 2, 29),
    "beyond 32 bits of seconds": (2038, 1, 19, 3, 14, 8),
    "beyond 64 bits of nanoseconds": (2262, 4, 11, 23, 47, 16, 854_776),
    "the last of 9999": (9999, 12, 31, 23, 59, 59, 999_999),
}
_TEXTS: Final = {
    "empty": "",
    "a blank": " ",
    "blanks around": "  lead and trail \t",
    "a line break": "a\nb",
    "a line break at the end": "a\r\n",
    "a carriage return": "a\rb",
    "quotes": '""',
    "a quote": 'a"b',
    "a backslash": "\\",
    "a backslash and a quote": '\\"',
    "a backslash at the end": "a\\",
    "single quotes": "'a'",
    "commas": ",,",
    "the word null": "null",
    "the word of empty partitions": "__HIVE_DEFAULT_PARTITION__",
    "the word NaN": "NaN",
    "a number": "007",
    "a formula": "=1+1",
    "a comment": "# x",
    "a tab": "\t",
    "control characters": "\x01\x1f\x7f\x85",
    "beyond 16 bits": "\U0001f600\U0010ffff",
    "combining": "e\u0301\u00e9",
    "from right to left": "\u202eabc\u05d0",
    "no width": "\ufeff\u200b",
    "line separators": "\u2028\u2029",
    "no characters": "\ufffe\uffff",
    "a megabyte": "x" * (1 << 20),
    "JSON": '{"a": [1, "b"]}',
}


def values() -> list[Value]:
    return list(_values())


def _values() -> Iterator[Value]:
    yield Value("other", "all columns null", "text", None)
    for name, parts in _TIMES.items():
        wall = datetime.datetime(*parts)  # type: ignore[arg-type]
        yield Value("times", name, "at", wall.replace(tzinfo=UTC))
        yield Value("times without a zone", name, "wall", wall)
        if name in ("the first of year 1", "a day that was left out in 1582", "a leap day", "the last of 9999"):
            yield Value("dates", name, "day", wall.date())
    for text in ("0.00", "-0.01", "99999999.99", "-99999999.99"):
        yield Value("decimals", text, "price", Decimal(text))
    for text in ("0.000000000000000001", "99999999999999999999.999999999999999999", "-12345678901234567890.1", "1E+3"):
        yield Value("decimals", text, "exact", Decimal(text))
    for real in (0.0, -0.0, 0.1, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, math.nan, math.inf, -math.inf):
        yield Value("floating point", repr(real), "real", real)
    for single in (-0.0, 1.401298464324817e-45, 3.4028234663852886e38, math.nan, -math.inf):
        yield Value("floating point", f"{single!r}, single", "single", single)
    for number in (0, -1, 2**53 + 1, 2**63 - 1, -(2**63)):
        yield Value("whole numbers", str(number), "number", number)
    for number in (2**31 - 1, -(2**31)):
        yield Value("whole numbers", str(number), "small", number)
    yield Value("other", "false", "yes", False)
    for name, text in _TEXTS.items():
        yield Value("text", name, "text", text)
    for raw in (b"", b"\0", b"\xff\xfe", bytes(range(256)), b"\x82SNAPPY\0"):
        yield Value("bytes", repr(raw[:12]), "raw", raw)
    for texts in ([], [""], ["a", None, 'b"'], ["x"] * 5000):
        yield Value("nested", f"an array of {len(texts)}", "texts", texts)
    yield Value("nested", "an array of times", "times", [datetime.datetime(1, 1, 1, tzinfo=UTC), None])
    yield Value("nested", "a struct", "inside", {"at": datetime.datetime(9999, 12, 31, tzinfo=UTC), "text": ""})
    yield Value("nested", "a struct of nulls", "inside", {"at": None, "text": None})
    for names in ([], [("", "")], [("a.b", "\n"), ("c d", "")]):
        yield Value("nested", f"a map of {len(names)}", "names", names)


_BELOW, _ABOVE = -62135596800_000_001, 253402300800_000_000


def refused() -> list[Value]:
    """By name, in every destination but a function: what would be changed, or invisible."""
    found = []
    for name, micros in (
        ("a microsecond before year 1", _BELOW),
        ("year 10000", _ABOVE),
        ("nanoseconds taken for microseconds", 1_700_000_000_000_000_000),
        ("the last there is", 2**63 - 1),
    ):
        at, wall = (pa.scalar(micros, pa.int64()).cast(kind) for kind in (INSTANT, MICROSECOND))
        found.append(Value("times", name, "at", at))
        found.append(Value("times without a zone", name, "wall", wall))
    found.append(Value("dates", "year 10000", "day", pa.scalar(2932897, pa.int32()).cast(pa.date32())))
    found.append(Value("dates", "year 0", "day", pa.scalar(-719163, pa.int32()).cast(pa.date32())))
    late = pa.scalar(_ABOVE, pa.int64()).cast(INSTANT)
    found.append(Value("nested", "year 10000 in an array", "times", [late]))
    found.append(Value("nested", "year 10000 in a struct", "inside", {"at": late, "text": None}))
    return found


def table(found: list[Value]) -> pa.Table:
    """A row for each, its place in `n`."""
    columns: dict[str, Any] = {"n": pa.array(range(len(found)), pa.int64())}
    for name, kind in COLUMNS.items():
        if any(isinstance(each.content, pa.Scalar) for each in found):
            columns[name] = _scalars(found, name, kind)
        else:
            columns[name] = pa.array([each.content if each.column == name else None for each in found], kind)
    return pa.table(columns)


def _scalars(found: list[Value], name: str, kind: Any) -> Any:
    """Of values that Python does not have."""
    parts: list[Any] = []
    for each in found:
        content = each.content if each.column == name else None
        if isinstance(content, list):
            (only,) = content
            parts.append(pa.ListArray.from_arrays([0, 1], pa.array([only.value], pa.int64()).cast(INSTANT)))
        elif isinstance(content, dict):
            at = pa.array([content["at"].value], pa.int64()).cast(INSTANT)
            parts.append(pa.StructArray.from_arrays([at, pa.array([None], pa.string())], ["at", "text"]))
        elif isinstance(content, pa.Scalar):
            whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
            parts.append(pa.array([content.cast(whole).as_py()], whole).cast(kind))
        else:
            parts.append(pa.array([None], kind))
    return pa.chunked_array(parts, kind)


def plain(content: Any, kind: pa.DataType) -> Any:
    """What is the same whoever reads it: for `==`, also of NaN and -0.0."""
    if content is None:
        return None
    if pa.types.is_list(kind):
        return [plain(each, kind.value_type) for each in content]
    if pa.types.is_map(kind):
        pairs = content.items() if isinstance(content, dict) else content
        return sorted((name, plain(item, kind.item_type)) for name, item in pairs)
    if pa.types.is_struct(kind):
        return {field.name: plain(content.get(field.name), field.type) for field in kind}
    if pa.types.is_floating(kind):
        return repr(struct.unpack("f", struct.pack("f", content))[0] if pa.types.is_float32(kind) else float(content))
    if pa.types.is_decimal(kind):
        text = format(Decimal(content), "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    if pa.types.is_timestamp(kind):
        found = datetime.datetime.fromisoformat(content) if isinstance(content, str) else content
        if kind.tz is not None:
            found = found.astimezone(UTC) if found.tzinfo is not None else found.replace(tzinfo=UTC)
        return found.replace(tzinfo=None).isoformat()
    return bytes(content) if isinstance(content, bytes | bytearray | memoryview) else content


NOT_IN_ORC: Final = {"a day that was left out in 1582", "a microsecond before 1970"}
"""Refused by name, since a reader would find another time."""
#: What differs, by destination, reader and value's name, and why.
DIFFERENT: Final[dict[tuple[str, str, str], str]] = {
    **{
        (table, "DuckDB", name): "0.0 if DuckDB sorts by it"
        for table in ("Delta", "Iceberg")
        for name in ("-0.0", "-0.0, single")
    },
    ("CSV", "Spark", "empty"): "null to Spark's reader, which cannot tell them apart; DuckDB can",
}
DESTINATIONS: Final = {
    "Parquet": ("Spark", "pyarrow", "DuckDB"),
    "ORC": ("Spark", "pyarrow"),
    "JSON": ("Spark",),
    "CSV": ("Spark", "DuckDB"),
    "Delta": ("deltalake", "DuckDB"),
    "Iceberg": ("pyiceberg", "DuckDB"),
    "PostgreSQL": ("psycopg",),
    "function": ("its DataFrame",),
}


def page() -> str:
    """The table of docs/spark-values.md."""
    good, bad = values(), refused()
    lines = [
        f"| | values | {' | '.join(DESTINATIONS)} |",
        f"|---|---|{'---|' * len(DESTINATIONS)}",
        f"| read by | | {' | '.join(', '.join(readers) for readers in DESTINATIONS.values())} |",
    ]
    for group in dict.fromkeys(each.group for each in good):
        of = [each for each in good if each.group == group]
        cells = [_cell(destination, of) for destination in DESTINATIONS]
        lines.append(f"| {group} | {len(of)} | {' | '.join(cells)} |")
    for group in dict.fromkeys(each.group for each in bad):
        of = [each for each in bad if each.group == group]
        cells = ["as it is" if destination == "function" else "refused" for destination in DESTINATIONS]
        names = ", ".join(each.name for each in of)
        lines.append(f"| {group}: {names} | {len(of)} | {' | '.join(cells)} |")
    cells = ["refused" if each in ("Parquet", "ORC", "JSON", "CSV", "Delta") else "same" for each in DESTINATIONS]
    name = "empty text and the word of empty partitions, by which files are partitioned"
    lines.append(f"| {name} | 2 | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(destination: str, of: list[Value]) -> str:
    if destination == "ORC" and any(each.name in NOT_IN_ORC for each in of):
        names = dict.fromkeys(each.name for each in of if each.name in NOT_IN_ORC)
        return f"same; refused: {', '.join(names)}"
    if destination == "CSV" and any(each.column not in FLAT for each in of):
        return "no such column"
    notes = [f"same; {name}: {why}" for (where, _, name), why in DIFFERENT.items()
             if where == destination and name in {each.name for each in of} and of[0].group == "text"]  # fmt: skip
    return notes[0] if notes else "same"
