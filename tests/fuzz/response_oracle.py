"""A second reader of responses, and a writer of random ones, driven by Kafka's own message schemas (as kio has them).

Shares nothing with the product's decoders. It reads layouts and does not check meanings.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import struct
import types
import typing
from functools import cache
from typing import Any, NamedTuple

Tree = dict[str, Any]

WIDTHS = {
    "int8": 1,
    "bool": 1,
    "int16": 2,
    "error_code": 2,
    "int32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "uuid": 16,
}
BYTES = ("bytes", "records")
NUMBERS = (-1, 0, 0, 1, 3, 77, 1 << 30)
READ_TAGS = ("diverging_epoch",)
TEXTS = ("g", "g", "", "topic", "größe", "x" * 131)
SUBSCRIPTION = bytes.fromhex("0001 00000002 0005") + b"topic" + bytes.fromhex("0003") + b"t-2" + b"\xff" * 4 + b"\0" * 4
ASSIGNMENT = (
    bytes.fromhex("0000 00000001 0005") + b"topic" + bytes.fromhex("00000002 00000003 0000004d 00000001") + b"?"
)
"""What members of a group say of themselves, in bytes: version, topics (with partitions), and data that is skipped."""


class Bad(Exception):
    """The bytes are not such a response."""


class Field(NamedTuple):
    name: str
    kind: Any
    """A dataclass for a structure, else the name of a primitive type."""
    array: bool
    nullable: bool


@cache
def response(api: str, version: int) -> Any:
    """The schema of a response, a dataclass: `("fetch", 12)`."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.response")
    return getattr(module, "".join(word.title() for word in api.split("_")) + "Response")


@cache
def fields(kind: Any) -> tuple[Field, ...]:
    """In the order on the wire; tagged ones are left out."""
    found = []
    for field in dataclasses.fields(kind):
        if "tag" in field.metadata:
            continue
        one: Any = field.type
        if nullable := isinstance(one, types.UnionType):
            one = next(each for each in typing.get_args(one) if each is not types.NoneType)
        array = typing.get_origin(one) is tuple
        if array:
            one = typing.get_args(one)[0]
        found.append(Field(field.name, field.metadata.get("kafka_type", one), array, nullable))
    return tuple(found)


@cache
def tagged(kind: Any) -> dict[int, tuple[str, Any]]:
    """The tagged structures that the product reads: name and schema, by tag."""
    hints = typing.get_type_hints(kind)
    return {
        field.metadata["tag"]: (field.name, hints[field.name])
        for field in dataclasses.fields(kind)
        if field.name in READ_TAGS
    }


class Reader:
    """Bytes taken from the front. `odd`: a strict reader may refuse them, for a negative length where null is none."""

    def __init__(self, data: bytes, *, flexible: bool) -> None:
        self.data = data
        self.flexible = flexible
        self.odd = False

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data):
            raise Bad
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big", signed=True)

    def varint(self) -> int:
        value = 0
        for n in range(5):
            byte = self.take(1)[0]
            value += (byte & 127) << (7 * n)
            if byte < 128:
                break
        else:
            raise Bad
        if value >= 1 << 32:
            raise Bad
        return value

    def length(self, width: int, *, nullable: bool = False) -> int:
        """-1 for null."""
        length = self.varint() - 1 if self.flexible else self.number(width)
        self.odd = self.odd or length < (-1 if nullable else 0)
        return max(length, -1)

    def tags(self, known: dict[int, tuple[str, Any]] | None = None) -> Tree:
        """Those of `known` that are there."""
        found = {}
        for _ in range(self.varint() if self.flexible else 0):
            name, kind = (known or {}).get(self.varint(), ("", None))
            inside = Reader(self.take(self.varint()), flexible=True)
            if kind is not None:
                found[name] = inside.structure(kind)
                if inside.data:
                    raise Bad
        return found

    def structure(self, kind: Any) -> Tree:
        tree = {}
        for name, part, array, nullable in fields(kind):
            if array:
                tree[name] = [self.one(part) for _ in range(self.length(4, nullable=nullable))]
            else:
                tree[name] = self.one(part, nullable=nullable)
        return tree | self.tags(tagged(kind))

    def one(self, kind: Any, *, nullable: bool = False) -> Any:
        if not isinstance(kind, str):
            return self.structure(kind)
        if kind == "string":
            length = self.length(2, nullable=nullable)
            try:
                return None if length < 0 else self.take(length).decode()
            except UnicodeDecodeError:
                raise Bad from None
        if kind in BYTES:
            return self.take(max(self.length(4, nullable=nullable), 0))
        return self.number(WIDTHS[kind])


def write(kind: Any, rng: random.Random, *, flexible: bool) -> bytes:
    """A random response of that schema."""
    parts = []
    for _, part, array, nullable in fields(kind):
        sized = array or part == "string" or part in BYTES
        if nullable and sized and rng.random() < 0.2:
            parts.append(_null(2 if part == "string" and not array else 4, flexible=flexible))
        elif array:
            number = rng.choice([0, 1, 1, 2, 5])
            parts.append(_length(number, 4, flexible=flexible))
            parts += [_one(part, rng, flexible=flexible) for _ in range(number)]
        else:
            parts.append(_one(part, rng, flexible=flexible))
    if flexible:
        known = {number: write(part, rng, flexible=True) for number, (_, part) in tagged(kind).items()}
        tags = {n: known.get(n, b"tagged") for n in rng.choice([(), (), (0,), (0, 1), (1,)])}
        parts += [bytes([len(tags)]), *(bytes([n, len(data)]) + data for n, data in tags.items())]
    return b"".join(parts)


def _one(kind: Any, rng: random.Random, *, flexible: bool) -> bytes:
    if not isinstance(kind, str):
        return write(kind, rng, flexible=flexible)
    if kind == "string" or kind in BYTES:
        blobs = (b"", rng.randbytes(5), rng.randbytes(200), SUBSCRIPTION, ASSIGNMENT)
        data = rng.choice(TEXTS).encode() if kind == "string" else rng.choice(blobs)
        return _length(len(data), 2 if kind == "string" else 4, flexible=flexible) + data
    width = WIDTHS[kind]
    number = rng.choice(NUMBERS) if width >= 4 else rng.choice(NUMBERS[:5])
    return number.to_bytes(width, "big", signed=True)


def _null(width: int, *, flexible: bool) -> bytes:
    return b"\0" if flexible else b"\xff" * width


def _length(length: int, width: int, *, flexible: bool) -> bytes:
    if not flexible:
        return length.to_bytes(width, "big")
    length += 1
    return bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])


def frame(body: bytes, correlation: int, *, flexible: bool) -> bytes:
    """The response as it comes, without its size."""
    return struct.pack(">i", correlation) + (b"\0" if flexible else b"") + body
