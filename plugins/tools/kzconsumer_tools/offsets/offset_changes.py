"""Changes of stored offsets that an operator asks for: from the nodes as read to the nodes as written.

A change raises the partition's reset epoch and clears its plan, so that a replayable sink treats what follows as new
ranges (docs/internals/exactly-once.md). An offset that comes from elsewhere keeps its leader epoch; one that an
operator chooses has none: the log is then as the operator has seen it. Offsets that brokers store are changed here,
too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.registry.claim_record import (
    CLAIM_RECORD_VERSION,
    ClaimRecord,
    StoredPosition,
    decode_claim_record,
    encode_claim_record,
)
from kzconsumer.registry.nodes import decode_offset, encode_offset
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.node_changes import NodeChange

ResetKind = Literal["earliest", "latest", "current", "offset", "shift", "time"]


class Reset(msgspec.Struct, frozen=True):
    """A reset as in `kafka-consumer-groups.sh --reset-offsets`; `amount` is of `offset`, `shift` and `time` (ms)."""

    kind: ResetKind
    amount: int = 0


class PartitionNodes(msgspec.Struct, frozen=True):
    """A partition's nodes as they were read: its stored offset and its claim record. `earlier`: the offset was stored
    for an earlier topic of that name; `earlier_record`: so was the record written."""

    partition: TopicPartition
    offset: Node | None
    record: Node | None
    earlier: bool = False
    earlier_record: bool = False

    @property
    def stored(self) -> int | None:
        """The offset at which a member starts; None if there is none, or the node is unreadable or `earlier`."""
        return offset_in(self.offset.data) if self.offset is not None and not self.earlier else None

    @property
    def claim(self) -> ClaimRecord | None:
        """Raises ValueError for a record of an unknown format."""
        return decode_claim_record(self.record.data) if self.record is not None else None


class DescribedChange(msgspec.Struct, frozen=True):
    """A change as it is shown. `old` and `new` are offsets of the next record to be read; None: none is stored.

    `asked` is the requested offset if that lies outside the log, `note` why the new one is the log's end. `epoch` is
    the reset epoch afterwards (None: no member of ours ever claimed it), `plan` the range in flight that is cleared, as
    [first, until]. Of the offsets that the log has, `skipped` will not be consumed, `repeated` ones once more;
    `republished` of them (and of the plan) a replayable sink's destination holds, or may hold. If no broker was asked
    (`log_end` is None), these are what they are at most.
    """

    topic: str
    partition: int
    old: int | None
    new: int | None
    asked: int | None
    changes: bool
    log_start: int | None
    log_end: int | None
    epoch: int | None
    plan: tuple[int, int] | None
    skipped: int
    repeated: int
    republished: int
    note: str = ""


class ChangedGroup(msgspec.Struct, frozen=True):
    """`in_use`: why the group must not be changed now; None if it has no members. `left_out`: partitions that do not
    exist. `is_new`: ZooKeeper had neither members nor offsets of it; its name may be mistyped."""

    group: str
    in_use: str | None
    partitions: tuple[DescribedChange, ...]
    left_out: tuple[str, ...] = ()
    is_new: bool = False


class ChangedOffsets(msgspec.Struct, frozen=True):
    """`executed` is false without `--execute`, and if there was nothing to change; `undo` is the undo file."""

    executed: bool
    undo: str | None
    groups: tuple[ChangedGroup, ...]


class OffsetChange(msgspec.Struct, frozen=True):
    """One partition: its offset node becomes `after` (None: no node). `asked` is the offset before it was clamped,
    `note` why it is the log's end. `leader_epoch`: of the last record before the new offset; -1: unknown."""

    nodes: PartitionNodes
    after: bytes | None
    asked: int | None = None
    log: LogRange | None = None
    note: str = ""
    leader_epoch: int = -1

    @property
    def changes(self) -> bool:
        """False if the content stays the same and no state of a replayable sink has to be invalidated.

        What such a sink has committed is kept against any offset of the same epoch, so a change starts a new epoch. An
        offset of an earlier topic is written again, with the same content too: it counts for the present one then.
        """
        if self.nodes.earlier and self.after is not None:
            return True
        before = self.nodes.offset.data if self.nodes.offset is not None else None
        record = self.nodes.claim
        return before != self.after or (record is not None and (record.plan is not None or _marked(record) is not None))

    def changed(self, group: GroupPaths, incarnation: int | None = None) -> list[NodeChange]:
        """The nodes that change together: the offset first, then the claim record if there is one.

        `incarnation`: of the topic that the offset is of from now on, as the record says then. If it is known, a record
        is made where a leader epoch needs one.
        """
        if not self.changes:
            return []
        partition = self.nodes.partition
        offset = NodeChange(group.offset(partition), self.nodes.offset, self.after)
        new = offset_in(self.after) if self.after is not None else None
        known = new is not None and self.leader_epoch >= 0
        position = StoredPosition(new, self.leader_epoch) if new is not None and known else msgspec.UNSET
        record = self.nodes.claim
        if record is not None:
            record = msgspec.structs.replace(record, epoch=record.epoch + 1, plan=None, position=position)
            if incarnation is not None:
                record = msgspec.structs.replace(record, incarnation=f"{incarnation:#x}")
        elif known and incarnation is not None:
            record = ClaimRecord(CLAIM_RECORD_VERSION, "", f"{incarnation:#x}", position=position)
        if record is None:
            return [offset]
        return [offset, NodeChange(group.claim_record(partition), self.nodes.record, encode_claim_record(record))]

    def described(self) -> DescribedChange:
        record, new = self.nodes.claim, offset_in(self.after) if self.after is not None else None
        plan = record.plan if record is not None else None
        return described_change(
            self.nodes.partition,
            self.nodes.stored,
            new,
            self.asked,
            self.log,
            changes=self.changes,
            epoch=record.epoch + self.changes if record is not None else None,
            plan=(plan.first, plan.until) if plan is not None else None,
            republished=max(0, _between(new or 0, self._published(), self.log)) if self.changes else 0,
            note=self.note,
        )

    def _published(self) -> int:
        """The end of what the destination of a replayable sink may hold; records of a plan may be there already.

        It holds nothing of the present topic if it was another one when the record was written.
        """
        record = self.nodes.claim
        if record is None or self.nodes.earlier_record:
            return 0
        planned = plan.until if (plan := record.plan) is not None and plan.incarnation == record.incarnation else 0
        stored = self.nodes.stored if record.fingerprint or planned else None
        return max(stored or 0, planned, _marked(record) or 0)


