"""How far a group is behind, for `kzconsumer lag`: the model of `kzconsumer.lag` with what a group's nodes say."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from shlex import quote
from types import MappingProxyType

import msgspec

from kzconsumer.display import count, plural, some
from kzconsumer.lag.partition import (
    Measured,
    PartitionFacts,
    PartitionLag,
    Reason,
    Why,
    partition_lag,
    standing_for_others,
)
from kzconsumer.lag.totals import MOST_NAMES, Total, Verdict, reasons, total
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import host_port
from kzconsumer_tools.groups.advice import Problem
from kzconsumer_tools.groups.group_nodes import GroupFacts, GroupNodes

_MADE_ID = re.compile(r"(.+)-\d{13}-[0-9a-f]{8}-\d+")


class LogRange(msgspec.Struct, frozen=True):
    """The offsets that a partition's log holds, `start <= offset < end`."""

    start: int
    end: int

    def clamp(self, offset: int) -> int:
        """The nearest offset that a consumer can start at."""
        return min(max(offset, self.start), self.end)

    def between(self, one: int, other: int) -> int:
        """How many offsets of the log there are from `one` to `other`, negative if that is the way back."""
        return self.clamp(other) - self.clamp(one)


class LagRow(msgspec.Struct, frozen=True):
    """One partition. `lag`: offsets from the stored one, or from the log's start if that is later, to the log's end.
    `seconds`: since the next record to be read was written, by its timestamp; 0 if there is none. Each is None if it is
    unknown, with the reason in `why` or `why_seconds`. `lost`: offsets that were deleted before they were read. `gone`:
    the cluster has no such partition. `host`: the owner's, by its consumer id. `leader`: a broker."""

    topic: str
    partition: int
    owner: str | None
    stored: int | None
    log_start: int | None
    log_end: int | None
    lag: int | None
    why: Reason | None
    seconds: float | None
    why_seconds: Reason | None
    lost: int | None
    gone: bool
    host: str | None = None
    leader: int | None = None
    leader_address: str | None = None


class GroupLag(msgspec.Struct, frozen=True):
    """`lag` and `seconds` are exact: the sum and the largest; None if those of one partition are unknown, or if no
    member subscribes to a partition and no offset is stored: such a group may just have started. What is known gives
    `lag_at_least` and `seconds_at_least`. `unknown` and `unknown_seconds`: number of partitions by reason.

    `lost`: offsets deleted from the logs before they were read, None if that is not known. `gone`: offsets of
    partitions that do not exist, which are no part of the lag. `at`: when the ends of the logs were read. `health`,
    `findings` and `not_asked` are about progress alone: what `groups doctor` says of partitions that do not advance.
    """

    group: str
    at: datetime
    lag: int | None
    lag_at_least: int
    unknown: Mapping[Reason, int]
    seconds: float | None
    seconds_at_least: float | None
    unknown_seconds: Mapping[Reason, int]
    lost: int | None
    gone: int
    partitions: tuple[LagRow, ...]
    health: Verdict = "not examined"
    findings: tuple[Problem, ...] = ()
    not_asked: tuple[str, ...] = ()


Logs = Mapping[TopicPartition, LogRange | Why]
"""What the leader of each partition answered, or why it did not."""

Standing = Mapping[TopicPartition, float | None]
"""Partitions that a member owns and that are behind -> the result of `standing_for_others`."""


def next_offsets(known: GroupFacts, logs: Logs) -> dict[TopicPartition, int]:
    """Partitions with offsets left to read -> the next one that the log has."""
    found = {}
    for partition, stored in known.offsets.items():
        log = logs.get(partition)
        if stored is not None and isinstance(log, LogRange) and stored < log.end:
            found[partition] = max(stored, log.start)
    return found


def partitions_of(known: GroupFacts) -> list[TopicPartition]:
    """What the group reads, and partitions that have a stored offset, in order. Of a topic that may not be described
    those are known that have an owner."""
    subscribed = {topic for topics in known.streams.values() for topic in topics}
    owned = {each for each in known.owners if each.topic in subscribed and not known.gone(each)}
    return sorted(known.read.union(owned, known.offsets))


