"""Decoders of Avro and protobuf: their types as Arrow has them, and values of a column in Spark's Python workers.

Types are those of Spark's own Avro source; unions of more than one type and recursive schemas are refused. Types of
several schemas are joined by the names of fields.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

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


# Decodes a column of bytes in Spark's Python workers, value by value: for Avro and protobuf.
#
# A value that cannot be decoded becomes null with a reason, which contains nothing of the value; other values are not
# affected.

Read: TypeAlias = Callable[[bytes], object]
"""Decodes bytes to a value for `pa.array`. Raises BadValue, or an error of a library."""


class BadValue(Exception):
    """Why bytes cannot be decoded; the text contains none of them."""


class Decoder(Protocol):
    """Pickled and sent to executors, where `reader` is called once for each task."""

    @property
    def type(self) -> pa.DataType:
        """The type of the values as read; the column has `for_spark` of it."""

    def reader(self) -> Read: ...


def decode_column(values: pa.Array[Any], read: Read, type_: pa.DataType) -> tuple[pa.Array[Any], pa.Array[Any]]:
    """The values, and for each the reason why it cannot be read, or null. A null is a valid value."""
    rows: list[object] = []
    reasons: list[str | None] = []
    for value in values.to_pylist():
        reason = None
        row = None
        if value is not None:
            try:
                row = read(value)
            except Exception as error:
                reason = _reason(error)
        rows.append(row)
        reasons.append(reason)
    try:
        column = _column(rows, type_)
    except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
        for place, row in enumerate(rows):
            try:
                _column([row], type_)
            except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
                rows[place], reasons[place] = None, "has a value that its column cannot hold"
        column = _column(rows, type_)
    return column, pa.array(reasons, pa.string())


def _column(rows: list[object], type_: pa.DataType) -> pa.Array[Any]:
    column = pa.array(rows, type_).cast(for_spark(type_))
    _require_years(column)
    return column


def _require_years(column: Any) -> None:
    """Raises ValueError for a date or time outside of the years 1 to 9999, which formats and readers do not have."""
    kind = column.type
    if pa.types.is_struct(kind):
        for part in column.flatten():
            _require_years(part)
    elif pa.types.is_list(kind):
        _require_years(column.flatten())
    elif pa.types.is_map(kind):
        _require_years(column.items)
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        bounds = pc.min_max(column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
        lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
        first, last = _DAYS if pa.types.is_date32(kind) else _MICROSECONDS
        if lowest is not None and (lowest < first or highest > last):
            raise ValueError


#: The first and the last of the years 1 to 9999, since 1970.
_DAYS: Final = (-719162, 2932896)
_MICROSECONDS: Final = (-62135596800_000_000, 253402300799_999_999)


def _reason(error: Exception) -> str:
    if isinstance(error, BadValue):
        return str(error)
    if isinstance(error, EOFError):
        return "ends too early for its schema"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    return f"is not of its schema ({type(error).__name__})"


# Avro, and Avro in Confluent's frame (a zero byte, four bytes of schema id), decoded by fastavro.
#
# A decoder is built for each batch with the schemas of all ids in it: executors ask no registry.

_FRAME = struct.Struct(">bi")


class AvroSchema:
    """A parsed schema with the named schemas it refers to. Raises Unsupported if fastavro or a column refuses it."""

    def __init__(self, schema: Avro, referred: tuple[Avro, ...] = ()) -> None:
        import fastavro

        named: dict[str, Any] = {}
        plain: dict[str, Any] = {}
        try:
            for each in referred:
                fastavro.parse_schema(each, named_schemas=named, expand=True)
                fastavro.parse_schema(without_times(each), named_schemas=plain)
            self.type = arrow_type(fastavro.parse_schema(schema, named_schemas=named, expand=True))
            self.parsed = fastavro.parse_schema(without_times(schema), named_schemas=plain)
        except Unsupported:
            raise
        except Exception as error:  # its own, KeyError and TypeError, as the schema has it
            raise Unsupported(f"not an Avro schema: {type(error).__name__}: {error}") from error


class AvroDecoder:
    """`writers` are the schemas by id; without frame there is one, of id None. Values are resolved to `reader`.

    Without `reader`, columns are the union by name of all writers' fields. Raises Unsupported when two of them have a
    field of one name that no column can hold.
    """

    def __init__(self, writers: Mapping[int | None, AvroSchema], reader: AvroSchema | None) -> None:
        self._writers = {number: schema.parsed for number, schema in writers.items()}
        self._reader = reader.parsed if reader else None
        types = [writers[number].type for number in sorted(writers, key=lambda number: number or 0)]
        nothing: pa.DataType = pa.struct([])  # before the first schema: `value.*` is no column then
        self.type: pa.DataType = reader.type if reader else reduce(merged, types[1:], (types or [nothing])[0])
        # Values that are resolved to a schema are taken for what it says they are, as Avro's own libraries do.
        self._types = {} if reader else {number: schema.type for number, schema in writers.items()}

    def reader(self) -> Read:
        from fastavro import schemaless_reader

        writers, reader = self._writers, self._reader
        framed = None not in writers
        finer = {number: _finer_or_null(own, self.type) for number, own in self._types.items()}

        def read(data: bytes) -> object:
            stream = io.BytesIO(data)
            number = None
            if framed:
                number = schema_id(stream.read(5))
            if number not in writers:
                raise BadValue(f"has schema id {number}, which the registry does not know")
            try:
                value = schemaless_reader(stream, writers[number], reader)
            except IndexError as error:
                if stream.tell() == len(data):
                    raise EOFError from error  # in the middle of a number
                raise
            if stream.tell() != len(data):
                raise BadValue("has more bytes than its schema says")
            convert = finer.get(number)
            return value if convert is None else convert(value)

        return read


def _finer(own: Any, column: Any) -> Callable[[Any], Any] | None:
    """Makes microseconds of milliseconds in values of the one type that become those of the other; None: as they are.

    Times are read as numbers, which have no unit.
    """
    if pa.types.is_timestamp(own):
        return (lambda time: time * 1000) if (own.unit, column.unit) == ("ms", "us") else None
    if pa.types.is_struct(own):
        fields = [(each.name, _finer_or_null(each.type, column.field(each.name).type)) for each in own]
        parts = {name: convert for name, convert in fields if convert is not None}
        if not parts:
            return None
        return lambda row: {name: parts[name](value) if name in parts else value for name, value in row.items()}
    if pa.types.is_list(own):
        item = _finer_or_null(own.value_type, column.value_type)
        return None if item is None else lambda items: [item(each) for each in items]
    if pa.types.is_map(own):
        value = _finer_or_null(own.item_type, column.item_type)
        return None if value is None else lambda items: {key: value(each) for key, each in items.items()}
    return None


def _finer_or_null(own: Any, column: Any) -> Callable[[Any], Any] | None:
    convert = _finer(own, column)
    return None if convert is None else lambda value: None if value is None else convert(value)


def schema_id(frame: bytes) -> int:
    """Of the first five bytes. Raises BadValue."""
    if len(frame) < 5 or frame[0]:
        raise BadValue("does not begin with Confluent's frame (a zero byte and a schema id)")
    return int(_FRAME.unpack(frame)[1])


# Protobuf: descriptors as Arrow types, messages as values.
#
# Fields with presence are null if absent; others have their default, as protobuf defines it.

_TIMESTAMP = "google.protobuf.Timestamp"
_SCALARS: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), pa.int64()),
    **dict.fromkeys(("uint64", "fixed64"), pa.decimal128(20, 0)),
}


class ProtobufDecoder:
    """`files` is a serialized FileDescriptorSet with all imports. Raises Unsupported."""

    def __init__(self, files: bytes, message: str) -> None:
        self._files = files
        self._message = message
        self.type: pa.DataType = _struct(_descriptor(files, message), ())

    def reader(self) -> Read:
        from google.protobuf.message_factory import GetMessageClass

        descriptor = _descriptor(self._files, self._message)
        made = GetMessageClass(descriptor)
        row = _row(descriptor)

        def read(data: bytes) -> object:
            message = made.FromString(data)
            if not message.IsInitialized():
                raise BadValue("lacks a required field")
            return row(message)

        return read


def _descriptor(files: bytes, message: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(files).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise Unsupported(f"there is no message type {message}; its full name has the package") from None
    except Exception as error:
        raise Unsupported(f"not a protobuf descriptor set: {type(error).__name__}") from error


def _struct(descriptor: Any, inside: tuple[str, ...]) -> pa.DataType:
    if descriptor.full_name in inside:
        raise Unsupported(f"message {descriptor.full_name} holds itself: no column has such a type")
    return pa.struct(
        [(field.name, _protobuf_type(field, (*inside, descriptor.full_name))) for field in descriptor.fields]
    )


def _protobuf_type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        # A key is text in the column, whatever it is in the message: numbers and booleans are written as such.
        return pa.map_(pa.string(), _single(field.message_type.fields_by_name["value"], inside))
    single = _single(field, inside)
    return pa.list_(single) if field.is_repeated else single


def _single(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _SCALARS[_kind(field)]
    if field.message_type.full_name == _TIMESTAMP:
        return pa.timestamp("us", tz="UTC")
    return _struct(field.message_type, inside)


def _kind(field: Any) -> str:
    return next(
        str(name).removeprefix("TYPE_").lower()
        for name, number in vars(type(field)).items()
        if name.startswith("TYPE_") and number == field.type
    )


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _row(descriptor: Any) -> Any:
    """A function that makes a dict of a message of this type."""
    parts = [(field.name, field.has_presence, _value(field)) for field in descriptor.fields]

    def row(message: Any) -> dict[str, object]:
        return {
            name: convert(getattr(message, name)) if not optional or message.HasField(name) else None
            for name, optional, convert in parts
        }

    return row


def _value(field: Any) -> Any:
    if _is_map(field):
        convert = _item(field.message_type.fields_by_name["value"])
        return lambda items: [(_key(key), convert(item)) for key, item in items.items()]
    convert = _item(field)
    return (lambda items: [convert(item) for item in items]) if field.is_repeated else convert


def _item(field: Any) -> Any:
    if field.enum_type is not None:
        names = {each.number: each.name for each in field.enum_type.values}
        return lambda number: names.get(number, str(number))
    if field.message_type is None:
        return lambda value: value
    if field.message_type.full_name == _TIMESTAMP:
        return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
    return _row(field.message_type)


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
