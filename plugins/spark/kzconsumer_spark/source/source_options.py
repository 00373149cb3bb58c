"""The options of `GroupSource`: a group's file, or the few settings that most groups need; bounds of a batch read."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio
import msgspec
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError, OffsetLostError
from kzconsumer.fetcher.range_reader import ClusterReader, range_reader
from kzconsumer.model import Broker, OffsetRange, TopicPartition, checked_time
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.cluster import short_session
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.rejected import check_rejected
from kzconsumer.settings.layers import Origin
from kzconsumer.settings.settings import Settings, layers_of
from kzconsumer.settings.table_reader import nearest
from kzconsumer_spark.executors.fetching import TaskPolicy

# A batch read begins and ends where options of Spark's own Kafka source say, or at the group's committed offsets.

Word: TypeAlias = Literal["earliest", "latest", "committed"]
Bound: TypeAlias = Word | int | Mapping[TopicPartition, int]
"""A word, a time in ms since 1970, or offsets, of which -2 is the earliest and -1 the latest."""

START: Final = ("startingOffsets", "startingTimestamp")
UNTIL: Final = ("endingOffsets", "endingTimestamp")
_EARLIEST: Final = -2
_LATEST: Final = -1


class Bounds(msgspec.Struct, frozen=True):
    """`first` belongs to what is read, `until` does not."""

    first: Bound = "committed"
    until: Bound = "latest"


def read_bounds(options: Mapping[str, str], where: str) -> Bounds:
    """Raises ConfigError."""
    twice = [names for names in (START, UNTIL) if options.keys() >= set(names)]
    faults = [f"{where}: option {by_time}: {by_offset} is given, too" for by_offset, by_time in twice]
    try:
        first = _bound(START, options, ("earliest", "committed")) or Bounds().first
        until = _bound(UNTIL, options, ("latest",)) or Bounds().until
    except ValueError as error:
        faults.append(f"{where}: {error}")
    if faults:
        raise ConfigError(faults)
    if isinstance(first, int) and isinstance(until, int) and first > until:
        raise ConfigError([f"{where}: option {START[1]}: {first} is after {UNTIL[1]}, {until}"])
    return Bounds(first, until)


def _bound(names: tuple[str, str], options: Mapping[str, str], words: tuple[Word, ...]) -> Bound | None:
    by_offset, by_time = names
    if (ms := options.get(by_time)) is not None:
        if not ms.isdecimal():
            raise ValueError(f'option {by_time}: "{ms}" is not a number of milliseconds since 1970')
        try:
            return checked_time(int(ms))
        except ValueError as error:
            raise ValueError(f"option {by_time}: {ms} {error}") from None
    text = options.get(by_offset)
    for word in words:
        if text == word:
            return word
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.DecodeError:
        known = " or ".join(f'"{word}"' for word in words)
        raise ValueError(f'option {by_offset}: "{text}" is not {known}, nor JSON as {{"orders":{{"0":23}}}}') from None
    return {TopicPartition(topic, n): at for topic, offsets in found.items() for n, at in offsets.items()}


class Between(NamedTuple):
    """`brokers` know the leaders; `ids` and `epochs` are those of the logs of which the ranges are (`RangeReader`)."""

    ranges: list[OffsetRange]
    brokers: Sequence[Broker]
    ids: Mapping[str, str]
    epochs: Mapping[TopicPartition, int]


def ranges_between(settings: Settings, bounds: Bounds) -> Between:
    """What there is between the bounds, for each partition of the subscription. Blocks.

    Raises OffsetLostError for offsets that are not in the log, ConfigError, and as `range_reader` and its calls.
    """
    return anyio.run(_ranges, settings, bounds)


async def _ranges(settings: Settings, bounds: Bounds) -> Between:
    async with range_reader(settings) as reader:
        partitions = await reader.partitions(settings.subscription)
        # Before the logs: offsets of a topic that is created again meanwhile are then refused, and not read as its own.
        ids = await reader.ids({each.topic for each in partitions})
        logs = await reader.logs(partitions)
        first = await _offsets(START[0], bounds.first, settings, reader, logs)
        until = await _offsets(UNTIL[0], bounds.until, settings, reader, logs)
        epochs = await reader.epochs(partitions)
        brokers = await reader.brokers()
    found = []
    for each in partitions:
        begin, end = logs[each]
        for offset in (first[each], until[each]):
            if not begin <= offset <= end:
                ends = f"ends at {end}"
                if settings.fetch.isolation == "read_committed":
                    ends = f"its committed records end at {end} ([fetch] isolation)"
                raise OffsetLostError(f"{each}: the log has no offset {offset}; it begins at {begin} and {ends}")
        if first[each] > until[each] and bounds.first != "committed":
            raise ConfigError([f"{each}: the read would begin at offset {first[each]}, behind its end {until[each]}"])
        found.append(OffsetRange(*each, first[each], max(first[each], until[each])))
    return Between([each for each in found if each.first < each.until], brokers, ids, epochs)


async def _offsets(
    option: str, bound: Bound, settings: Settings, reader: ClusterReader, logs: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, int]:
    ends = {each: end for each, (_, end) in logs.items()}
    if isinstance(bound, int):
        return _no_later(await reader.at_time(logs.keys(), bound), ends)
    if not isinstance(bound, str):
        if missing := sorted(logs.keys() - bound.keys()):
            hint = f"{_EARLIEST} is the earliest, {_LATEST} the latest"
            raise ConfigError([f"{WHERE}: option {option}: {missing[0]} is missing ({hint})"])
        if others := sorted(bound.keys() - logs.keys()):
            raise ConfigError([f"{WHERE}: option {option}: {others[0]} is no partition of the topics"])
        given = {each: bound[each] for each in logs}
    elif bound == "committed":
        given = _no_later(await _committed(settings, reader, logs.keys()), ends)
    else:
        given = dict.fromkeys(logs, _EARLIEST if bound == "earliest" else _LATEST)
    named = {each: {_EARLIEST: begin, _LATEST: end} for each, (begin, end) in logs.items()}
    return {each: named[each].get(at, at) for each, at in given.items()}


def _no_later(offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Not beyond the ends of the logs, which were read before: meanwhile the logs grow, and the group commits."""
    return {each: min(at, ends[each]) for each, at in offsets.items()}


