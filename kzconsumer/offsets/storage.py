"""What the committer writes offsets through: one storage, whichever it is.

Pure, owns nothing. `zookeeper_storage` and `kafka_storage` are the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kzconsumer.counters import CommitStorage
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.zookeeper_storage import Lost, OffsetWrite, Stored


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
