"""Where a batch read begins and ends: the options of Spark's own Kafka source, and the group's committed offsets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import anyio
import msgspec

from kzconsumer.errors import ConfigError, OffsetLostError
from kzconsumer.fetcher.range_reader import ClusterReader, range_reader
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.registry.nodes import of_earlier_topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.sessions import short_session
from kzconsumer.settings.settings import Settings

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
        return int(ms)
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
        first = await _offsets(bounds.first, settings, reader, logs)
        until = await _offsets(bounds.until, settings, reader, logs)
        epochs = await reader.epochs(partitions)
        brokers = await reader.brokers()
    found = []
    for each in partitions:
        begin, end = logs[each]
        for offset in (first[each], until[each]):
            if not begin <= offset <= end:
                raise OffsetLostError(f"{each}: the log has no offset {offset}; it begins at {begin} and ends at {end}")
        if first[each] > until[each] and bounds.first != "committed":
            raise ConfigError([f"{each}: the read would begin at offset {first[each]}, behind its end {until[each]}"])
        found.append(OffsetRange(*each, first[each], max(first[each], until[each])))
    return Between([each for each in found if each.first < each.until], brokers, ids, epochs)


async def _offsets(
    bound: Bound, settings: Settings, reader: ClusterReader, logs: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, int]:
    if isinstance(bound, int):
        return await reader.at_time(logs.keys(), bound)
    if not isinstance(bound, str):
        if missing := sorted(logs.keys() - bound.keys()):
            raise ConfigError([f"offsets are given for some partitions, and not for {missing[0]}"])
        if others := sorted(bound.keys() - logs.keys()):
            raise ConfigError([f"offsets are given for {others[0]}, which is no partition of the topics"])
        given = {each: bound[each] for each in logs}
    elif bound == "committed":
        given = await _committed(settings, reader, logs.keys())
    else:
        given = dict.fromkeys(logs, _EARLIEST if bound == "earliest" else _LATEST)
    named = {each: {_EARLIEST: begin, _LATEST: end} for each, (begin, end) in logs.items()}
    return {each: named[each].get(at, at) for each, at in given.items()}


async def _committed(
    settings: Settings, reader: ClusterReader, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """What the group has stored in ZooKeeper; without an offset of the present topic, as `[offsets] reset` says."""
    if settings.offsets.storage == "kafka":
        raise ConfigError([f"{settings.source}: [offsets] storage: kafka cannot be read here, give startingOffsets"])
    async with short_session(settings.zookeeper) as session:
        offsets = ZooKeeperOffsetStorage(session, GroupPaths(settings.group.id))
        written, found = await offsets.last_writes(partitions), await offsets.stored(partitions)
    known = await reader.known_incarnations({each.topic for each in partitions})
    stored = {
        each: at
        for each, at in found.items()
        if not of_earlier_topic(written.get(each, 0), known.get(each.topic, math.inf))
    }
    if settings.offsets.reset == "fail" and (without := [each for each in partitions if each not in stored]):
        raise OffsetLostError(f"{without[0]}: group {settings.group.id} has no offset, and [offsets] reset is fail")
    reset = _EARLIEST if settings.offsets.reset == "smallest" else _LATEST
    return {each: stored.get(each, reset) for each in partitions}
