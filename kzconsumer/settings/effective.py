"""The effective configuration: every key, its value and where that comes from, with secrets hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kzconsumer.redaction import HIDDEN, is_secret, redacted
from kzconsumer.settings.layers import Layers, Place
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import keys_of

_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class Effective(msgspec.Struct, frozen=True):
    """One key. `value` is None if nothing is set and there is no default."""

    key: str
    value: Any
    origin: str
    """default, vendor, file, drop-in, environment or flag."""
    source: str | None = None
    """The file, the variable or the flag."""
    line: int | None = None

    @property
    def written(self) -> str:
        """The source in a few characters."""
        return self.origin if self.source is None else self.source + (f":{self.line}" if self.line else "")


def effective(settings: Settings, layers: Layers) -> list[Effective]:
    """In the order of the reference file."""
    found: list[Effective] = []
    for place, _, default in keys_of(settings):
        if place == ("source",):
            continue
        value = _at(layers.tables, place)
        inside = [at for at in layers.origins if at[: len(place)] == place]
        if not inside:
            found.append(Effective(_dotted(place), redacted(default), "default"))
        for at in inside:  # more than one in a table whose keys only a plugin knows
            origin = layers.origins[at]
            value = _at(layers.tables, at)
            shown = HIDDEN if any(is_secret(name) for name in at) else redacted(value)
            found.append(Effective(_dotted(at), shown, origin.layer, origin.name, origin.line))
    return found


def as_toml(values: Sequence[Effective]) -> Iterator[str]:
    """Lines of an equivalent file, each value followed by its origin."""
    tables: dict[str, list[tuple[str, Effective]]] = {}
    for each in values:
        *above, key = _places(each.key)
        tables.setdefault(".".join(map(_name, above)), []).append((key, each))
    rows: list[tuple[str, str]] = []
    for table, inside in tables.items():
        rows.append((f"\n[{table}]" if rows else f"[{table}]", ""))
        for key, each in inside:
            unset = each.value is None or each.value == {}
            text = f"#{_name(key)} =" if unset else f"{_name(key)} = {toml_value(each.value)}"
            rows.append((text, "not set" if unset and each.origin == "default" else each.written))
    width = min(max((len(text) for text, _ in rows if _), default=0), 60)
    for text, origin in rows:
        yield f"{text.ljust(width)}  # {origin}" if origin else text


def _at(tables: Mapping[str, Any], place: Place) -> Any:
    value: Any = tables
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _dotted(place: Place) -> str:
    return ".".join(map(_name, place))


def _places(key: str) -> list[str]:
    return [json.loads(part) if part.startswith('"') else part for part in re.findall(r'"(?:\\.|[^"\\])*"|[^."]+', key)]


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def toml_value(value: Any) -> str:
    match value:
        case Mapping():
            return f"{{ {', '.join(f'{_name(str(name))} = {toml_value(inner)}' for name, inner in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case bool():
            return "true" if value else "false"
    return str(value)
