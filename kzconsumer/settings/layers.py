"""The layers of a member's settings, merged key by key, with the origin of every value.

From the lowest to the highest: defaults, vendor files, the group's file, its drop-ins, environment variables, flags.
Also what is read beside them: faults of a file that is not TOML, and secrets that settings name.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from kzconsumer.errors import ConfigError

# Why a text is not TOML: the place, the parser's reason and the likely meaning, without showing values.

_AT = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")
_ASSIGNED = re.compile(r"\s*(?P<key>[\w.\"-]+)\s*=\s*(?P<value>.*?)\s*")
_MAPPED = re.compile(r"\s*[\w\"-]+\s*:.*")
_PROPERTY = re.compile(r"(?m)^\s*(?:zookeeper\.connect|group\.id)\s*[=:]\s*[^\s\"']")


def toml_faults(text: str, source: str) -> Iterator[str]:
    """One line for each fault, up to one that leaves open where the next statement begins; none for valid TOML."""
    if _PROPERTY.search(text):
        yield (
            f"{source}: is a configuration of the original consumer, not TOML; translate it with"
            f" `kzconsumer config import {source} >group.toml`"
        )
        return
    lines = text.split("\n")
    while (fault := _first(lines)) is not None:
        reason, number, column = fault
        written = lines[number - 1] if number <= len(lines) else ""
        meant = _meant(written, reason)
        yield f"{source}:{number}:{column}: is not TOML: {reason}{f'; {meant}' if meant else ''}"
        if meant is None or not written.strip():
            return
        lines[number - 1] = ""


def _first(lines: list[str]) -> tuple[str, int, int] | None:
    """The parser's reason, line and column."""
    try:
        tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError as error:
        match = _AT.search(str(error))
        assert match is not None
        place = (int(match["line"]), int(match["column"])) if match["line"] else (len(lines), len(lines[-1]) + 1)
        return str(error)[: match.start()], *place
    return None


def _meant(line: str, reason: str) -> str | None:
    """What to write instead, for a statement that ends with its line."""
    if reason.startswith("Cannot"):
        return "this is given twice"
    if assigned := _ASSIGNED.fullmatch(line):
        key, value = assigned["key"], assigned["value"]
        if not value or value.startswith("#"):
            return f"{key} has no value"
        if value[0] not in "\"'[{":
            return f'text needs quotes: {key} = "..."'
        return None
    return "write key = value" if _MAPPED.fullmatch(line) else None


#: Of all groups on the machine: what a distribution or an image ships, read in the order of the files' names.
VENDOR = Path("/usr/lib/kzconsumer/conf.d")
#: KZCONSUMER__OFFSETS__COMMIT_INTERVAL is commit_interval of the table [offsets].
VARIABLE = "KZCONSUMER__"

Place = tuple[str, ...]
"""A key with the tables around it."""

_FAULT = re.compile(r'(?:\[(?P<table>[^\]]+)\])?(?: ?(?P<key>[\w."-]+)(?:\[\d+\])?)?:')


class Origin(msgspec.Struct, frozen=True):
    """Where a value was written."""

    layer: Literal["vendor", "file", "drop-in", "environment", "flag"]
    name: str
    """The path of the file, the name of the variable, the flag."""
    line: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}"


