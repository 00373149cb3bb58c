"""What each key of the file accepts, and what is said of everything else: `setting_values.txt` has all of it.

Keys of one type are listed together. After an intended change, `python -m
tests.core.plain.test_setting_values` rewrites the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from kzconsumer.errors import ConfigError
from kzconsumer.model import MOST_STREAMS
from kzconsumer.settings.settings import Settings, SettingsFile
from kzconsumer.settings.table_reader import keys_of

PAGE = Path(__file__).with_name("setting_values.txt")
REQUIRED: Mapping[str, Mapping[str, Any]] = {
    "zookeeper": {"connect": "zk"},
    "group": {"id": "g"},
    "sink": {"plugin": "jsonlines"},
    "rejected": {"policy": "dead-letter", "directory": "d"},
    "status": {"token_env": "T"},
    "subscription": {"stop_at": "end"},
}
"""With which every other key may be given."""
LONG = "x" * 250
VALUES: tuple[Any, ...] = (
    *(True, -1, 0, 1, 2**31 - 1, 2**31, MOST_STREAMS, MOST_STREAMS + 1, 0.5),
    *(
        "",
        "x",
        "A-b.c_9",
        "x:1",
        "x:65536",
        "unix:/x",
        "x y",
        "ä",
        "0s",
        "1ms",
        "1.5h",
        "597h",
        "0B",
        "3KiB",
        "2MB",
        "2GiB",
    ),
    *("2GiB", "zk1:1,[::1]:2/x", "zk/x/", "x" * 249, LONG, "(?<x", "end", "latest", "2026-01-31T12:00:00Z"),
    *(datetime(2026, 1, 31, 12, 0, 0, 1, UTC), [], ["x"], ["x:1", "x:02"], {}, {"x": 1}, {"x": 0}, {"x": "skip"}),
)


def page() -> str:
    """A paragraph for the keys of each type, and of each table that has a rule for several of its keys."""
    alike: dict[str, list[tuple[str, ...]]] = {}
    for place, kind, ruled in fields(SettingsFile):
        alike.setdefault(f"{kind} {place[:-1] if ruled else ''}", []).append(place)
    return "\n".join("\n".join([*map(".".join, keys), *lines(keys[0]), ""]) for keys in alike.values())


def fields(table: type[msgspec.Struct], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object, bool]]:
    """The place of each key, its type, and whether its table has a rule for several keys."""
    described = inspect.type_info(table)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        kinds = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        place = (*above, field.encode_name)
        if isinstance(kinds[0], inspect.StructType):
            yield from fields(kinds[0].cls, place)
        else:
            yield place, field.type, hasattr(table, "__post_init__")


def lines(place: tuple[str, ...]) -> Iterator[str]:
    """Values that are accepted, and what is said of others; the values of the most frequent fault are left out."""
    faults: dict[str, list[str]] = {}
    plainly = []
    for value in VALUES:
        text = str(value) if isinstance(value, datetime) else json.dumps(value, ensure_ascii=False)
        name = f'"x" * {len(value)}' if isinstance(value, str) and len(value) > 40 else text
        try:
            settings = Settings.from_dict(with_value(REQUIRED, place, value))
        except ConfigError as error:
            said = "; ".join(error.faults).removeprefix(f"settings: [{'.'.join(place[:-1])}]")
            said = said.removeprefix(f" {place[-1]}").removeprefix(": ")
            for each in (text, f"{text[:77]}..."):
                said = said.removeprefix(each).replace(f"[{each}]", "[VALUE]")
            faults.setdefault(said.strip(), []).append(name)
            continue
        _, read, written = next(at for at in keys_of(settings) if at[0] == place)
        if (read, written) == (value, value):
            plainly.append(name)
        elif name == text:
            yield f"  {name} is {json.dumps(read)}, written {json.dumps(written)}"
    if plainly:
        yield f"  accepted: {' '.join(plainly)}"
    most = max(faults, key=lambda said: len(faults[said]))
    yield f"  {most}"
    yield from (f"  {said}: {' '.join(of)}" for said, of in faults.items() if said != most)


def with_value(tables: Mapping[str, Any], place: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = place
    return {**tables, first: with_value(tables.get(first, {}), tuple(rest), value) if rest else value}


def test_what_each_key_accepts() -> None:
    assert page() == PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(page())
