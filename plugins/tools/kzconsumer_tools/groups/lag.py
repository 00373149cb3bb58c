"""How far a group is behind: what is stored beside where the logs end, in records and in seconds.

Pure. `kzconsumer lag` shows it. What is not known is None, never 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer_tools.groups.log_range import LogRange
from kzconsumer_tools.groups.nodes import GroupFacts


class PartitionLag(msgspec.Struct, frozen=True):
    """`lag`: offsets between the stored one and the log's end, as Kafka's tools have it. None where one is unknown, and
    where the stored offset lies behind the end. `seconds`: since the next record to be read was written, by its
    timestamp; 0 when there is none, None where nothing tells."""

    topic: str
    partition: int
    owner: str | None
    stored: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    seconds: float | None


class GroupLag(msgspec.Struct, frozen=True):
    """`lag` is the sum of what is known, None when nothing is, `unknown` counts the rest; `seconds` the most known."""

    group: str
    lag: int | None
    seconds: float | None
    unknown: int
    partitions: tuple[PartitionLag, ...]


def behind(known: GroupFacts, logs: Mapping[TopicPartition, LogRange]) -> dict[TopicPartition, int]:
    """Partitions with something left to read -> the offset of the next record."""
    return {
        partition: stored
        for partition, stored in known.offsets.items()
        if stored is not None and partition in logs and logs[partition].start <= stored < logs[partition].end
    }


def partitions_of(known: GroupFacts) -> list[TopicPartition]:
    """Those that a member subscribes to, and those with a stored offset, in order."""
    subscribed = {topic for topics in known.streams.values() for topic in topics}
    wanted = {partition for partition in known.existing if partition.topic in subscribed}
    return sorted(wanted.union(known.offsets))


def group_lag(
    group: str,
    known: GroupFacts,
    partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogRange],
    written: Mapping[TopicPartition, int],
    now_ms: int,
) -> GroupLag:
    """`written`: the time of the record that is read next, in ms since 1970, where somebody told."""
    rows = []
    for partition in partitions:
        stored, log = known.offsets.get(partition), logs.get(partition)
        lag = log.end - stored if log is not None and stored is not None and stored <= log.end else None
        seconds = None
        if lag == 0:
            seconds = 0.0
        elif partition in written:
            seconds = max(0.0, round((now_ms - written[partition]) / 1000, 3))
        owner = known.owners.get(partition)
        rows.append(
            PartitionLag(
                topic=partition.topic,
                partition=partition.partition,
                owner=owner.thread if owner else None,
                stored=stored,
                log_start=log.start if log else None,
                log_end=log.end if log else None,
                lag=lag,
                seconds=seconds,
            )
        )
    lags = [each.lag for each in rows if each.lag is not None]
    ages = [each.seconds for each in rows if each.seconds is not None]
    return GroupLag(
        group=group,
        lag=sum(lags) if lags else None,
        seconds=max(ages) if ages else None,
        unknown=len(rows) - len(lags),
        partitions=tuple(rows),
    )
