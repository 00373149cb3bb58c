"""Avro schemas of any nesting: the type of each column, and every value as it was written; and why bytes are none."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pytest

from kzconsumer_spark.columns.avro_and_protobuf import (
    AvroDecoder,
    AvroSchema,
    Unsupported,
    decode_column,
    for_spark,
    merged,
)

Schema = Any
UTC_MS, UTC_US = pa.timestamp("ms", tz="UTC"), pa.timestamp("us", tz="UTC")


class Made(NamedTuple):
    """A schema, the type that its values have in the worker, and values: as they are written, and as numbers."""

    schema: Schema
    type: Any
    value: Callable[[], Any]


class Maker:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._names = 0

    def any(self, depth: int) -> Made:
        kinds: list[Callable[[int], Made]] = [
            self.scalar,
            self.scalar,
            self.time,
            self.decimal,
            self.enum,
            self.numbers,
        ]
        nested: list[Callable[[int], Made]] = [self.record, self.array, self.map, self.optional]
        return self.chance.choice(kinds + nested * (depth > 0))(depth - 1)

    def scalar(self, _: int) -> Made:
        number = self.chance.randrange(-(2**31), 2**31)
        return self.chance.choice(
            [
                Made("boolean", pa.bool_(), lambda: True),
                Made("int", pa.int32(), lambda: number),
                Made({"type": "long"}, pa.int64(), lambda: number * 2**31),
                Made("float", pa.float32(), lambda: number / 2**31 // 0.25 * 0.25),
                Made("double", pa.float64(), lambda: number / 3),
                Made("bytes", pa.binary(), lambda: b"\0\xff%d" % number),
                Made("string", pa.string(), lambda: f"\u00e9 {number}"),
                Made({"type": "fixed", "name": self.name(), "size": 2}, pa.binary(), lambda: b"ab"),
            ]
        )

    def time(self, _: int) -> Made:
        base, logical, kind = self.chance.choice(
            [
                ("int", "date", pa.date32()),
                ("long", "timestamp-millis", UTC_MS),
                ("long", "timestamp-micros", UTC_US),
                ("long", "local-timestamp-millis", pa.timestamp("ms")),
                ("long", "local-timestamp-micros", pa.timestamp("us")),
                ("int", "timestamp-millis", pa.int32()),  # of another base it means nothing
                ("long", "unknown", pa.int64()),
            ]
        )
        at = self.chance.randrange(20000)
        return Made({"type": base, "logicalType": logical}, kind, lambda: at)

    def decimal(self, _: int) -> Made:
        scale = self.chance.choice([0, 2])
        schema = {"type": "bytes", "logicalType": "decimal", "precision": 6} | ({"scale": 2} if scale else {})
        number = Decimal(self.chance.randrange(9999)).scaleb(-scale)
        return Made(schema, pa.decimal128(6, scale), lambda: number)

    def enum(self, _: int) -> Made:
        return Made({"type": "enum", "name": self.name(), "symbols": ["A", "B"]}, pa.string(), lambda: "B")

    def numbers(self, _: int) -> Made:
        wide = [("int", pa.int32()), ("long", pa.int64()), ("float", pa.float32()), ("double", pa.float64())]
        chosen = self.chance.sample(range(4), 2)
        return Made(
            ["null", *(wide[each][0] for each in chosen)], wide[max(chosen)][1], lambda: self.chance.choice([None, 7])
        )

    def record(self, depth: int, of: Mapping[str, Made] | None = None) -> Made:
        names = self.chance.sample("abcd", self.chance.randint(1, 3))
        fields = {name: of[name] if of else self.any(depth) for name in names}
        schema = [{"name": name, "type": each.schema} for name, each in fields.items()]
        return Made(
            {"type": "record", "name": self.name(), "fields": schema},
            pa.struct([(name, each.type) for name, each in fields.items()]),
            lambda: {name: each.value() for name, each in fields.items()},
        )

    def array(self, depth: int, *, alike: bool = False) -> Made:
        items = self.inner(depth) if alike else self.any(depth)
        size = self.chance.randrange(3)
        return Made(
            {"type": "array", "items": items.schema},
            pa.list_(items.type),
            lambda: [items.value() for _ in range(size)],
        )

    def inner(self, depth: int) -> Made:
        return self.alike(depth - 1) if depth > 0 else Made("string", pa.string(), lambda: "v")

    def map(self, depth: int, *, alike: bool = False) -> Made:
        values = self.inner(depth) if alike else self.any(depth)
        keys = self.chance.sample("xyz", self.chance.randrange(3))
        return Made(
            {"type": "map", "values": values.schema},
            pa.map_(pa.string(), values.type),
            lambda: {key: values.value() for key in keys},
        )

    def optional(self, depth: int) -> Made:
        inner = self.any(depth)
        if isinstance(inner.schema, list):
            return inner
        branches = [inner.schema, self.chance.choice(["null", {"type": "null"}])]
        self.chance.shuffle(branches)
        return Made(branches, inner.type, lambda: self.chance.choice([None, inner.value()]))

    def alike(self, depth: int) -> Made:
        """A record whose fields hold the same as those of another one by their names: of wider and finer kinds."""
        wide = [("int", pa.int32()), ("long", pa.int64()), ("float", pa.float32()), ("double", pa.float64())]
        number, at = self.chance.choice(wide), self.chance.randrange(1000)
        unit, kind = self.chance.choice([("millis", UTC_MS), ("micros", UTC_US)])
        of = {
            "a": Made(["null", number[0]], number[1], lambda: at),
            "b": Made({"type": "long", "logicalType": f"timestamp-{unit}"}, kind, lambda: at),
            "c": Made("null", pa.null(), lambda: None) if self.chance.random() < 0.2 else self.array(depth, alike=True),
            "d": self.map(depth, alike=True),
        }
        return self.record(depth, of)

    def name(self) -> str:
        self._names += 1
        return f"N{self._names}"


def written(schema: Schema, value: object) -> bytes:
    """Times as their numbers."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(without_logical(schema)), value)
    return out.getvalue()


