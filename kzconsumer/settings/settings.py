"""The group's file as one frozen struct, loaded from its layers.

Every key is in `config/group.reference.toml`, which a test compares. Loading opens no connection and loads no plugin.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import msgspec

from kzconsumer.errors import ConfigError
from kzconsumer.settings.layers import Layers, read_layers
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
from kzconsumer.settings.tables import Table, read_table, tables_of
from kzconsumer.settings.values import read_name


class _File(Table, frozen=True, kw_only=True):
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


class Settings(_File, frozen=True, kw_only=True):
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
        read = read_table(tables, _File, f"{source}:")
        return cls(**{name: getattr(read, name) for name in _File.__struct_fields__}, source=source)

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
    return read_layers(path, frozenset(tables_of(_File)), environment=environment, flags=flags)