class Layers(msgspec.Struct, frozen=True):
    """All layers together. Tables of settings are merged; any other value replaces the one below it."""

    source: str
    """The group's file, as the place of a missing value."""
    tables: Mapping[str, object]
    origins: Mapping[Place, Origin]

    @contextmanager
    def named(self) -> Iterator[None]:
        """In faults of a ConfigError, replace the group's file by the real source of the value."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError([self._named(fault) for fault in error.faults]) from None

    def _named(self, fault: str) -> str:
        rest = fault.removeprefix(f"{self.source}: ")
        match = _FAULT.match(rest)
        if rest == fault or match is None:
            return fault
        place = tuple(f"{match['table'] or ''}.{match['key'] or ''}".strip(".").split("."))
        if match["key"]:
            origin = _exact(self.origins, place)
        else:  # of a whole table: named where all that it holds comes from one place
            inside = {each.name: each for at, each in self.origins.items() if at[: len(place)] == place}
            origin = next(iter(inside.values())) if len(inside) == 1 else None
            origin = msgspec.structs.replace(origin, line=None) if origin else None
        return fault if origin is None else f"{origin}: {rest}"


def read_layers(
    path: str | os.PathLike[str] | None,
    mergeable: Collection[Place],
    *,
    vendor: Path = VENDOR,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Layers:
    """Read the group's file, if there is one, and all other layers.

    Drop-ins are `<path>.d/*.toml`. `mergeable` are the tables that hold settings; a flag is `table.key=value`.
    Variables and flags hold TOML, or else text. `environment` is the process's own when left out. Raises ConfigError.
    """
    source = "settings" if path is None else os.fspath(path)
    faults: list[str] = []
    layers: list[tuple[Mapping[str, object], Mapping[Place, Origin]]] = []

    def add_file(layer: Literal["vendor", "file", "drop-in"], file: str) -> None:
        try:
            text = _text(file)
        except ConfigError as error:
            faults.extend(error.faults)
            return
        origins = {place: Origin(layer, file, line) for place, line in lines_of(text).items()}
        layers.append((tomllib.loads(text), origins))

    for file in sorted(vendor.glob("*.toml")):
        add_file("vendor", str(file))
    if path is not None:
        add_file("file", source)
        for file in sorted(Path(f"{source}.d").glob("*.toml")):
            add_file("drop-in", str(file))
    layers.append(_variables(os.environ if environment is None else environment, faults))
    layers.append(_flags(flags, faults))
    if faults:
        raise ConfigError(faults)

    tables: dict[str, object] = {}
    origins: dict[Place, Origin] = {}
    for content, places in layers:
        _lay_over(tables, content, (), places, origins, mergeable)
    return Layers(source, tables, origins)


def _text(source: str) -> str:
    """The text of a TOML file, without the byte order mark that some editors write. Raises ConfigError."""
    try:
        text = Path(source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{source}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{source}: is not UTF-8 text (byte {error.start})"]) from None
    if faults := list(toml_faults(text, source)):
        raise ConfigError(faults)
    return text


_CLOSES = re.compile(r"\]|\}|\"\"\"|\'\'\'")


def lines_of(text: str) -> dict[Place, int]:
    """The line on which each key of a TOML text begins: the parser does not tell.

    A statement of TOML ends at the end of a line; each is valid TOML by itself, and no proper beginning of one is. If
    it has several, the last one has what closes an array or a string: others are not tried, as there may be thousands.
    With these lines `Layers.named` replaces the `source` at the beginning of each fault's line.
    """
    found: dict[Place, int] = {}
    header: Place = ()
    lines: list[str] = []
    begin = 1
    for number, line in enumerate(text.split("\n"), 1):
        lines.append(line + "\n")
        if len(lines) > 1 and not _CLOSES.search(line):
            continue
        statement = "".join(lines)
        try:
            content = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        places = list(_leaves(content))
        if statement.lstrip().startswith("["):
            header = places[0]
            found.setdefault(header, begin)
        else:
            found.update({(*header, *place): begin for place in places})
        begin = number + 1
        lines.clear()
    return found


def _leaves(content: Mapping[str, Any], at: Place = ()) -> Iterator[Place]:
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            value = value[0]
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key)


def _variables(
    environment: Mapping[str, str], faults: list[str]
) -> tuple[Mapping[str, object], Mapping[Place, Origin]]:
    tables: dict[str, object] = {}
    origins: dict[Place, Origin] = {}
    for name in sorted(name for name in environment if name.startswith(VARIABLE)):
        place = tuple(name.removeprefix(VARIABLE).lower().split("__"))
        if not all(place) or not _put(tables, place, _value(environment[name])):
            faults.append(f"{name}: is not {VARIABLE} with a table and a key, such as {VARIABLE}GROUP__ID")
        origins[place] = Origin("environment", name)
    return tables, origins


def _flags(flags: Sequence[str], faults: list[str]) -> tuple[Mapping[str, object], Mapping[Place, Origin]]:
    tables: dict[str, object] = {}
    origins: dict[Place, Origin] = {}
    for flag in flags:
        key, equals, text = flag.partition("=")
        try:
            (place,) = _leaves(tomllib.loads(f"{key} = 0"))
        except (tomllib.TOMLDecodeError, ValueError):
            place = ()
        if not equals or not place or not _put(tables, place, _value(text)):
            faults.append(f"--set {key}: is not table.key=value, such as zookeeper.connect=zk1:2181")
        origins[place] = Origin("flag", f"--set {key.strip()}")
    return tables, origins


def _value(text: str) -> object:
    """TOML where it is that; else the text itself, so that it needs no quotes."""
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text


def _put(tables: dict[str, Any], place: Place, value: object) -> bool:
    for name in place[:-1]:
        tables = tables.setdefault(name, {})
        if not isinstance(tables, dict):
            return False
    tables[place[-1]] = value
    return True


def _lay_over(
    below: dict[str, Any],
    content: Mapping[str, object],
    at: Place,
    places: Mapping[Place, Origin],
    origins: dict[Place, Origin],
    mergeable: Collection[Place],
) -> None:
    for key, value in content.items():
        place = (*at, key)
        if isinstance(value, Mapping) and place in mergeable:
            if not isinstance(below.get(key), dict):
                below[key] = {}
                origins.pop(place, None)
            _lay_over(below[key], value, place, places, origins, mergeable)
            continue
        below[key] = value
        for inner in [each for each in origins if each[: len(place)] == place]:
            del origins[inner]
        origins[place] = _nearest(places, place)


def _exact(origins: Mapping[Place, Origin], place: Place) -> Origin | None:
    """Of the value that is, or holds, what is at `place`."""
    return next((origins[place[:n]] for n in range(len(place), 0, -1) if place[:n] in origins), None)


def _nearest(places: Mapping[Place, Origin], place: Place) -> Origin:
    """Of the statement that wrote the value at `place`, or the first part of it, or more than it."""
    parts = (origin for at, origin in places.items() if at[: len(place)] == place)
    origin = places.get(place) or next(parts, None) or _exact(places, place)
    assert origin is not None
    return origin


# Secrets are not in the settings, but in a file or an environment variable that these name.

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def read_secret(file: str | None, variable: str | None, name: str, where: str, faults: list[str]) -> bytes | None:
    """None if neither is given, or after adding a line to `faults` that begins with `where` and names the key."""
    if file is not None and variable is not None:
        faults.append(f"{where} {name}_env: cannot be given together with {name}_file")
    elif file is not None:
        return read_secret_file(file, f"{where} {name}_file", faults)
    elif variable is not None and not _VARIABLE.fullmatch(variable):
        faults.append(
            f"{where} {name}_env: is not the name of an environment variable; a {name} must not be written here"
        )
    elif variable is not None:
        secret = os.environb.get(os.fsencode(variable), b"")
        if secret:
            return secret
        faults.append(f"{where} {name}_env: the environment has no such variable, or an empty one")
    return None


def read_secret_file(file: str, setting: str, faults: list[str]) -> bytes | None:
    """Without the end of its line. None after adding a line to `faults` that begins with `setting`."""
    try:
        with open(file, "rb") as opened:  # and is not asked for by name again: it may be replaced at this moment
            secret = opened.read().removesuffix(b"\n").removesuffix(b"\r")
            mode = os.fstat(opened.fileno()).st_mode & 0o777
    except (OSError, ValueError) as error:
        faults.append(f"{setting}: cannot be read: {reason_of(error)}")
        return None
    if mode & 0o002:
        faults.append(f"{setting}: everybody may write it (mode {mode:03o}): chmod 600 {file}")
    elif secret:
        return secret
    else:
        faults.append(f"{setting}: is empty")
    return None


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, or a server cannot be reached, in words."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
