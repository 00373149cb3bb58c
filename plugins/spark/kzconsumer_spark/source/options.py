"""The options of `GroupSource`: the path of a group's file, or the few settings that most groups need."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer.rejected.rejects import check_rejected
from kzconsumer.settings.layers import Origin
from kzconsumer.settings.settings import Settings, layers_of
from kzconsumer.settings.tables import nearest
from kzconsumer_spark.executors.timestamps import TaskPolicy
from kzconsumer_spark.source.bounds import START, UNTIL, Bounds, read_bounds

WHERE: Final = "GroupSource"
_CONFIG: Final = "config"
_NEEDED: Final = {"zookeeper.connect": "zookeeper.connect", "group.id": "group.id", "topics": "subscription.topics"}
_BROKERS: Final = "bootstrap.servers"
_INSTEAD: Final = {**_NEEDED, _BROKERS: "brokers.bootstrap"}
_BATCHES: Final = {"maxRecordsPerBatch": "batch.max_records", "maxTriggerDelay": "batch.max_time"}
_LEAST: Final = "minRecordsPerBatch"
_HEADERS: Final = "includeHeaders"
_TASKS: Final = "minPartitions"
_STREAM: Final = (*_BATCHES, _LEAST)
_KNOWN: Final = {name.lower(): name for name in (_CONFIG, *_INSTEAD, *_STREAM, _HEADERS, _TASKS, *START, *UNTIL)}
_SPARKS: Final = {
    "subscribe": "topics",
    "subscribepattern": f"[subscription] include in a file that option {_CONFIG} names",
    "maxoffsetspertrigger": "maxRecordsPerBatch",
    "minoffsetspertrigger": _LEAST,
    "failondataloss": f'[offsets] reset, "fail" or not, in a file that option {_CONFIG} names',
    "startingoffsetsbytimestamp": START[1],
    "endingoffsetsbytimestamp": UNTIL[1],
}
"""Options of Spark's own Kafka source, and what they are here."""
_NO_GROUP: Final = {"group.id": "spark"}  # brokers see it as the client id


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """With `least` records a batch is due. `tasks`: into how many it is divided at least, if it is large enough.

    `bounds` are those of a batch read.
    """

    settings: Settings
    least: int
    headers: bool
    tasks: int
    bounds: Bounds
    given: frozenset[str]

    @property
    def task_policy(self) -> TaskPolicy:
        """What tasks do with records that Spark cannot hold."""
        return TaskPolicy(rejected=self.settings.rejected, group=self.settings.group.id)

    def require_streaming(self) -> None:
        """Raises ConfigError for options of batch reads, which `spark.read` takes."""
        self._refuse((*START, *UNTIL), "is for spark.read: a streaming query begins where its group is")

    def require_batch(self) -> None:
        """Raises ConfigError for options of streaming queries, which `spark.readStream` takes."""
        self._refuse(_STREAM, "is for spark.readStream")

    def _refuse(self, names: Iterable[str], why: str) -> None:
        if faults := [f"{WHERE}: option {name}: {why}" for name in names if name in self.given]:
            raise ConfigError(faults)


def require_columns(schema: StructType) -> None:
    """Of a schema that the user gives: some of the columns, with their types. Raises ConfigError."""
    for each in schema:
        kind = each.dataType.simpleString()
        if each.name not in COLUMNS:
            fault = f'there is no column "{each.name}"; there are {", ".join(COLUMNS)}'
            raise ConfigError([f"{WHERE}: schema: {fault}"])
        if kind != COLUMNS[each.name]:
            fault = f"column {each.name} is {COLUMNS[each.name]}, not {kind}: cast it in a select"
            raise ConfigError([f"{WHERE}: schema: {fault}"])


COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
"""With the types of `ranges.spool_reader.SCHEMA`."""


