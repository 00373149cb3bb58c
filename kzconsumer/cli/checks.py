"""All faults of a daemon's configuration that can be found without a server, in one pass.

`run` calls it before it starts anything and again at SIGHUP, `check-config` only calls it. A fault in one table does
not hide those of another, nor those of the plugins that its own table names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kzconsumer.config import Settings
from kzconsumer.errors import ConfigError, PluginError, SinkFailed
from kzconsumer.network.security import load_security
from kzconsumer.offsets.authority import require_storage
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.rejects.rejects import check_rejected
from kzconsumer.setting_layers import Layers
from kzconsumer.sinks.interface import Sink
from kzconsumer.sinks.replayable import destination_of
from kzconsumer.status.access import load_token
from kzconsumer.zookeeper.access import load_access

#: Replaces required tables that have a fault, so that the other tables can be checked.
_STAND_INS: dict[str, dict[str, object]] = {"zookeeper": {"connect": "localhost"}, "group": {"id": "unknown"}}
#: Still used of a table with a fault: plugins are checked whatever stands beside their names.
_OF_PLUGINS = {"group": ("assignor",), "sink": ("plugin", "options")}


def checked(layers: Layers, check_sink: Callable[[Settings], Sink], run: str | None = None) -> Settings:
    """A daemon's settings. Raises ConfigError with every fault, each with the line that it comes from.

    `check_sink` builds the sink; its ConfigError, PluginError and SinkFailed are faults. `run` is the name of `--run`.
    """
    with layers.named():
        settings, faulty, faults = _readable(layers)

        def check(tables: str, found: Callable[[], object]) -> None:
            if faulty.isdisjoint(tables.split()):
                faults.extend(_faults(found, settings.source))

        check("subscription rejected", settings.require_subscription)
        if run is not None:
            check("subscription", lambda: settings.in_run(run))
        check("", lambda: load_chosen(ASSIGNORS, settings.group.assignor, f"{settings.source}: [group] assignor"))
        if settings.sink is not None or "sink" not in faulty:
            check("", lambda: _check_sink(settings, check_sink, faulty))
        check("brokers", lambda: load_security(settings.brokers, settings.source))
        check("status", lambda: load_token(settings.status, settings.source))
        check("zookeeper", lambda: load_access(settings.zookeeper, settings.source))
        check("rejected", lambda: check_rejected(settings))
        if settings.log.format == "journald":
            from kzconsumer.journal import require_journal

            check("log", lambda: require_journal(settings.source))
        if faults:
            raise ConfigError(list(dict.fromkeys(faults)))
        return settings if run is None else settings.in_run(run)


def _readable(layers: Layers) -> tuple[Settings, set[str], list[str]]:
    """The settings without the tables that have a fault, the names of those, and all their faults."""
    source = layers.source
    try:
        return Settings.from_dict(layers.tables, source=source), set(), []
    except ConfigError as error:
        faults = list(error.faults)
    faulty = _STAND_INS.keys() - layers.tables.keys()
    kept: dict[str, object] = {}
    for name, table in layers.tables.items():
        if _reads({name: table}):
            kept[name] = table
            continue
        faulty.add(name)
        if name in _OF_PLUGINS and isinstance(table, Mapping):
            part = _STAND_INS.get(name, {}) | {key: table[key] for key in _OF_PLUGINS[name] if key in table}
            if _reads({name: part}):
                kept[name] = part
    return Settings.from_dict(_STAND_INS | kept, source=source), faulty, faults


def _reads(tables: Mapping[str, Any]) -> bool:
    try:
        Settings.from_dict(_STAND_INS | dict(tables))
    except ConfigError:
        return False
    return True


def _check_sink(settings: Settings, check_sink: Callable[[Settings], Sink], faulty: set[str]) -> None:
    chosen = settings.require_sink()
    destination = destination_of(chosen.plugin, check_sink(settings))
    if faulty.isdisjoint(("offsets", "subscription")):
        in_run = settings.subscription.stop_at is not None
        require_storage(settings, replayable=destination is not None, in_run=in_run)


def _faults(check: Callable[[], object], source: str) -> tuple[str, ...]:
    try:
        check()
    except ConfigError as error:
        return error.faults
    except PluginError as error:
        return (f"{source}: [sink] plugin: {error}",)
    except SinkFailed as error:
        return (f"{source}: {error}",)
    return ()
