"""Protobuf messages of every kind of field: the type of each column, and every value as it was set."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from kzconsumer_spark.columns.avro_and_protobuf import ProtobufDecoder, Unsupported, decode_column

OPTIONAL, REQUIRED, REPEATED = 1, 2, 3
INT32, INT64, BIG = pa.int32(), pa.int64(), pa.decimal128(20, 0)
#: Kind -> its number, the column's type, a value that is not the default, and what the column has of it.
SCALARS: dict[str, tuple[int, pa.DataType, Any, Any]] = {
    "double": (1, pa.float64(), 0.1, 0.1),
    "float": (2, pa.float32(), 0.5, 0.5),
    "int64": (3, INT64, -(2**63), -(2**63)),
    "uint64": (4, BIG, 2**64 - 1, Decimal(2**64 - 1)),
    "int32": (5, INT32, -(2**31), -(2**31)),
    "fixed64": (6, BIG, 2**63, Decimal(2**63)),
    "fixed32": (7, INT64, 2**32 - 1, 2**32 - 1),
    "bool": (8, pa.bool_(), True, True),
    "string": (9, pa.string(), "\u00e9", "\u00e9"),
    "bytes": (12, pa.binary(), b"\0\xff", b"\0\xff"),
    "uint32": (13, INT64, 2**32 - 1, 2**32 - 1),
    "sfixed32": (15, INT32, -1, -1),
    "sfixed64": (16, INT64, -1, -1),
    "sint32": (17, INT32, -5, -5),
    "sint64": (18, INT64, -5, -5),
}
NONE: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "uint64": Decimal(0), "fixed64": Decimal(0)}
MESSAGE, ENUM = 11, 14


def file(syntax: str = "proto3") -> FileDescriptorProto:
    made = FileDescriptorProto(name="shop.proto", package="shop", syntax=syntax)
    made.dependency.append("google/protobuf/timestamp.proto")
    colour = made.enum_type.add(name="Colour")
    for number, name in ((0, "NONE"), (3, "RED")):
        colour.value.add(name=name, number=number)
    return made


def field(message: DescriptorProto, name: str, kind: int, label: int = OPTIONAL, of: str = "") -> FieldDescriptorProto:
    return message.field.add(name=name, number=len(message.field) + 1, type=kind, label=label, type_name=of or None)


def mapping(message: DescriptorProto, name: str, key: str, kind: int, of: str = "") -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    field(entry, "key", SCALARS[key][0])
    field(entry, "value", kind, of=of)
    field(message, name, MESSAGE, REPEATED, f".shop.{message.name}.{entry.name}")


def of(made: FileDescriptorProto) -> tuple[bytes, Callable[..., Any]]:
    """The descriptor set with its imports, and a new message `shop.M`."""
    times = FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool = DescriptorPool()
    for each in (times, made):
        pool.Add(each)
    return FileDescriptorSet(file=[times, made]).SerializeToString(), GetMessageClass(
        pool.FindMessageTypeByName("shop.M")
    )


def decoded(files: bytes, *data: bytes | None) -> tuple[pa.DataType, list[Any], list[Any]]:
    decoder = ProtobufDecoder(files, "shop.M")
    column, reasons = decode_column(pa.array(data, pa.binary()), decoder.reader(), decoder.type)
    return decoder.type, column.to_pylist(), reasons.to_pylist()


@pytest.mark.parametrize("kind", SCALARS)
def test_scalars_with_and_without_presence_alone_in_lists_and_in_maps(kind: str) -> None:
    number, type_, value, expected = SCALARS[kind]
    made = file()
    message = made.message_type.add(name="M")
    field(message, "plain", number)
    optional = field(message, "optional", number)
    optional.proto3_optional, optional.oneof_index = True, 0
    message.oneof_decl.add(name="_optional")
    field(message, "list", number, REPEATED)
    keyed = kind if kind not in ("double", "float", "bytes") else "string"
    mapping(message, "by", keyed, number)
    files, new = of(made)
    full, empty = new(), new()
    full.plain = full.optional = value
    full.list.extend([value, value])
    full.by[SCALARS[keyed][2]] = value
    key = {"bool": "true", "string": "\u00e9"}.get(keyed, str(SCALARS[keyed][2]))
    found, rows, reasons = decoded(files, full.SerializeToString(), empty.SerializeToString(), None)
    assert found == pa.struct(
        [("plain", type_), ("optional", type_), ("list", pa.list_(type_)), ("by", pa.map_(pa.string(), type_))]
    )
    assert rows == [
        {"plain": expected, "optional": expected, "list": [expected] * 2, "by": [(key, expected)]},
        {"plain": NONE.get(kind, 0), "optional": None, "list": [], "by": []},
        None,
    ]
    assert reasons == [None] * 3


def test_messages_enumerations_and_times_inside_of_others() -> None:
    made = file()
    inner = made.message_type.add(name="Inner")
    field(inner, "colour", ENUM, of=".shop.Colour")
    field(inner, "at", MESSAGE, of=".google.protobuf.Timestamp")
    message = made.message_type.add(name="M")
    field(message, "one", MESSAGE, of=".shop.Inner")
    field(message, "all", MESSAGE, REPEATED, ".shop.Inner")
    field(message, "times", MESSAGE, REPEATED, ".google.protobuf.Timestamp")
    mapping(message, "by", "int32", MESSAGE, ".shop.Inner")
    mapping(message, "colours", "bool", ENUM, ".shop.Colour")
    files, new = of(made)
    chance = random.Random(5)
    for _ in range(20):
        at = [(chance.randrange(-(10**9), 10**9), chance.randrange(10**9)) for _ in range(4)]
        colours = [chance.choice([0, 3, 9]) for _ in range(4)]
        shown = [{0: "NONE", 3: "RED", 9: "9"}[each] for each in colours]
        value = new()
        parts = [value.one, value.all.add(), value.all.add(), value.by[-4]]
        for part, colour, (seconds, nanos) in zip(parts, colours, at, strict=True):
            part.colour, part.at.seconds, part.at.nanos = colour, seconds, nanos
        value.times.add(seconds=1, nanos=2999)
        value.colours[False] = colours[0]
        found, (row,), reasons = decoded(files, value.SerializeToString())
        times = pa.timestamp("us", tz="UTC")
        of_inner = pa.struct([("colour", pa.string()), ("at", times)])
        assert found == pa.struct(
            [
                ("one", of_inner),
                ("all", pa.list_(of_inner)),
                ("times", pa.list_(times)),
                ("by", pa.map_(pa.string(), of_inner)),
                ("colours", pa.map_(pa.string(), pa.string())),
            ]
        )
        micros = pa.array([seconds * 1_000_000 + nanos // 1000 for seconds, nanos in at] + [1_000_002], times)
        *instants, last = micros.to_pylist()
        rows = [{"colour": colour, "at": when} for colour, when in zip(shown, instants, strict=True)]
        assert row == {
            "one": rows[0],
            "all": rows[1:3],
            "times": [last],
            "by": [("-4", rows[3])],
            "colours": [("false", shown[0])],
        }
        assert reasons == [None]
    assert decoded(files, new().SerializeToString())[1] == [
        {"one": None, "all": [], "times": [], "by": [], "colours": []}
    ]


def test_bytes_that_are_no_message_and_one_that_lacks_a_required_field() -> None:
    made = file("proto2")
    message = made.message_type.add(name="M")
    field(message, "id", SCALARS["int32"][0], REQUIRED)
    field(message, "note", SCALARS["string"][0])
    files, new = of(made)
    good = new(id=0)
    assert decoded(files, good.SerializeToString(), new(note="n").SerializePartialToString(), b"\xff", None)[1:] == (
        [{"id": 0, "note": None}, None, None, None],
        [None, "lacks a required field", "is not of its schema (DecodeError)", None],
    )


def test_descriptors_that_no_column_has() -> None:
    made = file()
    message = made.message_type.add(name="M")
    between = made.message_type.add(name="Between")
    field(message, "between", MESSAGE, of=".shop.Between")
    field(between, "again", MESSAGE, REPEATED, ".shop.M")
    files, _ = of(made)
    for name, reason in (
        ("shop.M", "message shop.M holds itself: no column has such a type"),
        ("shop.Between", "message shop.Between holds itself"),
        ("M", "there is no message type M; its full name has the package"),
    ):
        with pytest.raises(Unsupported, match=reason):
            ProtobufDecoder(files, name)
    with pytest.raises(Unsupported, match="not a protobuf descriptor set: DecodeError"):
        ProtobufDecoder(b"\xff", "shop.M")


def test_a_message_may_be_in_two_fields() -> None:
    """It does not hold itself."""
    made = file()
    field(made.message_type.add(name="Inner"), "n", SCALARS["int32"][0])
    message = made.message_type.add(name="M")
    for name in ("a", "b"):
        field(message, name, MESSAGE, of=".shop.Inner")
    files, new = of(made)
    value = new()
    value.a.n = 1
    assert decoded(files, value.SerializeToString())[1] == [{"a": {"n": 1}, "b": None}]
