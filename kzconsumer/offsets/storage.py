"""What the committer writes offsets through: one storage, whichever it is.

Pure, owns nothing. `zookeeper_storage` and `kafka_storage` are the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kzconsumer.counters import CommitStorage
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
        """Whether an offset is gone after a while unless it is stored again."""
        ...

    async def write(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored | Lost | Refused]:
        """What became of each; one that is lost or refused holds up no other.

        Raises SessionExpired, ZooKeeperError, CoordinatorFailed: then it is not known what was stored.
        """
        ...

    async def executed(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored]:
        """Of writes of which it is not known, those that were made. What is not among them may be written again."""
        ...


class OffsetWrite(msgspec.Struct, frozen=True):
    """One offset to be stored, and the plan that stands beside it from then on (None: no range is in flight).

    `fence`, `record` and `version` are the claim's as its last write left them; `version` is the offset node's, -1
    while there is none. `epoch` is the record's, or the one that begins with this write; `written` the last range that
    a replayable sink had its destination take, under this claim.
    """

    topic_partition: TopicPartition
    fence: Fence
    record: ClaimRecord
    version: int
    offset: int
    plan: Plan | None
    epoch: int
    written: tuple[int, int] | None = None

    @property
    def leaves(self) -> Stored:
        """How the claim stands when this has been executed."""
        version = self.version + 1
        plan = self.plan and msgspec.structs.replace(self.plan, offset_version=version)
        record = self.record.after(self.offset, plan, self.epoch, self.written)
        if record == self.record:
            return Stored(self.fence, self.record, version)
        fence = msgspec.structs.replace(self.fence, record_version=self.fence.record_version + 1)
        return Stored(fence, record, version)


class Stored(msgspec.Struct, frozen=True):
    """The claim as the write left it; `version` is the offset node's."""

    fence: Fence
    record: ClaimRecord
    version: int


class Lost(msgspec.Struct, frozen=True):
    """The partition is no longer ours: nothing was written."""

    reason: str


class Committed(msgspec.Struct, frozen=True):
    """How a claim stands, as its last write left it.

    `record` is what the claim record holds, `offset` what is stored (None: nothing yet), `version` the offset node's
    (-1: there is none), `copied` what the coordinator has where it gets a copy (-1: nothing that counts, None: that is
    not known).
    """

    fence: Fence
    record: ClaimRecord
    offset: int | None
    version: int
    copied: int | None = -1
