"""Changes of offsets that the brokers store, and their undo files.

A file has a JSON object on each line: `group`, `topic`, `partition`, `offset` (null: there was none), `metadata` and
`leader_epoch` (that of the last record before the offset).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer_tools.offsets.changes import DescribedChange, described_change

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


def undo_file(group: str, changes: Iterable[CoordinatorChange]) -> bytes:
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
    """None for a file of another format. Raises ValueError, naming the line, for an invalid line."""
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
            found.append(msgspec.json.decode(text, type=SavedCoordinatorOffset))
        except msgspec.DecodeError as error:
            raise ValueError(f"line {number}: not an offset of the brokers: {error}") from None
    return found
