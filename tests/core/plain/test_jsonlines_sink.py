"""How jsonlines writes a range: one JSON object per line, bytes as text or base64."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.builtin import JsonLinesSink, encode
from kzconsumer.sinks.interface import RangeData, SinkContext
from tests.support.range_data import TIME, range_data, record


def lines(part: RangeData) -> list[dict[str, object]]:
    return [json.loads(line) for line in encode(part.messages()).decode().splitlines()]


def test_an_ordinary_record_has_exactly_the_promised_keys() -> None:
    assert encode(range_data("t", 3, 7, 8).messages()).decode() == (
        f'{{"topic":"t","partition":3,"offset":7,"timestamp":{TIME + 7},"key":"k7","value":"v7","headers":[]}}\n'
    )


def test_non_utf8_bytes_are_base64_and_null_is_null() -> None:
    rows = [
        record(0, key=None, value=b"\xff\x00"),
        record(1, key="é\n".encode(), value=b""),
        record(2, key=b"\xc3", value=None),
    ]
    found = lines(range_data("t", 0, 0, 3, rows))
    assert [(row["key"], row["value"]) for row in found] == [
        (None, {"base64": "/wA="}),
        ("é\n", ""),
        ({"base64": "ww=="}, None),
    ]


def test_columns_of_only_text_or_only_null_read_the_same() -> None:
    rows = [record(0, key=None, value=b"a"), record(1, key=None, value=None)]
    assert [(row["key"], row["value"]) for row in lines(range_data("t", 0, 0, 2, rows))] == [(None, "a"), (None, None)]


def test_a_record_without_timestamp_has_null() -> None:
    rows = [record(0, timestamp=None, timestamp_type=-1), record(1)]
    assert [row["timestamp"] for row in lines(range_data("t", 0, 0, 2, rows, batches=1))] == [None, TIME + 1]


def test_headers_are_pairs_in_order_with_duplicates() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"\xfe"}, {"key": "b", "value": None}]
    rows = [record(0), record(1, headers=headers)]
    assert [row["headers"] for row in lines(range_data("t", 0, 0, 2, rows, batches=1))] == [
        [],
        [["a", "1"], ["a", {"base64": "/g=="}], ["b", None]],
    ]


def test_a_slice_shows_only_its_own_rows() -> None:
    whole = range_data("t", 0, 0, 5, batches=1)
    part = msgspec.structs.replace(whole, first=2, until=4, pieces=(whole.pieces[0].slice(2, 4),))
    assert [(row["offset"], row["key"], row["value"]) for row in lines(part)] == [(2, "k2", "v2"), (3, "k3", "v3")]


def test_a_range_without_records_has_no_lines() -> None:
    assert encode(range_data("t", 0, 0, 5, []).messages()) == b""


def test_it_has_no_options() -> None:
    context = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
    with pytest.raises(ConfigError, match=r"\[sink.options\] path: unknown key"):
        JsonLinesSink({"path": "x"}, context)
