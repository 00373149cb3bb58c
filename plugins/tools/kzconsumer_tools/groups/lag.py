"""How far a group is behind: stored offsets compared with the ends of the logs. Unknown values are None, never 0."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from kzconsumer.model import Broker, TopicPartition
from kzconsumer.zookeeper.connect_string import host_port
from kzconsumer_tools.groups.nodes import GroupFacts

_MADE_ID = re.compile(r"(.+)-\d{13}-[0-9a-f]{8}-\d+")


class LogRange(msgspec.Struct, frozen=True):
    """The offsets that a partition's log holds, `start <= offset < end`."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        """The nearest offset that a consumer can start at."""
        return min(max(offset, self.start), self.end)


class PartitionLag(msgspec.Struct, frozen=True):
    """`lag`: offsets from the stored one to the log's end, as in Kafka's tools; None if either is unknown, or if the
    stored offset is after the end. `seconds`: since the next record to be read was written, by its timestamp; 0 if
    there is none, None if unknown. `host`: the owner's, by its consumer id. `leader`: a broker."""

    topic: str
    partition: int
    owner: str | None
    stored: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    seconds: float | None
    host: str | None = None
    leader: int | None = None
    leader_address: str | None = None


class GroupLag(msgspec.Struct, frozen=True):
    """`lag`: sum of the known lags (None: none known); `unknown`: partitions without one; `seconds`: the largest."""

    group: str
    lag: int | None
    seconds: float | None
    unknown: int
    partitions: tuple[PartitionLag, ...]


def behind(known: GroupFacts, logs: Mapping[TopicPartition, LogRange]) -> dict[TopicPartition, int]:
    """Partitions with offsets left to read -> the next offset."""
    return {
        partition: stored
        for partition, stored in known.offsets.items()
        if stored is not None and partition in logs and logs[partition].start <= stored < logs[partition].end
    }


def partitions_of(known: GroupFacts) -> list[TopicPartition]:
    """Partitions that a member subscribes to or that have a stored offset, in order."""
    subscribed = {topic for topics in known.streams.values() for topic in topics}
    wanted = {partition for partition in known.existing if partition.topic in subscribed}
    return sorted(wanted.union(known.offsets))


def _host(thread: str, group: str) -> str | None:
    """None if the application has chosen the consumer id."""
    made = _MADE_ID.fullmatch(thread.removeprefix(f"{group}_"))
    return made[1] if made else None


def group_lag(
    group: str,
    known: GroupFacts,
    partitions: Collection[TopicPartition],
    logs: Mapping[TopicPartition, LogRange],
    written: Mapping[TopicPartition, int],
    now_ms: int,
    leaders: Mapping[TopicPartition, Broker] = MappingProxyType({}),
) -> GroupLag:
    """`written`: the timestamp of the next record, in ms since 1970, of partitions where it is known."""
    rows = []
    for partition in partitions:
        stored, log = known.offsets.get(partition), logs.get(partition)
        lag = log.end - stored if log is not None and stored is not None and stored <= log.end else None
        seconds = None
        if lag == 0:
            seconds = 0.0
        elif partition in written:
            seconds = max(0.0, round((now_ms - written[partition]) / 1000, 3))
        owner, leader = known.owners.get(partition), leaders.get(partition)
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
                host=_host(owner.thread, group) if owner else None,
                leader=leader.id if leader else None,
                leader_address=host_port(leader.host, leader.port) if leader else None,
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
