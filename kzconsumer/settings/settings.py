"""The group's file as one frozen struct, loaded from its layers, and shown as it is in effect.

Every key is in `config/group.reference.toml`, which a test compares. Loading opens no connection and loads no plugin.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kzconsumer.display import HIDDEN, is_secret, redacted
from kzconsumer.errors import ConfigError
from kzconsumer.settings.layers import Layers, Place, read_layers
from kzconsumer.settings.sections import (
    BatchSettings,
    BrokersSettings,
    FetchSettings,
    GroupSettings,
    LogSettings,
    OffsetsSettings,
    RejectedSettings,
    ServiceSettings,
    SinkSettings,
    StatusSettings,
    StopSettings,
    SubscriptionSettings,
    ZooKeeperSettings,
)
from kzconsumer.settings.table_reader import Table, keys_of, read_table, tables_of
from kzconsumer.settings.value_readers import read_name


class SettingsFile(Table, frozen=True, kw_only=True):
    """The tables of the file; those without a required key are optional."""

    zookeeper: ZooKeeperSettings
    brokers: BrokersSettings = BrokersSettings()
    group: GroupSettings
    subscription: SubscriptionSettings = SubscriptionSettings()
    offsets: OffsetsSettings = OffsetsSettings()
    fetch: FetchSettings = FetchSettings()
    batch: BatchSettings = BatchSettings()
    sink: SinkSettings | None = None
    rejected: RejectedSettings = RejectedSettings()
    stop: StopSettings = StopSettings()
    service: ServiceSettings = ServiceSettings()
    status: StatusSettings = StatusSettings()
    log: LogSettings = LogSettings()


class Settings(SettingsFile, frozen=True, kw_only=True):
    """All settings of one member, and their source. Each way of making them raises ConfigError, one line per fault."""

    source: str = "settings"
    """Begins every line about a fault."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Settings:
        """Read a TOML file with vendor files, drop-ins and environment variables."""
        return cls.of(layers_of(path))

    @classmethod
    def of(cls, layers: Layers) -> Settings:
        with layers.named():
            return cls.from_dict(layers.tables, source=layers.source)

    @classmethod
    def from_dict(cls, tables: Mapping[str, object], *, source: str = "settings") -> Settings:
        """From the file's tables as mappings, with values as in the file (`"10s"`, `"1MiB"`)."""
        read = read_table(tables, SettingsFile, f"{source}:")
        return cls(**{name: getattr(read, name) for name in SettingsFile.__struct_fields__}, source=source)

    def in_run(self, name: str) -> Settings:
        """These settings for the run of that name. Raises ConfigError for an invalid name."""
        where = "--run"
        try:
            return msgspec.structs.replace(
                self, subscription=msgspec.structs.replace(self.subscription, run=read_name(name))
            )
        except ValueError as error:
            raise ConfigError([f"{self.source}: {where} {name}: {error}"]) from None

    def require_subscription(self) -> SubscriptionSettings:
        """What to consume. Raises ConfigError if the file does not say it, or says it in two ways."""
        given = [name for name in ("topics", "include", "exclude") if getattr(self.subscription, name)]
        if not given:
            raise ConfigError([f"{self.source}: [subscription] topics: missing (or include, or exclude)"])
        if len(given) > 1:
            fault = f"{self.source}: [subscription] {given[1]}: cannot be given together with {given[0]}"
            raise ConfigError([fault])
        letters = self.rejected.topic
        if letters is not None and self.subscribes(letters):
            fault = f"{self.source}: [rejected] topic: {letters} is consumed by this group itself"
            raise ConfigError([fault])
        return self.subscription

    def subscribes(self, topic: str) -> bool:
        """Whether the file's subscription has a topic."""
        wanted = self.subscription
        return topic in wanted.topics or (wanted.filter is not None and wanted.filter.allows(topic))

    def require_sink(self) -> SinkSettings:
        """The sink to run. Raises ConfigError if the file names none."""
        if self.sink is None:
            raise ConfigError([f"{self.source}: [sink] plugin: missing"])
        return self.sink

    def require_daemon(self) -> SinkSettings:
        """The sink to run. Raises ConfigError if the file does not say what to consume or where to put it."""
        faults: list[str] = []
        for require in (self.require_subscription, self.require_sink):
            try:
                require()
            except ConfigError as error:
                faults += error.faults
        if faults:
            raise ConfigError(faults)
        return self.require_sink()


def layers_of(
    path: str | os.PathLike[str] | None, flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Layers:
    """The argument of `Settings.of`; a flag is `table.key=value`. Raises ConfigError for invalid TOML."""
    return read_layers(path, frozenset(tables_of(SettingsFile)), environment=environment, flags=flags)


# The effective configuration: every key, its value and where that comes from, with secrets hidden.

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
