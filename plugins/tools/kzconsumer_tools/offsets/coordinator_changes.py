"""Offsets with the brokers that an operator moves, and the files that undo it.

Pure. `kzconsumer offsets copy --to kafka` shows such moves, `group/broker_moves` carries them out. A file has a JSON
object on each line: `group`, `topic`, `partition`, `offset` (null: there was none) and `metadata`, the text beside it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer_tools.groups.log_range import LogRange
from kzconsumer_tools.offsets.changes import DescribedMove

NOTHING = WithBrokers(-1, None)


class BrokerMove(msgspec.Struct, frozen=True):
    """One partition: what the coordinator has becomes `after`; None: no offset. `asked` is before it was clamped."""

    partition: TopicPartition
    before: WithBrokers | None
    after: WithBrokers | None
    epoch: int | None = None
    asked: int | None = None
    log: LogRange | None = None

    @property
    def changes(self) -> bool:
        return self.before != self.after

    def described(self) -> DescribedMove:
        """As a move in ZooKeeper is; neither plan nor destination has to do with it."""
        old, new = self.before.offset if self.before else None, self.after.offset if self.after else None
        moved = new - old if new is not None and old is not None else 0
        return DescribedMove(
            topic=self.partition.topic,
            partition=self.partition.partition,
            old=old,
            new=new,
            asked=self.asked if self.asked != new else None,
            changes=self.changes,
            log_start=self.log.start if self.log else None,
            log_end=self.log.end if self.log else None,
            epoch=self.epoch,
            plan=None,
            skipped=max(0, moved),
            again=max(0, -moved),
            republished=0,
        )


class SavedWithBrokers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the file."""

    group: str
    topic: str
    partition: int
    offset: int | None
    metadata: str = ""

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def had(self) -> WithBrokers | None:
        return WithBrokers.read(self.offset, self.metadata) if self.offset is not None else None


def undo_file(group: str, moves: Iterable[BrokerMove]) -> bytes:
    """What the coordinator has, of those that change."""
    lines = [
        SavedWithBrokers(group, *move.partition, move.before.offset, move.before.metadata)
        if move.before is not None
        else SavedWithBrokers(group, *move.partition, None)
        for move in moves
        if move.changes
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def read_undo(content: bytes) -> list[SavedWithBrokers] | None:
    """None for a file of another form. Raises ValueError, naming the line, for what is none after all."""
    first, *_ = content.split(b"\n", 1)
    try:
        keys = msgspec.json.decode(first)
    except msgspec.DecodeError:
        return None
    if not isinstance(keys, dict) or "offset" not in keys:
        return None
    found = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            found.append(msgspec.json.decode(text, type=SavedWithBrokers))
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: not an offset with the brokers: {error}") from None
    return found
