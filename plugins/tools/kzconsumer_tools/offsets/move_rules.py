"""What moving a group to the brokers, or back, does to each partition, and what blocks it. Without IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from shlex import quote
from typing import Literal

import msgspec

from kzconsumer.display import plural
from kzconsumer.model import TopicPartition
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupFacts, GroupNodes, listed, members_present
from kzconsumer_tools.node_changes import partition_of
from kzconsumer_tools.offsets.offset_changes import DescribedChange, consumption

Side = Literal["kafka", "zookeeper"]

Block = Literal[
    "offset_after_log",
    "offset_before_log",
    "planned_range",
    "recreated_topic",
    "topic_missing",
    "unknown_claim_record",
    "unreadable_offset",
]
"""Kinds of `groups doctor`. `recreated_topic`: the offset was stored for an earlier topic of that name."""

_OUTSIDE = "outside the log"
_MISSING = "of a topic or partition that does not exist"
_RESOLVED: Mapping[Block, tuple[str, str]] = {
    "offset_after_log": (
        _OUTSIDE,
        "`kzconsumer offsets reset {group} --all-topics --to-current` moves offsets into it",
    ),
    "offset_before_log": (
        _OUTSIDE,
        "`kzconsumer offsets reset {group} --all-topics --to-current` moves offsets into it",
    ),
    "planned_range": ("at a planned range", "start a member with its sink, which writes the range, and stop it"),
    "recreated_topic": (
        "stored for an earlier topic of that name",
        "`kzconsumer offsets reset {group}` sets where to begin",
    ),
    "topic_missing": (_MISSING, "`kzconsumer groups clean {group}` removes them, --topic leaves them out"),
    "unknown_claim_record": ("with a claim record of a newer version", "use that version of kzconsumer"),
    "unreadable_offset": ("unreadable", "`kzconsumer offsets reset {group}` replaces them"),
}
"""What is wrong with an offset, and the way out."""

_RESOLVED_IN_KAFKA: Mapping[Block, tuple[str, str]] = {
    "offset_after_log": (_OUTSIDE, "`kafka-consumer-groups.sh --reset-offsets --to-current` moves offsets into it"),
    "offset_before_log": (_OUTSIDE, "`kafka-consumer-groups.sh --reset-offsets --to-current` moves offsets into it"),
    "topic_missing": (_MISSING, "--topic leaves them out"),
}


class MovedPartition(msgspec.Struct, frozen=True):
    """`stored`: where a member of the group in ZooKeeper starts; `kafka`: where one of the Kafka group does; `new`:
    what the group that is moved to has afterwards. None: no offset. `blocked`: why the offset is not moved.

    `skipped` offsets will not be consumed by the group that is moved to, `repeated` ones once more; `republished` of
    them a replayable sink's destination holds, or may hold.
    """

    topic: str
    partition: int
    stored: int | None
    kafka: int | None
    new: int | None
    changes: bool
    log_start: int | None
    log_end: int | None
    blocked: Block | None
    skipped: int
    repeated: int
    republished: int


class MovedGroup(msgspec.Struct, frozen=True):
    """`to`: the side whose offsets are written. `blocked`: what has to be resolved before, as sentences. `same`: both
    sides have the same offsets, as they were read. `coordinated`: brokers of 0.8 coordinate no groups."""

    group: str
    kafka_group: str
    to: Side
    executed: bool
    undo: str | None
    same: bool
    coordinated: bool
    blocked: tuple[str, ...]
    partitions: tuple[MovedPartition, ...]


def block(
    partition: TopicPartition, offset: int | None, log: LogRange | None, known: Mapping[TopicPartition, Block]
) -> Block | None:
    """Why the offset must not be moved. `log` None: the partition does not exist; `known` is from `known_blocks`."""
    if partition in known:
        return known[partition]
    if offset is None:
        return None
    if log is None:
        return "topic_missing"
    if log.start <= offset <= log.end:
        return None
    return "offset_before_log" if offset < log.start else "offset_after_log"


def known_blocks(known: GroupFacts, *, offsets: bool) -> dict[TopicPartition, Block]:
    """What the group's nodes show, with `offsets` also about those in them. No member would start there either."""
    found: dict[TopicPartition, Block] = {}
    for finding in known.findings:
        match finding.kind:
            case "planned_range" | "unknown_claim_record" as kind:
                found |= _at(finding.path, kind)
            case "unreadable_offset" as kind if offsets:
                found |= _at(finding.path, kind)
    return found | dict.fromkeys(known.earlier_offsets if offsets else (), "recreated_topic")


def _at(path: str, kind: Block) -> dict[TopicPartition, Block]:
    try:
        return {partition_of(path): kind}
    except ValueError:  # an unknown_node, which no member reads
        return {}


def moved(
    partition: TopicPartition,
    to: Side,
    stored: int | None,
    kafka: int | None,
    log: LogRange | None,
    blocked: Block | None,
    change: DescribedChange | None,
) -> MovedPartition:
    """`change` is None for a partition without an offset to move, and for a blocked one."""
    old = stored if to == "zookeeper" else kafka
    # The other side has no offset: those before the new one have been consumed on this side.
    skipped, repeated = consumption(old, change.new, log) if change is not None and old is not None else (0, 0)
    return MovedPartition(
        topic=partition.topic,
        partition=partition.partition,
        stored=stored,
        kafka=kafka,
        new=change.new if change is not None else kafka if to == "kafka" else stored,
        changes=change is not None and change.changes,
        log_start=log.start if log else None,
        log_end=log.end if log else None,
        blocked=blocked,
        skipped=skipped,
        repeated=repeated,
        republished=change.republished if change is not None else 0,
    )


def in_use(nodes: GroupNodes, namesake: GroupNodes, kafka_members: Collection[str]) -> Iterator[str]:
    """Members that store offsets on either side. `namesake`: the group in ZooKeeper with the Kafka group's name."""
    for each in {each.group: each for each in (nodes, namesake)}.values():
        if (reason := members_present(each)) is not None:
            yield f"the group {each.group} {reason}"
    if kafka_members:
        yield f"the Kafka group {namesake.group} has {listed(kafka_members)}"


def to_resolve(group: str, to: Side, partitions: Collection[MovedPartition]) -> Iterator[str]:
    """What blocks offsets, each with the way out."""
    ways = _RESOLVED if to == "kafka" else _RESOLVED_IN_KAFKA
    numbers = Counter(ways[each.blocked] for each in partitions if each.blocked is not None)
    for (what, how), number in sorted(numbers.items()):
        yield f"{plural(number, 'offset')} {'is' if number == 1 else 'are'} {what}: {how.format(group=quote(group))}"