def _host(thread: str, group: str) -> str | None:
    """None if the application has chosen the consumer id."""
    made = _MADE_ID.fullmatch(thread.removeprefix(f"{group}_"))
    return made[1] if made else None


def position_of(known: GroupFacts, partition: TopicPartition) -> int | Why:
    """Where a member begins, or why there is no such offset, or none that is known."""
    stored = known.offsets.get(partition)
    if stored is not None:
        return stored
    if (why := known.unread_offsets.get(partition)) is not None:
        return why
    if partition in known.earlier_offsets:
        return Why("offset of an earlier topic")
    return Why("offset unreadable" if partition in known.unreadable_offsets else "never committed")


def partition_lags(
    known: GroupFacts,
    partitions: Iterable[TopicPartition],
    logs: Logs,
    written: Mapping[TopicPartition, int | Why],
    at: float,
) -> list[PartitionLag]:
    """The model's answer for each. `at`: when `logs` was read, after the offsets, in seconds since 1970. `written`: the
    timestamp of the next record, in ms since 1970, or why it is unknown."""
    found = []
    for each in partitions:
        log = logs.get(each)
        silent = log if isinstance(log, Why) else None
        if known.gone(each):
            silent = Why("topic gone")
        elif log is None and not known.topics_known:
            silent = Why("brokers unreachable", detail="ZooKeeper names neither topics nor brokers")
        facts = PartitionFacts(
            topic=each.topic,
            partition=each.partition,
            position=position_of(known, each),
            start=Measured(log.start, at) if isinstance(log, LogRange) else None,
            end=Measured(log.end, at) if isinstance(log, LogRange) else None,
            silent=silent,
            written=written.get(each),
        )
        found.append(partition_lag(facts, at, at))
    return found


def standing_of(nodes: GroupNodes, known: GroupFacts, found: Iterable[PartitionLag], at: float) -> Standing:
    """`found`: as read `at`, in seconds since 1970."""
    standing = {}
    for each in found:
        partition = TopicPartition(each.topic, each.partition)
        node = nodes.owners.get(GroupPaths(nodes.group).owner(partition))
        if each.behind and node is not None and known.owners[partition].kind == "member":
            stored = stored_at(nodes, known, partition)
            committed = None if stored is None else at - stored
            standing[partition] = standing_for_others(each, at - node.stat.ctime / 1000, committed)
    return standing


def stored_at(nodes: GroupNodes, known: GroupFacts, partition: TopicPartition) -> float | None:
    """When the offset at which a member begins was stored, in seconds since 1970; None if it is not ZooKeeper's."""
    node = nodes.offsets.get(GroupPaths(nodes.group).offset(partition))
    with contextlib.suppress(ValueError):
        if node is not None and decode_offset(node.data) == known.offsets.get(partition):
            return node.stat.mtime / 1000
    return None


def group_lag(
    group: str,
    known: GroupFacts,
    found: Collection[PartitionLag],
    logs: Logs,
    at: float,
    leaders: Mapping[TopicPartition, Broker] = MappingProxyType({}),
    foreign: Collection[str] = (),
) -> GroupLag:
    """`found`: what `partition_lags` has of these logs, which were read `at`. `foreign`: another client's nodes, which
    are all that is known of a group without partitions."""
    sums = total(found, elsewhere=0 if found else len(foreign))
    return GroupLag(
        group=group,
        at=datetime.fromtimestamp(at, UTC),
        lag=None if sums.empty else sums.lag,
        lag_at_least=sums.at_least,
        unknown=sums.unknown,
        seconds=None if sums.empty else sums.lag_seconds,
        seconds_at_least=None if sums.empty else sums.seconds,
        unknown_seconds=sums.unknown_seconds,
        lost=sums.lost,
        gone=sums.gone,
        partitions=tuple(_row(group, known, each, logs, leaders) for each in found),
    )


