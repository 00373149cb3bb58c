"""Avro schemas as Arrow types, and the union by name of the types of several schemas.

Types are those of Spark's own Avro source; unions of more than one type and recursive schemas are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

Avro: TypeAlias = Any
"""A schema as JSON gives it: a name, a list of branches, or a mapping."""

_PRIMITIVE: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_WIDER: list[pa.DataType] = [pa.int32(), pa.int64(), pa.float32(), pa.float64()]


class Unsupported(ValueError):
    """A schema has no matching column type; the text names the field and the reason."""


def arrow_type(schema: Avro) -> pa.DataType:
    """The type of a schema's values, names expanded, with timestamps as they are written. Raises Unsupported."""
    return _type(schema, "")


def merged(left: pa.DataType, right: pa.DataType, at: str = "") -> pa.DataType:
    """The type that holds values of both: structs merged by field name, the wider number. Raises Unsupported."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        fields = {field.name: field.type for field in left}
        for field in right:
            if field.name in fields:
                fields[field.name] = merged(fields[field.name], field.type, _inside(at, field.name))
            else:
                fields[field.name] = field.type
        return pa.struct(list(fields.items()))
    if pa.types.is_map(left) and pa.types.is_map(right):
        return pa.map_(pa.string(), merged(left.item_type, right.item_type, at))
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(merged(left.value_type, right.value_type, at))
    if left in _WIDER and right in _WIDER:
        return max(left, right, key=_WIDER.index)
    if pa.types.is_timestamp(left) and pa.types.is_timestamp(right) and left.tz == right.tz:
        return pa.timestamp("us", tz=left.tz)
    raise Unsupported(f"field {at or '(whole value)'} is {left} in one schema and {right} in another")


def for_spark(type_: pa.DataType) -> pa.DataType:
    """The same type with timestamps in microseconds, as Spark needs, and text for the null type."""
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", tz=type_.tz)
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, for_spark(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), for_spark(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(for_spark(type_.value_type))
    return type_


def without_times(schema: Avro) -> Avro:
    """The schema with dates and times as numbers, which Arrow takes faster than objects."""
    if isinstance(schema, list):
        return [without_times(branch) for branch in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values"):
        if isinstance(kept.get(key), list | Mapping):
            kept[key] = without_times(kept[key])
    if "fields" in kept:
        kept["fields"] = [field | {"type": without_times(field["type"])} for field in kept["fields"]]
    return kept


def _type(schema: Avro, at: str) -> pa.DataType:
    if isinstance(schema, list):
        return _union(schema, at)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if isinstance(kind, list | Mapping):
        return _type(kind, at)
    match kind:
        case "record" | "error":
            return pa.struct(
                [(field["name"], _type(field["type"], _inside(at, field["name"]))) for field in schema["fields"]]
            )
        case "array":
            return pa.list_(_type(schema["items"], at))
        case "map":
            return pa.map_(pa.string(), _type(schema["values"], at))
        case "enum":
            return pa.string()
        case "bytes" | "fixed":
            return _decimal(schema, at) or pa.binary()
    if kind in _PRIMITIVE:
        return _LOGICAL.get((kind, schema.get("logicalType", "")), _PRIMITIVE[kind])
    raise Unsupported(f"field {at or '(whole value)'} is a {kind} inside of itself: no column has such a type")


def _union(branches: list[Avro], at: str) -> pa.DataType:
    types = [_type(branch, at) for branch in branches if branch not in ("null", {"type": "null"})]
    if not types:
        return pa.null()
    if len(types) == 1:
        return types[0]
    if set(types) <= set(_WIDER):
        return max(types, key=_WIDER.index)
    raise Unsupported(f"field {at or '(whole value)'} may be {' or '.join(map(str, types))}: no column is both")


def _decimal(schema: Mapping[str, Any], at: str) -> pa.DataType | None:
    if schema.get("logicalType") != "decimal":
        return None
    precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    if precision > 38:
        raise Unsupported(f"field {at} is a decimal of {precision} digits: Spark has 38")
    return pa.decimal128(precision, scale)


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
