"""Stored offsets that an operator moves: from what stands and what is asked for, to what will stand.

Pure. `kzconsumer offsets` shows moves and has `group/unattended` carry them out. A move raises the partition's reset
epoch and clears its plan, so that a replayable sink takes what follows for new ranges (kzconsumer/README.md, "Plans").
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, decode_claim_record, encode_claim_record
from kzconsumer.registry.nodes import decode_offset, encode_offset
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.log_range import LogRange
from kzconsumer_tools.node_changes import Change

ResetKind = Literal["earliest", "latest", "current", "offset", "shift", "time"]


class Reset(msgspec.Struct, frozen=True):
    """What is asked for, as `kafka-consumer-groups.sh --reset-offsets` has it; `amount` is of `offset` and `shift`."""

    kind: ResetKind
    amount: int = 0


class Standing(msgspec.Struct, frozen=True):
    """A partition's nodes as they were read: its stored offset's, and its claim record."""

    partition: TopicPartition
    offset: Node | None
    record: Node | None

    @property
    def stored(self) -> int | None:
        """The offset; None where there is none, or nothing that can be read as one."""
        return offset_in(self.offset.data) if self.offset is not None else None

    @property
    def claim(self) -> ClaimRecord | None:
        """Raises ValueError for a record of a format that this version does not know."""
        return decode_claim_record(self.record.data) if self.record is not None else None


class DescribedMove(msgspec.Struct, frozen=True):
    """A move as it is shown. `old` and `new` are offsets of the next record to be read; None: none is stored.

    `asked` is None where it is `new`: what was asked for lies outside the log. `epoch` is the reset epoch afterwards
    (None: no member of ours ever claimed the partition), `plan` the range in flight that is cleared, as [first, until].
    `skipped` offsets are consumed by nobody, those counted by `again` once more; of them (and of a plan's) a replayable
    sink's destination holds, or may hold, `republished`.
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
    again: int
    republished: int


class Move(msgspec.Struct, frozen=True):
    """One partition: its offset node becomes `after` (None: no node). `asked` is the offset before it was clamped."""

    standing: Standing
    after: bytes | None
    asked: int | None = None
    log: LogRange | None = None

    @property
    def changes(self) -> bool:
        """False where nothing has to be written: the same content, and nothing of a replayable sink stands by it.

        What such a sink has committed holds against any offset of the same epoch, so a move always begins another one.
        """
        before = self.standing.offset.data if self.standing.offset is not None else None
        record = self.standing.claim
        return before != self.after or (record is not None and (record.plan is not None or _marked(record) is not None))

    def changed(self, group: GroupPaths) -> list[Change]:
        """The nodes that change together: the offset, and the claim record where there is one."""
        if not self.changes:
            return []
        partition = self.standing.partition
        offset = Change(group.offset(partition), self.standing.offset, self.after)
        record = self.standing.claim
        if record is None:
            return [offset]
        raised = encode_claim_record(msgspec.structs.replace(record, epoch=record.epoch + 1, plan=None))
        return [offset, Change(group.claim_record(partition), self.standing.record, raised)]

    def described(self) -> DescribedMove:
        record, stored = self.standing.claim, self.standing.stored
        new = offset_in(self.after) if self.after is not None else None
        plan = record.plan if record is not None else None
        return DescribedMove(
            topic=self.standing.partition.topic,
            partition=self.standing.partition.partition,
            old=stored,
            new=new,
            asked=self.asked if self.asked != new else None,
            changes=self.changes,
            log_start=self.log.start if self.log else None,
            log_end=self.log.end if self.log else None,
            epoch=record.epoch + self.changes if record is not None else None,
            plan=(plan.first, plan.until) if plan is not None else None,
            skipped=max(0, new - stored) if new is not None and stored is not None else 0,
            again=max(0, stored - new) if new is not None and stored is not None else 0,
            republished=max(0, self._published() - (new or 0)) if self.changes else 0,
        )

    def _published(self) -> int:
        """Up to where the destination of a replayable sink may hold records: the plan's may be there already."""
        record = self.standing.claim
        if record is None:
            return 0
        planned = record.plan.until if record.plan is not None else 0
        stored = self.standing.stored if record.fingerprint or planned else None
        return max(stored or 0, planned, _marked(record) or 0)


def reset(standing: Standing, to: Reset, log: LogRange, at_time: int | None = None) -> Move:
    """The move that `to` asks for. `at_time` is the first offset at or after its time, None when there is none.

    Clamped to the log. Raises ValueError for a shift of an offset that is not stored. Without a stored offset
    `current` is the end of the log, and so is a time after the last record.
    Source: `kafka.admin.ConsumerGroupCommand.prepareOffsetsToReset` (2.8).
    """
    stored = standing.stored
    if to.kind == "shift" and stored is None:
        raise ValueError(f"{standing.partition} has no stored offset to shift")
    asked = {
        "earliest": log.start,
        "latest": log.end,
        "current": log.end if stored is None else stored,
        "offset": to.amount,
        "shift": (stored or 0) + to.amount,
        "time": log.end if at_time is None else at_time,
    }[to.kind]
    return to_offset(standing, asked, log)


def to_offset(standing: Standing, asked: int, log: LogRange) -> Move:
    """The move to that offset, or to the nearest one in the log; an unchanged offset keeps its node's very content."""
    new = log.clamp(asked)
    same = standing.offset is not None and standing.stored == new
    after = standing.offset.data if same and standing.offset is not None else encode_offset(new)
    return Move(standing, after, asked, log)


def _marked(record: ClaimRecord) -> int | None:
    """Up to where any destination is committed in the present epoch, also while streams have the partition."""
    mark = record.mark
    return mark.until if mark is not msgspec.UNSET and mark.epoch == record.epoch else None


def offset_in(data: bytes) -> int | None:
    """What an offset node says; None for none, and for what cannot be read."""
    try:
        return decode_offset(data)
    except ValueError:
        return None
