"""Finds all faults of a daemon's configuration that can be found without a server.

A fault only prevents the checks that depend on the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import ConfigError, PluginError, SinkError
from kzconsumer.offsets.start_rules import require_storage
from kzconsumer.plugins import ASSIGNORS, load_chosen, require_extra
from kzconsumer.rejected import check_rejected
from kzconsumer.settings.layers import Layers
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Sink
from kzconsumer.status.access import load_token
from kzconsumer.zookeeper.credentials import load_access

#: Replaces required tables that have a fault, so that the other tables can be checked.
_STAND_INS: dict[str, Mapping[str, object]] = {"zookeeper": {"connect": "localhost"}, "group": {"id": "unknown"}}


def checked(layers: Layers, check_sink: Callable[[Settings], Sink], run: str | None = None) -> Settings:
    """A daemon's settings. Raises ConfigError with every fault, each with the line that it comes from.

    `check_sink` builds the sink; its ConfigError, PluginError and SinkError are faults. `run` is the name of `--run`.
    """
    with layers.named():
        settings, faulty, faults = _readable(layers)

        def sound(table: str, keys: str) -> bool:
            return faulty.isdisjoint((table, *(f"{table}.{key}" for key in keys.split())))

        def check(table: str, keys: str, found: Callable[[], object]) -> None:
            if sound(table, keys):
                faults.extend(_faults(found, settings.source))

        check("subscription", "topics include exclude", settings.require_subscription)
        if run is not None:
            check("subscription", "stop_at", lambda: settings.in_run(run))
        assignor = settings.group.assignor
        check("group", "assignor", lambda: load_chosen(ASSIGNORS, assignor, f"{settings.source}: [group] assignor"))
        storage = sound("offsets", "storage dual_commit") and sound("subscription", "stop_at")
        check("sink", "plugin options", lambda: _check_sink(settings, check_sink, storage))
        check("brokers", "security_protocol tls sasl", lambda: load_security(settings.brokers, settings.source))
        check("status", "token_file token_env", lambda: load_token(settings.status, settings.source))
        if settings.status.listen is not None:
            where = f"{settings.source}: [status] listen"
            check("status", "listen", lambda: require_extra(where, "status", "aiohttp", "prometheus_client"))
        check("zookeeper", "secure acl tls sasl digest", lambda: load_access(settings.zookeeper, settings.source))
        check("rejected", "policy classes topic directory", lambda: check_rejected(settings))
        if settings.log.format == "journald":
            from kzconsumer.logs.setup import require_journal

            def check_journal() -> None:
                require_extra(f"{settings.source}: [log] format", "journald", "logging_journald")
                require_journal(settings.source)

            check("log", "format", check_journal)
        if faults:
            raise ConfigError(list(dict.fromkeys(faults)))
        return settings if run is None else settings.in_run(run)


def _readable(layers: Layers) -> tuple[Settings, set[str], list[str]]:
    """The settings without faulty keys, the faulty ones (`table`, `table.key`), and all faults."""
    source = layers.source
    try:
        return Settings.from_dict(layers.tables, source=source), set(), []
    except ConfigError as error:
        faults = list(error.faults)
    faulty: set[str] = set()
    kept: dict[str, Mapping[str, object]] = {}
    for name, table in layers.tables.items():
        part = dict(_STAND_INS.get(name, {}))
        left = dict(table) if isinstance(table, Mapping) else {}
        for _ in range(2):  # some keys are valid only beside others, some two only together
            for keys in [*combinations(left, 1), *combinations(left, 2)]:
                if left.keys() >= set(keys) and _reads({name: part | {key: left[key] for key in keys}}):
                    part |= {key: left.pop(key) for key in keys}
        faulty.update(f"{name}.{key}" for key in left)
        if isinstance(table, Mapping) and _reads({name: part}):
            kept[name] = part
        else:
            faulty.add(name)
    return Settings.from_dict(_STAND_INS | kept, source=source), faulty, faults


def _reads(tables: Mapping[str, Any]) -> bool:
    try:
        Settings.from_dict(_STAND_INS | dict(tables))
    except ConfigError:
        return False
    return True


def _check_sink(settings: Settings, check_sink: Callable[[Settings], Sink], storage: bool) -> None:
    settings.require_sink()
    can = capabilities(check_sink(settings))
    if storage:
        in_run = settings.subscription.stop_at is not None
        require_storage(settings, replayable=can.destination is not None, in_run=in_run)


def _faults(check: Callable[[], object], source: str) -> tuple[str, ...]:
    try:
        check()
    except ConfigError as error:
        return error.faults
    except PluginError as error:
        return (f"{source}: [sink] plugin: {error}",)
    except SinkError as error:
        return (f"{source}: {error}",)
    return ()