def described_change(
    partition: TopicPartition,
    old: int | None,
    new: int | None,
    asked: int | None,
    log: LogRange | None,
    *,
    changes: bool,
    epoch: int | None,
    plan: tuple[int, int] | None = None,
    republished: int = 0,
    note: str = "",
) -> DescribedChange:
    """`log` None: it was not read."""
    skipped, repeated = consumption(old, new, log)
    return DescribedChange(
        topic=partition.topic,
        partition=partition.partition,
        old=old,
        new=new,
        asked=asked if asked != new else None,
        changes=changes,
        log_start=log.start if log else None,
        log_end=log.end if log else None,
        epoch=epoch,
        plan=plan,
        skipped=skipped,
        repeated=repeated,
        republished=republished,
        note=note,
    )


def consumption(old: int | None, new: int | None, log: LogRange | None) -> tuple[int, int]:
    """How many offsets that the log has will not be consumed, and how many once more, if `old` becomes `new`.

    Of a partition without an offset those before the new one are not consumed.
    """
    if new is None or (old is None and log is None):
        return 0, 0
    moved = _between(log.start if old is None and log is not None else old or 0, new, log)
    return max(0, moved), max(0, -moved)


def _between(one: int, other: int, log: LogRange | None) -> int:
    return other - one if log is None else log.between(one, other)


