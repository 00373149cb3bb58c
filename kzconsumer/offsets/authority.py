"""Which of two storages decides where a partition begins, ZooKeeper or the brokers."""

from __future__ import annotations

import re
from enum import Enum
from typing import Literal, NamedTuple

from kzconsumer.errors import ConfigError
from kzconsumer.settings.sections import OffsetsSettings
from kzconsumer.settings.settings import Settings

_METADATA = re.compile(r"kzconsumer epoch (\d+)")


class WithBrokers(NamedTuple):
    """An offset stored by the coordinator, and its reset epoch (None: stored by another program, with `words` as its
    metadata). Offset -1 removes a stored offset. `leader_epoch` is that of the last record before it, -1 if unknown."""

    offset: int
    epoch: int | None
    words: str = ""
    leader_epoch: int = -1

    @classmethod
    def read(cls, offset: int, metadata: str, leader_epoch: int = -1) -> WithBrokers:
        found = _METADATA.fullmatch(metadata)
        if found is None:
            return cls(offset, None, metadata, leader_epoch)
        return cls(offset, int(found[1]), leader_epoch=leader_epoch)

    @property
    def metadata(self) -> str:
        """The text stored with the offset. The original leaves it empty and ignores it."""
        return self.words if self.epoch is None else f"kzconsumer epoch {self.epoch}"

    def before(self, epoch: int) -> bool:
        """Whether the partition was reset in ZooKeeper since: this offset no longer counts."""
        return self.epoch is not None and self.epoch < epoch

    def copied(self, epoch: int) -> int | None:
        """The copied offset; -1 if it does not count, None if the next copy has to be made in any case.

        That is so for a later epoch: the group was deleted since, and its epochs begin again.
        """
        if self.before(epoch):
            return -1
        return None if self.epoch is not None and self.epoch > epoch else self.offset


Storage = Literal["zookeeper", "kafka", "both"]
"""Where a group stores its offsets; `both` is dual commit."""


class Authority(Enum):
    """Which storages are written and which offset counts.

    BOTH is the original's `offsets.storage=kafka` with `dual.commit.enabled`: both are written, the larger counts.
    ZOOKEEPER_FIRST is the same with a replayable sink, whose plans and offsets are written in one transaction of
    ZooKeeper: the brokers' copy counts only if ZooKeeper has no offset.
    """

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    BOTH = "both"
    ZOOKEEPER_FIRST = "zookeeper first"

    @classmethod
    def of(cls, offsets: OffsetsSettings, *, replayable: bool) -> Authority:
        """Raises ValueError for a replayable sink with offsets in the brokers alone."""
        if offsets.storage == "zookeeper":
            return cls.ZOOKEEPER
        if offsets.dual_commit:
            return cls.ZOOKEEPER_FIRST if replayable else cls.BOTH
        if replayable:
            raise ValueError(
                "a replayable sink's ranges are planned and committed in one transaction of ZooKeeper: "
                "set dual_commit = true, and the brokers get a copy"
            )
        return cls.KAFKA

    @classmethod
    def seen(cls, storage: Storage, fingerprint: str) -> Authority:
        """For a tool: `fingerprint` is the claim record's, not empty if a replayable sink has the partition."""
        if storage == "both":
            return cls.ZOOKEEPER_FIRST if fingerprint else cls.BOTH
        return cls(storage)

    @property
    def copies(self) -> bool:
        """Whether the brokers get a copy of what is stored in ZooKeeper."""
        return self in (Authority.BOTH, Authority.ZOOKEEPER_FIRST)

    def begin(self, zookeeper: int | None, brokers: WithBrokers | None, epoch: int) -> int | None:
        """The stored offset that counts in the partition's reset epoch, if any.

        The larger one as in `ZookeeperConsumerConnector.fetchOffsets` (1.1.1), which has no epochs.
        """
        if self is Authority.ZOOKEEPER or (brokers is not None and brokers.before(epoch)):
            return zookeeper
        kafka = brokers.offset if brokers is not None else None
        if self is Authority.KAFKA:
            return kafka
        if self is Authority.ZOOKEEPER_FIRST:
            return kafka if zookeeper is None else zookeeper
        return max((each for each in (zookeeper, kafka) if each is not None), default=None)


def require_storage(settings: Settings, *, replayable: bool, in_run: bool) -> None:
    """Raises ConfigError if offsets have to be in ZooKeeper, for a replayable sink or a group's run, and are not."""
    where = f"{settings.source}: [offsets] dual_commit"
    try:
        authority = Authority.of(settings.offsets, replayable=replayable)
    except ValueError as error:
        raise ConfigError([f"{where}: {error}"]) from None
    if authority is Authority.KAFKA and in_run:
        why = "a group's run ends by the offsets in ZooKeeper"
        raise ConfigError([f"{where}: {why}: set dual_commit = true, as [subscription] stop_at requires"])