def _row(
    group: str, known: GroupFacts, found: PartitionLag, logs: Logs, leaders: Mapping[TopicPartition, Broker]
) -> LagRow:
    partition = TopicPartition(found.topic, found.partition)
    log, owner, leader = logs.get(partition), known.owners.get(partition), leaders.get(partition)
    return LagRow(
        topic=found.topic,
        partition=found.partition,
        owner=owner.thread if owner else None,
        stored=known.offsets.get(partition),
        log_start=log.start if isinstance(log, LogRange) else None,
        log_end=log.end if isinstance(log, LogRange) else None,
        lag=found.lag,
        why=found.why.reason if found.why else None,
        seconds=round(found.seconds, 3) if found.seconds is not None else None,
        why_seconds=found.why_seconds.reason if found.why_seconds else None,
        lost=found.lost,
        gone=found.gone,
        host=_host(owner.thread, group) if owner else None,
        leader=leader.id if leader else None,
        leader_address=host_port(leader.host, leader.port) if leader else None,
    )


def sums_of(group: GroupLag) -> Total:
    """The figures of the group, for the model's texts."""
    present = len(group.partitions) - group.gone or sum(group.unknown.values())
    return Total(
        partitions=present,
        known=group.lag if group.lag is not None else group.lag_at_least,
        at_least=group.lag_at_least,
        unknown=dict(group.unknown),
        seconds=group.seconds_at_least,
        unknown_seconds=dict(group.unknown_seconds),
        lost=group.lost,
        gone=group.gone,
        age=None,
    )


def remarks(group: GroupLag) -> Iterator[str]:
    """What the figures leave out, a sentence each."""
    if sums_of(group).empty:
        yield "No offset is stored, and no member subscribes to a partition: what is left to read is not known."
    why = {reason: number for reason, number in group.unknown_seconds.items() if reason not in group.unknown}
    if why:
        yield f"The age of the next record is unknown in {plural(sum(why.values()), 'partition')} ({reasons(why)})."
    if group.lost:
        names = [f"{each.topic}-{each.partition}" for each in group.partitions if each.lost]
        yield f"{count(group.lost)} offsets of {some(names, MOST_NAMES)} were deleted before they were read."
    if group.gone:
        topics = sorted({each.topic for each in group.partitions if each.gone})
        yield (
            f"{plural(group.gone, 'offset')} of what does not exist ({some(topics, MOST_NAMES)}): "
            f"`kzconsumer groups clean {quote(group.group)}` removes them."
        )


class GroupSummary(msgspec.Struct, frozen=True):
    """One group. `ours`, `original`, `unreadable`: members by kind. `topics`: with owner or offset nodes; `owned`:
    number of owner nodes; `last_commit`: when an offset was last stored; `lag` and what follows as in `GroupLag`.
    `stalled`: number of partitions whose owner is known to stand still. `foreign`: names of another client's nodes.

    `not_read`: why the group cannot be read; then nothing else is known of it.
    """

    group: str
    ours: int = 0
    original: int = 0
    unreadable: int = 0
    topics: tuple[str, ...] = ()
    owned: int = 0
    last_commit: datetime | None = None
    lag: int | None = None
    lag_at_least: int = 0
    unknown: Mapping[Reason, int] = {}
    seconds: float | None = None
    seconds_at_least: float | None = None
    unknown_seconds: Mapping[Reason, int] = {}
    lost: int | None = None
    gone: int = 0
    partitions: int = 0
    stalled: int = 0
    foreign: tuple[str, ...] = ()
    not_read: str = ""

    @property
    def members(self) -> int:
        return self.ours + self.original + self.unreadable


def worst_first(groups: Collection[GroupSummary]) -> list[GroupSummary]:
    """What cannot be read, then by the age of the next record, then by lag."""
    return sorted(
        groups, key=lambda each: (not each.not_read, -(each.seconds_at_least or 0.0), -each.lag_at_least, each.group)
    )
