"""Which of two storages says where a partition's work begins, ZooKeeper or the brokers.

Pure, owns nothing. The member chooses once, the adopter asks at each claim.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Literal, NamedTuple

from kzconsumer.errors import ConfigError
from kzconsumer.settings.sections import OffsetsSettings
from kzconsumer.settings.settings import Settings

_METADATA = re.compile(r"kzconsumer epoch (\d+)")


class WithBrokers(NamedTuple):
    """An offset as the coordinator has it, and the reset epoch that it was stored in (None: by somebody else, whose
    `words` stand beside it). -1 is no offset: what is stored to take one away."""

    offset: int
    epoch: int | None
    words: str = ""

    @classmethod
    def read(cls, offset: int, metadata: str) -> WithBrokers:
        found = _METADATA.fullmatch(metadata)
        return cls(offset, int(found[1])) if found else cls(offset, None, metadata)

    @property
    def metadata(self) -> str:
        """What stands beside it. The original leaves it empty, and so takes no notice of it either."""
        return self.words if self.epoch is None else f"kzconsumer epoch {self.epoch}"

    def before(self, epoch: int) -> bool:
        """The partition was reset in ZooKeeper since: this is where it was before that, and counts no more."""
        return self.epoch is not None and self.epoch < epoch

    def copied(self, epoch: int) -> int | None:
        """What the next copy has to differ from: -1 where none counts, None where it has to be made in any case.

        That is of a later epoch: the group was deleted since, and begins to count anew.
        """
        if self.before(epoch):
            return -1
        return None if self.epoch is not None and self.epoch > epoch else self.offset


Storage = Literal["zookeeper", "kafka", "both"]
"""Where a group keeps its offsets, as one word; `both` is dual."""


class Authority(Enum):
    """What the settings come to.

    BOTH is the original's `offsets.storage=kafka` with `dual.commit.enabled`: both are written, and the larger counts.
    ZOOKEEPER_FIRST is the same beside a replayable sink, whose planned ranges stand in ZooKeeper and are emptied in the
    transaction that moves the offset: what the brokers have is a copy, and counts only where there is nothing else.
    """

    ZOOKEEPER = "zookeeper"
    KAFKA = "kafka"
    BOTH = "both"
    ZOOKEEPER_FIRST = "zookeeper first"

    @classmethod
    def of(cls, offsets: OffsetsSettings, *, replayable: bool) -> Authority:
        """Raises ValueError for a replayable sink whose offsets would be with the brokers alone."""
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
        """From outside: `fingerprint` is the claim record's, not empty where a replayable sink has the partition."""
        if storage == "both":
            return cls.ZOOKEEPER_FIRST if fingerprint else cls.BOTH
        return cls(storage)

    @property
    def copies(self) -> bool:
        """Whether the brokers get a copy of what is stored in ZooKeeper."""
        return self in (Authority.BOTH, Authority.ZOOKEEPER_FIRST)

    def begin(self, zookeeper: int | None, brokers: WithBrokers | None, epoch: int) -> int | None:
        """The stored offset that counts in the partition's reset epoch; None where none does.

        Source: the larger one as in `ZookeeperConsumerConnector.fetchOffsets` (1.1.1), which knows no epochs.
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
    """Raises ConfigError where offsets have to be in ZooKeeper and would not be.

    `replayable` is the sink, `in_run` whether the member reads to the end of the group's run.
    """
    where = f"{settings.source}: [offsets] dual_commit"
    try:
        authority = Authority.of(settings.offsets, replayable=replayable)
    except ValueError as error:
        raise ConfigError([f"{where}: {error}"]) from None
    if authority is Authority.KAFKA and in_run:
        why = "the end of a group's run is told by the offsets in ZooKeeper"
        raise ConfigError([f"{where}: {why}: set dual_commit = true beside [subscription] stop_at"])