async def _committed(
    settings: Settings, reader: ClusterReader, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """What the group has stored in ZooKeeper; without an offset of the present topic, as `[offsets] reset` says."""
    if settings.offsets.storage == "kafka":
        raise ConfigError([f"{settings.source}: [offsets] storage: kafka cannot be read here, give startingOffsets"])
    async with short_session(settings.zookeeper) as session:
        offsets = ZooKeeperOffsetStorage(session, GroupPaths(settings.group.id))
        known = await reader.known_incarnations({each.topic for each in partitions})
        stored = await offsets.stored_for({each: known[each.topic] for each in partitions if each.topic in known})
        epochs = await offsets.leader_epochs(stored)
    await reader.require_logs(
        {each: (at, epochs[each]) for each, at in stored.items()}, f"{WHERE}: option {START[0]} says where to begin"
    )
    if settings.offsets.reset == "fail" and (without := [each for each in partitions if each not in stored]):
        raise OffsetLostError(f"{without[0]}: group {settings.group.id} has no offset, and [offsets] reset is fail")
    reset = _EARLIEST if settings.offsets.reset == "smallest" else _LATEST
    return {each: stored.get(each, reset) for each in partitions}


WHERE: Final = "GroupSource"
_CONFIG: Final = "config"
_NEEDED: Final = {"zookeeper.connect": "zookeeper.connect", "group.id": "group.id", "topics": "subscription.topics"}
_BROKERS: Final = "bootstrap.servers"
_INSTEAD: Final = {**_NEEDED, _BROKERS: "brokers.bootstrap"}
_BATCHES: Final = {
    "maxRecordsPerBatch": "batch.max_records",
    "maxBytesPerBatch": "batch.max_bytes",
    "maxTriggerDelay": "batch.max_time",
}
_LEAST: Final = "minRecordsPerBatch"
_HEADERS: Final = "includeHeaders"
_TASKS: Final = "minPartitions"
_STREAM: Final = (*_BATCHES, _LEAST)
_KNOWN: Final = {name.lower(): name for name in (_CONFIG, *_INSTEAD, *_STREAM, _HEADERS, _TASKS, *START, *UNTIL)}
_SPARKS: Final = {
    "subscribe": "topics",
    "assign": "topics, whose partitions the group assigns",
    "subscribepattern": f"[subscription] include in a file that option {_CONFIG} names",
    "maxoffsetspertrigger": "maxRecordsPerBatch",
    "minoffsetspertrigger": _LEAST,
    "failondataloss": f'[offsets] reset, "fail" or not, in a file that option {_CONFIG} names',
    "startingoffsetsbytimestamp": START[1],
    "endingoffsetsbytimestamp": UNTIL[1],
}
"""Options of Spark's own Kafka source, and what they are here."""
_CLIENT: Final = "kafka."
"""How its options for Kafka's client begin."""
_NO_GROUP: Final = {"group.id": "spark"}  # brokers see it as the client id


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """With `least` records a batch is due. `tasks`: into how many it is divided at least, if it is large enough.

    None is the default of `split`. `bounds` are those of a batch read.
    """

    settings: Settings
    least: int
    headers: bool
    tasks: int | None
    bounds: Bounds
    given: frozenset[str]

    @property
    def task_policy(self) -> TaskPolicy:
        """What tasks do with records that Spark cannot hold."""
        return TaskPolicy(rejected=self.settings.rejected, group=self.settings.group.id)

    def require_streaming(self) -> None:
        """Raises ConfigError for options of batch reads, which `spark.read` takes."""
        why = "is for spark.read: a streaming query begins at the group's offsets, which kzconsumer offsets reset sets"
        self._refuse((*START, *UNTIL), why)

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
"""With the types of `ranges.batch.SCHEMA`."""


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
    most, _ = settings.batch.most("ranges")
    least = _positive(_LEAST, options.get(_LEAST, str(most)))
    if least > most:
        raise ConfigError([f"{WHERE}: option {_LEAST}: {least} is more than maxRecordsPerBatch, {most}"])
    return SourceOptions(
        settings=settings,
        least=least,
        headers=_boolean(_HEADERS, options),
        tasks=_positive(_TASKS, options[_TASKS]) if _TASKS in options else None,
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
    if (near := nearest(name, _KNOWN)) is not None:
        hint = f"did you mean {_KNOWN[near]}?"
    elif name.startswith(_CLIENT):
        hint = f"use [brokers] and [fetch] in a file that option {_CONFIG} names"
    else:
        hint = f"there are {', '.join(_KNOWN.values())}"
    return f"{WHERE}: option {name}: unknown; {hint}"
