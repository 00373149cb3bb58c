"""Reads a table of the group's file into a frozen struct, without coercion, and reports all its faults at once.

The group's settings and the options of sink plugins are read with it. A fault is one line: where it is, which key, what
is wrong, and the nearest known name. Durations and sizes are text with a unit in the file, seconds and bytes in the
struct.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, cast

import msgspec
from msgspec import Meta, inspect

from kzconsumer.display import redacted
from kzconsumer.errors import ConfigError


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the file. `foreign_terms`: keys by which other consumers know the setting -> the key here."""

    foreign_terms: ClassVar[Mapping[str, str]] = {}


T = TypeVar("T", bound=msgspec.Struct)


def read_table(table: Mapping[str, object], into: type[T], where: str) -> T:
    """Convert a table from TOML to an `into`.

    `where` begins every line: `"[sink.options]"`, `"group.toml: [offsets]"`, or `"group.toml:"` for a whole file.
    Understood field types: str, int, float, bool, Literal, the types above and any `Annotated[..., reader(f)]`, Meta's
    bounds, list or tuple of one type, Mapping from str, nested structs, unions, object. A ValueError of the struct's
    `__post_init__` is a fault of the table. Raises ConfigError with every fault found.
    """
    faults: list[str] = []
    made = _struct(table, into, where, faults)
    if faults:
        raise ConfigError(faults)
    return cast("T", made)


