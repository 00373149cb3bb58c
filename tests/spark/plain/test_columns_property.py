"""The pure parts of columns: which offsets to sample, types of several schemas, decoding of any bytes, table widths."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.model import TopicPartition
from kzconsumer_spark.columns.avro_and_protobuf import (
    AvroDecoder,
    AvroSchema,
    Unsupported,
    decode_column,
    for_spark,
    merged,
)
from kzconsumer_tools.commands.sink_commands import last_offsets
from kzconsumer_tools.tables.offset_tables import fitted

logs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 5)),
    st.tuples(st.integers(0, 100), st.integers(0, 50)).map(lambda pair: (pair[0], pair[0] + pair[1])),
)


@given(logs, st.integers(1, 300))
def test_the_newest_offsets_are_complete_and_distributed_evenly(
    logs: dict[TopicPartition, tuple[int, int]], count: int
) -> None:
    ranges = last_offsets(logs, count)
    shares = {TopicPartition(each.topic, each.partition): each.until - each.first for each in ranges}
    there = {each: until - first for each, (first, until) in logs.items()}
    assert sum(shares.values()) == min(count, sum(there.values()))
    for each in ranges:
        first, until = logs[TopicPartition(each.topic, each.partition)]
        assert first <= each.first < each.until == until
    unspent = [shares.get(each, 0) for each in there if shares.get(each, 0) < there[each]]
    if unspent:
        assert max(shares.values()) - min(unspent) <= 1


scalars = st.sampled_from(["int", "long", "float", "double", "string", "bytes", "boolean"])
names = st.sampled_from("abcd")


def _record(fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": k, "type": ["null", v]} for k, v in fields.items()]}


records = st.dictionaries(names, scalars, min_size=1).map(_record)


@given(records, records)
def test_one_type_holds_the_fields_of_both_whichever_comes_first(left: dict[str, Any], right: dict[str, Any]) -> None:
    first, second = AvroSchema(left).type, AvroSchema(right).type
    try:
        both = merged(first, second)
    except Unsupported:
        with pytest.raises(Unsupported):
            merged(second, first)
        return
    assert _fields(both) == _fields(merged(second, first))
    assert _fields(both).keys() == _fields(first).keys() | _fields(second).keys()
    assert merged(both, first) == both


def _fields(type_: Any) -> dict[str, pa.DataType]:
    return {each.name: each.type for each in type_}


def _value(schema: dict[str, Any], number: int) -> dict[str, object]:
    made = {"string": f"text {number}", "bytes": b"\x00%d" % number, "boolean": bool(number % 2)}
    return {f["name"]: made.get(f["type"][1], number) if number else None for f in schema["fields"]}


@given(records, records, st.lists(st.tuples(st.booleans(), st.integers(0, 1000))))
def test_union_by_name_gives_every_value_back(left: Any, right: Any, rows: list[tuple[bool, int]]) -> None:
    schemas: dict[int | None, AvroSchema] = {1: AvroSchema(left), 2: AvroSchema(right)}
    try:
        decoder = AvroDecoder(schemas, None)
    except Unsupported:
        return
    data, expected = [], []
    for first, number in rows:
        schema = left if first else right
        out = io.BytesIO(b"\x00\x00\x00\x00" + (b"\x01" if first else b"\x02"))
        out.seek(5)
        value = _value(schema, number)
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        data.append(out.getvalue())
        expected.append(dict.fromkeys(_fields(decoder.type)) | value)
    column, reasons = decode_column(pa.array(data, pa.binary()), decoder.reader(), decoder.type)
    assert column.to_pylist() == expected
    assert reasons.null_count == len(rows)


@given(records, st.lists(st.one_of(st.none(), st.binary(max_size=30))))
def test_any_bytes_become_a_value_or_a_reason_without_them(schema: Any, data: list[bytes | None]) -> None:
    decoder = AvroDecoder({None: AvroSchema(schema)}, None)
    column, reasons = decode_column(pa.array(data, pa.binary()), decoder.reader(), decoder.type)
    assert column.type == for_spark(decoder.type)
    for before, value, reason in zip(data, column.to_pylist(), reasons.to_pylist(), strict=True):
        if before is None:
            assert value is None
            assert reason is None
        else:
            assert (value is None) != (reason is None)


def test_a_value_that_its_column_cannot_hold_does_not_affect_others() -> None:
    far = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    decoder = AvroDecoder({None: AvroSchema(far)}, None)
    data = []
    for at in (1, 2**62, 3):
        out = io.BytesIO()
        fastavro.schemaless_writer(
            out, {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}, {"at": at}
        )
        data.append(out.getvalue())
    column, reasons = decode_column(pa.array(data, pa.binary()), decoder.reader(), decoder.type)
    assert [value is None for value in column.to_pylist()] == [False, True, False]
    assert reasons.to_pylist()[1] == "has a value that its column cannot hold"


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]},
            "field next is a N inside of",
        ),
        (
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]},
            "field x may be int32 or",
        ),
        ({"type": "array", "items": "Nobody"}, "not an Avro schema: "),
        ({"type": "bytes", "logicalType": "decimal", "precision": 50}, "a decimal of 50 digits"),
    ],
)
def test_schemas_without_a_column_are_refused(schema: object, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        AvroSchema(schema)


@given(st.lists(st.integers(0, 200), max_size=12), st.integers(1, 200))
def test_columns_fit_unless_there_are_too_many(wanted: list[int], width: int) -> None:
    widths = fitted(wanted, width)
    assert all(cut <= each for cut, each in zip(widths, wanted, strict=True))
    if sum(wanted) <= width:
        assert widths == wanted
    assert sum(widths) <= max(width, 4 * len(wanted))
