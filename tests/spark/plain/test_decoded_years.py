"""Dates and times of Avro and protobuf outside of the years 1 to 9999 are bad values, one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kzconsumer_spark.columns.avro_and_protobuf import decode_column

_SECONDS = (-62135596800, 253402300799)
_DAYS = (-719162, 2932896)


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (pa.timestamp("ms", tz="UTC"), _SECONDS[0] * 1000, _SECONDS[1] * 1000 + 999),
        (pa.timestamp("us", tz="UTC"), _SECONDS[0] * 10**6, _SECONDS[1] * 10**6 + 999_999),
        (pa.timestamp("us"), _SECONDS[0] * 10**6, _SECONDS[1] * 10**6 + 999_999),
        (pa.date32(), *_DAYS),
    ],
)
@pytest.mark.parametrize("nesting", ["value", "field", "list", "map"])
def test_a_time_that_no_reader_has_is_bad(kind: pa.DataType, first: int, last: int, nesting: str) -> None:
    def inside(number: int) -> object:
        return {"value": number, "field": {"a": 1, "at": number}, "list": [0, number], "map": [("k", number)]}[nesting]

    types: dict[str, Any] = {
        "value": kind,
        "field": pa.struct([("a", pa.int32()), ("at", kind)]),
        "list": pa.list_(kind),
        "map": pa.map_(pa.string(), kind),
    }
    numbers = [first - 1, first, 0, last, last + 1]
    raw = pa.array([str(each).encode() for each in numbers])
    column, reasons = decode_column(raw, lambda data: inside(int(data)), types[nesting])
    bad = "has a value that its column cannot hold"
    assert reasons.to_pylist() == [bad, None, None, None, bad]
    assert column.is_null().to_pylist() == [True, False, False, False, True]