def without_logical(schema: Schema) -> Schema:
    if isinstance(schema, list):
        return [without_logical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: without_logical(value) for key, value in schema.items() if key in ("type", "items", "values")}
    fields = {"fields": [each | {"type": without_logical(each["type"])} for each in schema.get("fields", ())]}
    kept = schema if schema.get("logicalType") == "decimal" else {k: v for k, v in schema.items() if k != "logicalType"}
    return {**kept, **plain, **(fields if "fields" in schema else {})}


def raw(array: Any) -> Any:
    """The values, with times as numbers, and a map as a dictionary."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return array.cast(pa.int64() if pa.types.is_timestamp(kind) else pa.int32()).to_pylist()
    if pa.types.is_struct(kind):
        columns = [raw(array.field(number)) for number in range(kind.num_fields)]
        rows = [dict(zip([each.name for each in kind], row, strict=True)) for row in zip(*columns, strict=True)]
        return [row if there.as_py() else None for row, there in zip(rows, array.is_valid(), strict=True)]
    if pa.types.is_list(kind):
        return [None if not each.is_valid else raw(each.values) for each in array]
    if pa.types.is_map(kind):
        found = []
        for each in array:
            entries = each.values if each.is_valid else None
            found.append(
                None if entries is None else dict(zip(entries.field(0).to_pylist(), raw(entries.field(1)), strict=True))
            )
        return found
    return array.to_pylist()


def in_column(value: Any, kind: Any) -> Any:
    """What a column of this type has of a value: microseconds of milliseconds, and null for what it lacks."""
    if value is None:
        return None
    if kind in (UTC_MS, pa.timestamp("ms")):
        return value * 1000
    if pa.types.is_struct(kind):
        return {each.name: in_column(value.get(each.name), each.type) for each in kind}
    if pa.types.is_list(kind):
        return [in_column(each, kind.value_type) for each in value]
    if pa.types.is_map(kind):
        return {key: in_column(each, kind.item_type) for key, each in value.items()}
    return value


@pytest.mark.parametrize("seed", range(40))
def test_every_value_comes_back_in_the_column_of_its_schema(seed: int) -> None:
    maker = Maker(seed)
    made = maker.record(3)
    schema = AvroSchema(made.schema)
    assert schema.type == made.type
    values = [made.value() for _ in range(3)]
    data = [*(written(made.schema, each) for each in values), None]
    decoder = AvroDecoder({None: schema}, None)
    column, reasons = decode_column(pa.array(data, pa.binary()), decoder.reader(), decoder.type)
    assert reasons.to_pylist() == [None] * 4
    assert raw(column) == [*(in_column(each, made.type) for each in values), None]
    assert column.type == for_spark(made.type)


@pytest.mark.parametrize("seed", range(40))
def test_a_column_of_two_schemas_has_every_value_of_both(seed: int) -> None:
    """Whatever is nested in what; numbers and times of the finer kind, fields of either."""
    one, other = Maker(seed).alike(2), Maker(seed + 1000).alike(2)
    first, second = AvroSchema(one.schema), AvroSchema(other.schema)
    both = merged(first.type, second.type)
    assert merged(both, first.type) == both == merged(both, second.type)
    decoder = AvroDecoder({1: first, 2: second}, None)
    assert decoder.type == both
    for number, made in ((1, one), (2, other)):
        value = made.value()
        data = b"\0" + number.to_bytes(4, "big") + written(made.schema, value)
        column, reasons = decode_column(pa.array([data]), decoder.reader(), decoder.type)
        assert reasons.to_pylist() == [None]
        assert lacking(raw(column)[0], in_column(value, made.type), both, made.type)


def lacking(found: Any, value: Any, both: Any, own: Any) -> bool:
    """Whether it is the value, with null for each field that only the other schema has."""
    if value is None or found is None:
        return value is None and found is None
    if pa.types.is_struct(both):
        mine = {each.name: each.type for each in own}
        kinds = {each.name: each.type for each in both}
        return found.keys() == kinds.keys() and all(
            lacking(found[name], value[name], kinds[name], mine[name]) if name in mine else found[name] is None
            for name in kinds
        )
    if pa.types.is_list(both):
        return len(found) == len(value) and all(
            lacking(a, b, both.value_type, own.value_type) for a, b in zip(found, value, strict=True)
        )
    if pa.types.is_map(both):
        return found.keys() == value.keys() and all(
            lacking(found[key], value[key], both.item_type, own.item_type) for key in value
        )
    return bool(found == value)


@pytest.mark.parametrize(
    ("left", "right", "both"),
    [
        (pa.null(), pa.int32(), pa.int32()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float32(), pa.float32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (UTC_MS, UTC_US, UTC_US),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.map_(pa.string(), UTC_MS), pa.map_(pa.string(), UTC_US), pa.map_(pa.string(), UTC_US)),
        (UTC_US, pa.timestamp("us"), "field (whole value) is "),
        (pa.list_(pa.int32()), pa.int32(), "field (whole value) is list<"),
        (
            pa.struct([("a", pa.struct([("b", pa.string())]))]),
            pa.struct([("a", pa.struct([("b", pa.int32())]))]),
            "field a.b is string in one schema and int32 in another",
        ),
    ],
)
def test_the_type_that_holds_both(left: pa.DataType, right: pa.DataType, both: pa.DataType | str) -> None:
    if isinstance(both, str):
        with pytest.raises(Unsupported) as raised:
            merged(left, right)
        assert str(raised.value).startswith(both)
    else:
        assert merged(left, right) == merged(right, left) == both


def test_nothing_but_nulls_is_text_for_spark() -> None:
    schema = AvroSchema(
        {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null"]}, {"name": "m", "type": "null"}]}
    )
    assert schema.type == pa.struct([("n", pa.null()), ("m", pa.null())])
    assert for_spark(schema.type) == pa.struct([("n", pa.string()), ("m", pa.string())])
    decoder = AvroDecoder({None: schema}, None)
    column, _ = decode_column(pa.array([b"\0"]), decoder.reader(), decoder.type)
    assert column.to_pylist() == [{"n": None, "m": None}]


def test_a_schema_that_refers_to_others_has_their_types_and_times() -> None:
    inner = {
        "type": "record",
        "name": "Inner",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
    }
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "of", "type": "Inner"}, {"name": "all", "type": {"type": "array", "items": "Inner"}}],
    }
    schema = AvroSchema(outer, (inner,))
    of = pa.struct([("at", UTC_MS)])
    assert schema.type == pa.struct([("of", of), ("all", pa.list_(of))])
    decoder = AvroDecoder({None: schema}, None)
    column, reasons = decode_column(pa.array([b"\x02\x02\x04\x00"]), decoder.reader(), decoder.type)
    assert reasons.to_pylist() == [None]
    assert raw(column) == [{"of": {"at": 1000}, "all": [{"at": 2000}]}]


TEXT = AvroSchema(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "text", "type": "string"}, {"name": "n", "type": ["null", "long"]}],
    }
)
GOOD = b"\x02a\x02\x04"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\0\1" + GOOD, None),
        (b"\0\0\0\0\2" + GOOD, "has schema id 2, which the registry does not know"),
        (b"\1\0\0\0\1" + GOOD, "does not begin with Confluent's frame (a zero byte and a schema id)"),
        (b"\0\0\0\1", "does not begin with Confluent's frame (a zero byte and a schema id)"),
        (b"\0\0\0\0\1" + GOOD + b"\0", "has more bytes than its schema says"),
        (b"\0\0\0\0\1" + GOOD[:-1], "ends too early for its schema"),
        (b"\0\0\0\0\1" + GOOD[:1], "ends too early for its schema"),
        (b"\0\0\0\0\1\x02\xff\x00", "has text that is not UTF-8"),
        (b"\0\0\0\0\1\x02a\x08\x00", "is not of its schema (IndexError)"),
    ],
)
def test_why_bytes_are_no_value(data: bytes, reason: str | None) -> None:
    decoder = AvroDecoder({1: TEXT}, None)
    column, reasons = decode_column(pa.array([data, b"\0\0\0\0\1" + GOOD]), decoder.reader(), decoder.type)
    assert reasons.to_pylist() == [reason, None]
    assert column.to_pylist() == [None if reason else {"text": "a", "n": 2}, {"text": "a", "n": 2}]


def test_values_are_resolved_to_the_schema_that_is_asked_for() -> None:
    newer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": ["null", "long"]}, {"name": "more", "type": "string", "default": "-"}],
    }
    decoder = AvroDecoder({7: TEXT}, AvroSchema(newer))
    assert decoder.type == pa.struct([("n", pa.int64()), ("more", pa.string())])
    column, _ = decode_column(pa.array([b"\0\0\0\0\7" + GOOD]), decoder.reader(), decoder.type)
    assert column.to_pylist() == [{"n": 2, "more": "-"}]
    assert AvroDecoder({}, None).type == pa.struct([])


def test_a_value_may_be_null_and_its_times_of_two_units() -> None:
    at = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "at", "type": ["null", {"type": "long", "logicalType": "{}"}]}],
    }
    schemas = {
        number: AvroSchema(["null", json.loads(json.dumps(at).replace("{}", f"local-timestamp-{unit}"))])
        for number, unit in ((1, "millis"), (2, "micros"))
    }
    decoder = AvroDecoder(schemas, None)  # type: ignore[arg-type]
    heads = [b"\0\0\0\0" + bytes([number]) for number in (1, 2)]
    data = [head + value for head in heads for value in (b"\0", b"\2\0", b"\2\2\x0e")]
    column, reasons = decode_column(pa.array(data), decoder.reader(), decoder.type)
    assert reasons.to_pylist() == [None] * 6
    assert raw(column) == [None, {"at": None}, {"at": 7000}, None, {"at": None}, {"at": 7}]
