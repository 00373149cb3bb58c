"""The interface of an offset storage to the committer; `zookeeper_storage` and `kafka_storage` implement it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kzconsumer.counters import CommitStorage
from kzconsumer.errors import CoordinatorError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, Plan
from kzconsumer.registry.ownership import Fence


class Refused(msgspec.Struct, frozen=True):
    """The partition is ours, and its offset was not stored."""

    reason: str


class OffsetStorage(Protocol):
    """Stores offsets of claims that hold, and of no others."""

    @property
    def name(self) -> CommitStorage: ...

    @property
    def forgets(self) -> bool:
        """Whether an offset expires unless it is stored again."""
        ...

    async def write(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored | Lost | Refused]:
        """The outcome of each; one that is lost or refused does not affect the others.

        Raises SessionExpiredError, ZooKeeperError, CoordinatorError: then it is unknown what was stored.
        """
        ...

    async def executed(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored]:
        """Those of these writes, whose replies were lost, that were executed; the others may be repeated."""
        ...


class OffsetWrite(msgspec.Struct, frozen=True):
    """One offset to be stored, with the plan that is stored beside it (None: no range is in flight).

    `fence`, `record` and `version` are as the claim's last write left them; `version` is the offset node's, -1 without
    one. `epoch` is the record's, or the one that begins with this write; `written` is the last range that this claim
    wrote to a replayable sink's destination. `leader_epoch` is that of the last record before `offset`, -1 if unknown.
    """

    topic_partition: TopicPartition
    fence: Fence
    record: ClaimRecord
    version: int
    offset: int
    plan: Plan | None
    epoch: int
    written: tuple[int, int] | None = None
    leader_epoch: int = -1

    @property
    def leaves(self) -> Stored:
        """The state of the claim after this write."""
        version = self.version + 1
        plan = self.plan and msgspec.structs.replace(self.plan, offset_version=version)
        record = self.record.after(self.offset, plan, self.epoch, self.written, self.leader_epoch)
        if record == self.record:
            return Stored(self.fence, self.record, version)
        fence = msgspec.structs.replace(self.fence, record_version=self.fence.record_version + 1)
        return Stored(fence, record, version)


class Stored(msgspec.Struct, frozen=True):
    """The claim after the write; `version` is the offset node's."""

    fence: Fence
    record: ClaimRecord
    version: int


class Lost(msgspec.Struct, frozen=True):
    """The partition is no longer ours: nothing was written."""

    reason: str


class Committed(msgspec.Struct, frozen=True):
    """A claim as its last write left it.

    `offset` is the stored one (None: nothing yet), `version` the offset node's (-1: there is none), `copied` the
    coordinator's copy (-1: none that counts, None: unknown), `leader_epoch` that of the last record before `offset`.
    """

    fence: Fence
    record: ClaimRecord
    offset: int | None
    version: int
    copied: int | None = -1
    leader_epoch: int = -1


def raise_refused(refused: Mapping[TopicPartition, str]) -> None:
    """Raises CoordinatorError if there is any, with the reasons."""
    if refused:
        raise CoordinatorError("; ".join(f"{partition}: {reason}" for partition, reason in refused.items()))