def tables_of(into: type[msgspec.Struct], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The places of all tables in `into` that hold settings: structs, and tables with keys defined elsewhere."""
    for field in _fields(into):
        place = (*at, field.encode_name)
        match _table_type(field.type):
            case inspect.StructType(cls=inner):
                yield place
                yield from tables_of(inner, place)
            case inspect.DictType(value_type=inspect.CustomType() | inspect.AnyType()):
                yield place


def keys_of(table: msgspec.Struct, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object, object]]:
    """Each key with its value and the value's form in the file; a table that is None has no keys."""
    for field in _fields(type(table)):
        place, value = (*at, field.encode_name), getattr(table, field.name)
        if isinstance(value, msgspec.Struct):
            yield from keys_of(value, place)
        elif not isinstance(_table_type(field.type), inspect.StructType):
            yield place, value, _written(value, field.type)


@contextmanager
def faults_in(source: str) -> Iterator[None]:
    """Put `source: ` before each fault of a ConfigError, as a plugin does not know the file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError([f"{source}: {fault}" for fault in error.faults]) from None


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name nearest to `name`, if one is near."""
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else None


@cache
def _fields(table: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    described = inspect.type_info(table)
    assert isinstance(described, inspect.StructType)
    return described.fields


def _table_type(kind: inspect.Type) -> inspect.Type:
    """The type without Annotated and None."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        kind = next((each for each in kind.types if isinstance(each, inspect.StructType)), kind)
    return kind


def _written(value: object, kind: inspect.Type) -> object:
    if isinstance(kind, inspect.UnionType) and len(kind.types) == 2:
        kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    show = kind.extra.get("show") if isinstance(kind, inspect.Metadata) and kind.extra else None
    return show(value) if show is not None and value is not None else value


def _struct(value: object, into: type[msgspec.Struct], where: str, faults: list[str]) -> object:
    if not isinstance(value, Mapping):
        faults.append(f"{where.removesuffix(':')}: {_shown(value)} is not a table")
        return None
    fields = {field.encode_name: field for field in _fields(into)}
    before = len(faults)
    read: dict[str, object] = {}
    for key, content in value.items():
        if key in fields:
            read[fields[key].name] = _value(content, fields[key].type, where, str(key), faults)
        else:
            foreign = into.foreign_terms if issubclass(into, Table) else {}
            close = foreign.get(str(key)) or nearest(str(key), fields)
            known = f"known are {', '.join(fields)}" if fields else "there are none here"
            hint = f"did you mean {close}?" if close else known
            faults.append(f"{where} {key}: unknown key; {hint}")
    for key, field in fields.items():
        if key in value or not field.required:
            continue
        if isinstance(field.type, inspect.StructType):
            read[field.name] = _struct({}, field.type.cls, _inner(where, key), faults)
        else:
            faults.append(f"{where} {key}: missing")
    if len(faults) > before:
        return None
    try:
        return into(**read)
    except ValueError as error:
        faults.append(f"{where}: {error}")
        return None


def _value(value: object, kind: inspect.Type, where: str, key: str, faults: list[str]) -> object:
    """The field's value, or None after adding a fault."""
    if isinstance(kind, inspect.Metadata) and kind.extra and "read" in kind.extra:
        try:
            value = kind.extra["read"](value)
        except ValueError as error:
            faults.append(f"{where} {key}: {_shown(value)} {error}")
            return None
        kind = kind.type
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    match kind:
        case inspect.StructType():
            return _struct(value, kind.cls, _inner(where, key), faults)
        case inspect.DictType() if isinstance(value, Mapping):
            return _mapping(value, kind, where, key, faults)
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list | tuple):
            items = [_value(item, kind.item_type, where, f"{key}[{n}]", faults) for n, item in enumerate(value)]
            return tuple(items) if isinstance(kind, inspect.VarTupleType) else items
        case inspect.UnionType():
            return _union(value, kind, where, key, faults)
    problem = _problem(value, kind)
    if problem:
        faults.append(f"{where} {key}: {_shown(value)} {problem}")
        return None
    return float(value) if isinstance(kind, inspect.FloatType) and isinstance(value, int) else value


def _mapping(
    value: Mapping[Any, object], kind: inspect.DictType, where: str, key: str, faults: list[str]
) -> dict[str, object]:
    if kind.min_length and len(value) < kind.min_length:
        faults.append(f"{where} {key}: is empty")
    made: dict[str, object] = {}
    for name, content in value.items():
        legal = _value(name, kind.key_type, where, key, faults)
        made[cast("str", legal)] = _value(content, kind.value_type, where, f"{key}.{name}", faults)
    return made


def _union(value: object, kind: inspect.UnionType, where: str, key: str, faults: list[str]) -> object:
    members = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
    if value is None and len(members) < len(kind.types):
        return None
    if len(members) == 1:
        return _value(value, members[0], where, key, faults)
    found: list[str] = []
    for member in members:
        tried: list[str] = []
        made = _value(value, member, where, key, tried)
        if not tried:
            return made
        found += tried
    begin = f"{where} {key}: {_shown(value)} "
    faults.append(begin + " and ".join(fault.removeprefix(begin) for fault in found))
    return None


def _problem(value: object, kind: inspect.Type) -> str | None:
    """The fault of a plain value, if any."""
    match kind:
        case inspect.LiteralType():
            if any(value == each and type(value) is type(each) for each in kind.values):
                return None
            known = [str(each) for each in kind.values]
            close = nearest(value, known) if isinstance(value, str) else None
            hint = f"; did you mean {_shown(close)}?" if close else ""
            return f"is not one of {', '.join(known)}{hint}"
        case inspect.BoolType():
            return None if type(value) is bool else "is not true or false"
        case inspect.IntType():
            return "is not a whole number" if type(value) is not int else _out_of_bounds(value, kind)
        case inspect.FloatType():
            return "is not a number" if type(value) not in (int, float) else _out_of_bounds(cast("float", value), kind)
        case inspect.StrType():
            if type(value) is not str:
                return "is not text"
            return "is empty" if kind.min_length and not value else None
        case inspect.DictType():
            return "is not a table"
        case inspect.ListType() | inspect.VarTupleType():
            example = f", such as [{_shown(value)}]" if type(value) in (str, int, float) else ""
            return f"is not a list{example}"
        case inspect.AnyType():
            return None
        case inspect.CustomType() if kind.cls is object:
            return None
    raise TypeError(f"read_table does not know fields of {kind}")


def _out_of_bounds(value: float, kind: inspect.IntType | inspect.FloatType) -> str | None:
    if kind.ge is not None and value < kind.ge:
        return f"is less than {kind.ge}"
    if kind.gt is not None and value <= kind.gt:
        return f"is not more than {kind.gt}"
    if kind.le is not None and value > kind.le:
        return f"is more than {kind.le}"
    return None


def _inner(where: str, key: str) -> str:
    return f"{where[:-1]}.{key}]" if where.endswith("]") else f"{where} [{key}]"


def _shown(value: object) -> str:
    """A value as in the file, short enough for a line."""
    is_date = isinstance(value, date | time)  # which stands without quotes in a file
    text = str(value) if is_date else json.dumps(redacted(value), ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)(B|kB|MB|GB|KiB|MiB|GiB)", re.ASCII)
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def read_duration(value: object) -> float:
    """Text such as "6s", "500ms", "2m" or "1h" in seconds. Raises ValueError for anything else, bare numbers too."""
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a duration such as "10s", "500ms"')
    return float(match[1]) * _SECONDS[match[2]]


def read_positive_duration(value: object) -> float:
    """The same, and more than nothing."""
    seconds = read_duration(value)
    if seconds == 0:
        raise ValueError('must be longer than 0, such as "500ms" or "10s"')
    return seconds


def read_byte_size(value: object) -> int:
    """A whole number of bytes, or text such as "1MiB" (2**20) or "64kB" (64,000). Raises ValueError otherwise."""
    if type(value) is int and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('is not a size such as "1MiB", "64kB" or a whole number of bytes')
    return int(match[1]) * _BYTES[match[2]]


def show_duration(seconds: float) -> str:
    """The form that `read_duration` accepts, in the largest unit without a fraction."""
    for unit in ("h", "m", "s"):
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.9f}".rstrip("0").rstrip(".") + "ms" if seconds else "0s"


def show_byte_size(size: int) -> str | int:
    """The form that `read_byte_size` accepts, in the largest binary unit without a fraction, or the number."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return size


def reader(function: Callable[[object], object], show: Callable[[Any], object] | None = None) -> Meta:
    """For `Annotated[T, reader(f)]`: `f` converts the raw value to the field's, `show` converts it back.

    Its ValueError is the rest of a sentence that begins with the value: "is not ...".
    """
    return Meta(extra={"read": function, "show": show})


#: Field type: seconds, written as text with a unit.
Duration = Annotated[float, reader(read_duration, show_duration)]
#: Field type: the same, and more than nothing.
PositiveDuration = Annotated[float, Meta(gt=0), reader(read_positive_duration, show_duration)]
#: Field type: bytes, written as a number or as text with a unit.
ByteSize = Annotated[int, reader(read_byte_size, show_byte_size)]