def read_options(given: Mapping[str, str]) -> SourceOptions:
    """From Spark's options, whose names it has in lower case. Reads the file. Raises ConfigError, a line per fault."""
    if unknown := sorted(given.keys() - _KNOWN.keys()):
        raise ConfigError([_unknown(name) for name in unknown])
    options = {_KNOWN[name]: value for name, value in given.items()}
    chosen = frozenset(options)
    bounds = read_bounds(options, WHERE)
    if _CONFIG not in options and any(name in options for name in START):
        options = _NO_GROUP | options
    config = options.get(_CONFIG)
    if config is not None and (both := [name for name in _INSTEAD if name in options]):
        raise ConfigError([f"{WHERE}: option {name}: is in the file that option {_CONFIG} names" for name in both])
    if config is None and (missing := [name for name in _NEEDED if name not in options]):
        raise ConfigError(
            [f"{WHERE}: option {name}: missing (or option {_CONFIG}, a group's file)" for name in missing]
        )
    settings = _settings(config, options)
    if faults := [*_unsupported(settings)]:
        raise ConfigError([f"{settings.source}: {fault}" for fault in faults])
    most = settings.batch.max_records
    least = _positive(_LEAST, options.get(_LEAST, str(most)))
    if least > most:
        raise ConfigError([f"{WHERE}: option {_LEAST}: {least} is more than maxRecordsPerBatch, {most}"])
    return SourceOptions(
        settings=settings,
        least=least,
        headers=_boolean(_HEADERS, options),
        tasks=_positive(_TASKS, options.get(_TASKS, "1")),
        bounds=bounds,
        given=chosen,
    )


def _settings(config: str | None, options: Mapping[str, str]) -> Settings:
    places = {place: name for name, place in (_INSTEAD | _BATCHES).items() if name in options}
    flags = [f"{place}={_value(name, options[name])}" for place, name in places.items()]
    layers = layers_of(config, flags)
    origins = {
        place: Origin("flag", f"{WHERE}: option {places['.'.join(place[:2])]}") if origin.layer == "flag" else origin
        for place, origin in layers.origins.items()
    }
    settings = Settings.of(msgspec.structs.replace(layers, origins=origins))
    settings.require_subscription()
    check_rejected(settings)
    return settings


def _value(name: str, value: str) -> str:
    """As TOML: a group may be named 123."""
    if name == "topics":
        topics = dict.fromkeys(topic.strip() for topic in value.split(","))
        return "{" + ", ".join(f"{json.dumps(topic)} = 1" for topic in topics) + "}"
    if name == _BROKERS:
        return json.dumps([address.strip() for address in value.split(",")])
    return json.dumps(value) if name in _INSTEAD else value


def _unsupported(settings: Settings) -> list[str]:
    faults = []
    if settings.sink is not None:
        faults.append("[sink]: the query has a sink of its own; this is a file for kzconsumer run")
    if settings.subscription.stop_at is not None:
        faults.append("[subscription] stop_at: use trigger(availableNow=True) in place of it")
    if settings.fetch.on_corrupt != "fail":
        faults.append('[fetch] on_corrupt: must be "fail", since tasks fetch the records')
    if settings.brokers.sasl.mechanism == "GSSAPI":
        faults.append("[brokers.sasl] mechanism: tasks have no Kerberos tickets: use another listener and mechanism")
    if settings.fetch.rate_limit is not None:
        faults.append("[fetch] rate_limit: cannot be used, since tasks fetch the records")
    return faults


def _boolean(name: str, options: Mapping[str, str]) -> bool:
    value = options.get(name, "false").lower()
    if value not in ("true", "false"):
        raise ConfigError([f'{WHERE}: option {name}: "{value}" is not true or false'])
    return value == "true"


def _positive(name: str, value: str) -> int:
    if not value.isdecimal() or not int(value):
        raise ConfigError([f'{WHERE}: option {name}: "{value}" is not a number above 0'])
    return int(value)


def _unknown(name: str) -> str:
    if name in _SPARKS:
        return f"{WHERE}: option {name}: unknown; use {_SPARKS[name]}"
    near = nearest(name, _KNOWN)
    hint = f"did you mean {_KNOWN[near]}?" if near is not None else f"there are {', '.join(_KNOWN.values())}"
    return f"{WHERE}: option {name}: unknown; {hint}"
