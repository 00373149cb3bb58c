"""What `kzconsumer consume` prints and leaves out, compared with a record-by-record version in plain Python."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.errors import NotDoneError
from kzconsumer.model import TopicPartition
from kzconsumer.records.columns import SCHEMA
from kzconsumer_tools.consume.format_and_places import FIELDS, Format, Place, offset_at, read_format, read_place
from kzconsumer_tools.consume.record_text import (
    HeaderMatch,
    RecordFilter,
    check_expression,
    pieces,
    read_header,
    render,
)

Row = dict[str, Any]

CONTENT = st.none() | st.binary(max_size=6) | st.sampled_from([b"ab", "é".encode(), b"\xff", b"a\nb"])
HEADERS = st.lists(st.tuples(st.sampled_from(["a", "b", "é"]), CONTENT), max_size=3)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"key": CONTENT, "value": CONTENT, "timestamp": st.none() | st.integers(0, 2**41), "headers": HEADERS}
    ),
    max_size=8,
)
FORMATS = st.lists(st.sampled_from([*FIELDS, b"", b"\n", b" = "]), max_size=8).map(tuple)


def batch_of(rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "topic": pa.DictionaryArray.from_arrays(pa.array([0] * len(rows), pa.int8()), pa.array(["t.1"])),
        "partition": [7] * len(rows),
        "offset": [10 + 3 * n for n in range(len(rows))],
        "timestamp_type": [0] * len(rows),
        **{name: [row[name] for row in rows] for name in ("key", "value", "timestamp")},
        "headers": [[{"key": k, "value": v} for k, v in row["headers"]] for row in rows],
    }
    arrays = [
        columns[field.name] if field.name == "topic" else pa.array(columns[field.name], field.type) for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def printed(row: Row, offset: int, form: Format, null: bytes) -> bytes:
    size = {name: -1 if row[name] is None else len(row[name]) for name in ("key", "value")}
    fields = {
        "s": null if row["value"] is None else row["value"],
        "k": null if row["key"] is None else row["key"],
        "S": b"%d" % size["value"],
        "K": b"%d" % size["key"],
        "R": size["value"].to_bytes(4, "big", signed=True),
        "T": b"-1" if row["timestamp"] is None else b"%d" % row["timestamp"],
        "h": b",".join(name.encode() + b"=" + (b"NULL" if v is None else v) for name, v in row["headers"]),
        "t": b"t.1",
        "p": b"7",
        "o": b"%d" % offset,
    }
    return b"".join(part if isinstance(part, bytes) else fields[part] for part in form)


@given(ROWS, FORMATS, st.sampled_from([b"", b"NULL"]), st.integers(0, 3))
def test_lines_match_the_records(rows: list[Row], form: Format, null: bytes, skip: int) -> None:
    expected = b"".join(printed(row, 10 + 3 * n, form, null) for n, row in enumerate(rows) if n >= skip)
    assert bytes(render(batch_of(rows).slice(skip), form, null)) == expected


def test_text_that_is_too_large_is_made_of_fewer_rows_and_of_one_is_an_error() -> None:
    """Of 46 times 50 MB, more than a column of Arrow holds; of smaller values the rows are written one by one."""
    large, form = b"x" * 50_000_000, read_format("%s" * 46)
    rows: list[Row] = [{"key": b"k", "value": value, "timestamp": 0, "headers": []} for value in (b"a", large, b"b")]
    found = pieces(batch_of(rows), form)
    assert next(found)[1] == b"a" * 46
    with pytest.raises(NotDoneError, match=r"^t\.1-7, offset 13: its text is too large \(.+\): name fewer fields"):
        next(found)


def matches(content: bytes | None, expression: str) -> bool:
    # Invalid UTF-8 is replaced by characters that no expression here matches.
    return content is not None and re.search(expression, content.decode("utf-8", "surrogateescape")) is not None


EXPRESSIONS = st.sampled_from(["a", "^a", "b$", "é", "^$", "[aé]b?"])


@given(ROWS, st.none() | EXPRESSIONS, st.none() | EXPRESSIONS, st.lists(st.none() | EXPRESSIONS, max_size=2), st.data())
def test_a_filter_keeps_matching_records(
    rows: list[Row], key: str | None, value: str | None, headers: list[str | None], data: st.DataObject
) -> None:
    wanted = tuple(HeaderMatch(data.draw(st.sampled_from(["a", "é", "none"])), each) for each in headers)
    skip = data.draw(st.integers(0, 2))
    expected = [
        10 + 3 * n
        for n, row in enumerate(rows)
        if n >= skip
        and (key is None or matches(row["key"], key))
        and (value is None or matches(row["value"], value))
        and all(
            any(name == h.name and (h.value is None or matches(v, h.value)) for name, v in row["headers"])
            for h in wanted
        )
    ]
    found = RecordFilter(key, value, wanted).rows(batch_of(rows).slice(skip))
    assert found.column("offset").to_pylist() == expected
    line = render(found, ("o", b" ", "k", b" ", "h", b"\n"))
    by_offset = {10 + 3 * n: row for n, row in enumerate(rows)}
    assert bytes(line) == b"".join(printed(by_offset[o], o, ("o", b" ", "k", b" ", "h", b"\n"), b"") for o in expected)


@given(FORMATS)
def test_formats_are_parsed(form: Format) -> None:
    escaped = {b"": "", b"\n": r"\n", b" = ": r"\x20= "}
    text = "".join(escaped[part] if isinstance(part, bytes) else f"%{part}" for part in form)
    joined: list[bytes | str] = []
    for part in form:
        if isinstance(part, bytes) and joined and isinstance(joined[-1], bytes):
            joined[-1] += part
        elif part:
            joined.append(part)
    assert read_format(text) == tuple(joined)


def test_the_other_fields_of_a_format() -> None:
    assert read_format(r"100%% é\t\r\0\\\xff") == (b"100% " + "é".encode() + b"\t\r\0\\\xff",)
    for wrong, named in (
        (r"%x", "%x is not a field"),
        (r"%", "% is not a field"),
        (r"a\q", r"\\q is not an escape"),
        ("\\", "not an escape"),
    ):
        with pytest.raises(ValueError, match=named):
            read_format(wrong)


def test_invalid_filters_are_reported() -> None:
    with pytest.raises(ValueError, match="missing \\)"):
        check_expression("(a")
    with pytest.raises(ValueError, match="name of the header"):
        read_header("=a")
    assert read_header("a=b=c") == HeaderMatch("a", "b=c")


@pytest.mark.parametrize(
    ("text", "offset"),
    [("beginning", 3), ("end", 20), ("stored:g", 9), ("7", 7), ("1", 3), ("99", 20), ("-4", 16), ("-99", 3), ("@5", 8)],
)
def test_positions_are_resolved_to_offsets_of_the_log(text: str, offset: int) -> None:
    p = TopicPartition("t", 0)
    assert offset_at(read_place(text, int), p, (3, 20), {p: 8}, {p: 9}) == offset


def test_positions_that_cannot_be_resolved() -> None:
    p = TopicPartition("t", 0)
    assert offset_at(Place("time", 1), p, (3, 20), {}, {}) == 20
    assert offset_at(Place("stored", group="g"), p, (3, 20), {}, {}) == 3
    with pytest.raises(ValueError, match="no time"):
        read_place("tomorrow", no_time)


def no_time(text: str) -> int:
    raise ValueError("no time")
