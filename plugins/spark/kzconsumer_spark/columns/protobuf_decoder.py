"""Protobuf: descriptors as Arrow types, messages as values.

Fields with presence are null if absent; others have their default, as protobuf defines it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kzconsumer_spark.columns.avro_types import Unsupported
from kzconsumer_spark.columns.decoder import BadValue, Read

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
    return pa.struct([(field.name, _type(field, (*inside, descriptor.full_name))) for field in descriptor.fields])


def _type(field: Any, inside: tuple[str, ...]) -> pa.DataType:
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
