"""Contexts: named clusters of this user, one of which is the current one.

A context is a file of the group's format, in `$XDG_CONFIG_HOME/kzconsumer/contexts` (by default under `~/.config`). It
has what is the same for all groups of a cluster: `[zookeeper]` and `[brokers]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kzconsumer.errors import ConfigError, NotDoneError, NotFoundError
from kzconsumer.settings.layers import Layers
from kzconsumer.settings.settings import Settings, layers_of, toml_value

NO_GROUP = "console"


def folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME") or Path.home(), ".config")
    return Path(base, "kzconsumer", "contexts")


def names() -> list[str]:
    return sorted(file.stem for file in folder().glob("*.toml"))


def file_of(name: str) -> Path:
    """Raises NotFoundError, with the names there are."""
    if name not in names():
        known = ", ".join(names())
        hint = f"there are {known}" if known else "`kzconsumer context set` creates one"
        raise NotFoundError(f"there is no context {name}; {hint}")
    return folder() / f"{name}.toml"


def current() -> str | None:
    """Raises NotDoneError if it cannot be read."""
    file = _current_file()
    try:
        return file.read_text("utf-8").strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise NotDoneError(f"cannot read {file} ({why}): give --context NAME") from None


def use(name: str) -> None:
    """Make it the current one. Raises NotFoundError, NotDoneError."""
    file_of(name)
    _write(_current_file(), f"{name}\n")


def change(name: str, flags: Sequence[str]) -> Path:
    """Create the context or change settings of it; a flag is `table.key=value`.

    Raises ConfigError if the result is invalid, NotDoneError if it cannot be written.
    """
    file = folder() / f"{name}.toml"
    try:
        layers = layers_of(file if file.exists() else None, flags, {})
        cluster_settings(msgspec.structs.replace(layers, source=f"context {name}"))
    except ConfigError as error:  # the arguments are not those of an option
        raise ConfigError([fault.removeprefix("--set ") for fault in error.faults]) from None
    of_file = {place for place, origin in layers.origins.items() if origin.layer in ("file", "flag")}
    outside = sorted({place[0] for place in of_file} - {"zookeeper", "brokers"})
    if outside:
        raise ConfigError([f"[{table}]: a context has [zookeeper] and [brokers] only" for table in outside])
    values = [(".".join(place), value) for place, value in _leaves(layers.tables) if place in of_file]
    _write(file, "".join(f"{key} = {toml_value(value)}\n" for key, value in values))
    return file


def delete(name: str) -> str | None:
    """Returns the current context, None if that was the one. Raises NotFoundError, NotDoneError."""
    file = file_of(name)
    try:
        if current() == name:
            _current_file().unlink()
        file.unlink()
    except OSError as error:
        raise NotDoneError(f"cannot delete {error.filename} ({error.strerror})") from None
    return current()


def cluster_settings(layers: Layers) -> Settings:
    """The settings of a cluster, which need no group. Raises ConfigError."""
    group = layers.tables.get("group", {})
    if isinstance(group, Mapping) and "id" not in group:
        layers = msgspec.structs.replace(layers, tables={**layers.tables, "group": {**group, "id": NO_GROUP}})
    return Settings.of(layers)


def _current_file() -> Path:
    return folder().with_name("current-context")


def _leaves(tables: Mapping[str, object], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key), value


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(text, "utf-8")
        new.replace(file)
    except OSError as error:
        why = f"cannot write {file} ({error.strerror})"
        raise NotDoneError(f"{why}: set XDG_CONFIG_HOME to another directory") from None