def reset(nodes: PartitionNodes, to: Reset, log: LogRange, at_time: int | None = None) -> OffsetChange:
    """The change that `to` asks for. `at_time` is the first offset at or after its time, None if there is none.

    Clamped to the log. Without a stored offset `current` is the end of the log, and so is a time after the last record.
    Raises ValueError for a shift of an offset that is not stored, and for `current` and a shift if it is of an earlier
    topic: neither it nor the end of the log is where members are.
    Source: `kafka.admin.ConsumerGroupCommand.prepareOffsetsToReset` (2.8).
    """
    stored = nodes.stored
    if nodes.earlier and to.kind in ("current", "shift"):
        way_out = "give --to-earliest, --to-latest, --to-offset or --to-datetime"
        raise ValueError(f"the offset of {nodes.partition} was stored for an earlier topic of that name: {way_out}")
    if to.kind == "shift" and stored is None:
        raise ValueError(f"{nodes.partition} has no stored offset to shift")
    asked = {
        "earliest": log.start,
        "latest": log.end,
        "current": log.end if stored is None else stored,
        "offset": to.amount,
        "shift": (stored or 0) + to.amount,
        "time": log.end if at_time is None else at_time,
    }[to.kind]
    note = ""
    if to.kind == "time" and at_time is None:
        note = "no record is so late: the end"
    elif to.kind == "current" and stored is None:
        note = "no stored offset: the end"
    return to_offset(nodes, asked, log, note)


def to_offset(nodes: PartitionNodes, asked: int, log: LogRange, note: str = "", leader_epoch: int = -1) -> OffsetChange:
    """The change to the nearest offset in the log; if the offset stays, so does the exact content of its node.

    `leader_epoch`: of the last record before `asked`; -1: unknown.
    """
    new = log.clamp(asked)
    same = nodes.offset is not None and nodes.stored == new
    after = nodes.offset.data if same and nodes.offset is not None else encode_offset(new)
    return OffsetChange(nodes, after, asked, log, note, leader_epoch if new == asked else -1)


def _marked(record: ClaimRecord) -> int | None:
    """The end of what any destination has committed in the present epoch, even while streams have the partition."""
    mark = record.mark
    return mark.until if mark is not msgspec.UNSET and mark.epoch == record.epoch else None


def offset_in(data: bytes) -> int | None:
    """The offset in a node; None for none, and for one that cannot be read."""
    try:
        return decode_offset(data)
    except ValueError:
        return None


# Changes of offsets that the brokers store, and their undo files.
#
# A file has a JSON object on each line: `group`, `topic`, `partition`, `offset` (null: there was none), `metadata`
# and `leader_epoch` (that of the last record before the offset).

NO_OFFSET = WithBrokers(-1, None)


class CoordinatorChange(msgspec.Struct, frozen=True):
    """One partition: the coordinator's offset `before` becomes `after` (None: no offset)."""

    partition: TopicPartition
    before: WithBrokers | None
    after: WithBrokers | None

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def described(self) -> DescribedChange:
        old, new = self.before.offset if self.before else None, self.after.offset if self.after else None
        return described_change(self.partition, old, new, None, None, changes=self.changes, epoch=None)


class SavedCoordinatorOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A line of the file."""

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str = ""
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def stored(self) -> WithBrokers | None:
        return WithBrokers.read(self.offset, self.metadata, self.leader_epoch) if self.offset is not None else None


def coordinator_undo_file(group: str, changes: Iterable[CoordinatorChange]) -> bytes:
    """The coordinator's present offsets, of the partitions that change."""
    lines = [
        SavedCoordinatorOffset(
            group, *change.partition, change.before.offset, change.before.metadata, change.before.leader_epoch
        )
        if change.before is not None
        else SavedCoordinatorOffset(group, *change.partition, None)
        for change in changes
        if change.changes
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def read_undo(content: bytes) -> list[SavedCoordinatorOffset] | None:
    """None for a file of another format, also Spark's of a topic named `offset`.

    Raises ValueError, naming the line, for an invalid line.
    """
    first, *_ = content.split(b"\n", 1)
    try:
        keys = msgspec.json.decode(first)
    except msgspec.DecodeError:
        return None
    if not isinstance(keys, dict) or "offset" not in keys or isinstance(keys["offset"], dict):
        return None
    found = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            found.append(msgspec.json.decode(text, type=SavedCoordinatorOffset))
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: not an offset of the brokers: {error}") from None
    return found
