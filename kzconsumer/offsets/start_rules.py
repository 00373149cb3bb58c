"""Where an owned partition begins: what to do about the stored offset, a plan that is found, and a second storage.

Pure. `claim_start` carries it out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol

import msgspec

from kzconsumer.errors import ConfigError
from kzconsumer.model import RangeIdentity
from kzconsumer.registry.claim_record import Plan, refusal
from kzconsumer.settings.sections import OffsetsSettings
from kzconsumer.settings.settings import Settings


class StartAt(msgspec.Struct, frozen=True):
    """Nothing is in flight: begin at `offset`; None: nothing is stored, the reset policy decides."""

    offset: int | None


class Replay(msgspec.Struct, frozen=True):
    """Write exactly `first <= offset < until` before anything else, and commit `until`.

    `moved_to` is the stored offset if a program that does not know plans has moved it, else None.
    """

    first: int
    until: int
    moved_to: int | None = None


class Clear(msgspec.Struct, frozen=True):
    """The plan no longer applies: remove it, fenced, and begin at `offset` (None: by the reset policy)."""

    offset: int | None
    reason: str


class Refuse(msgspec.Struct, frozen=True):
    """This member must not consume the partition."""

    reason: str


Adoption = StartAt | Replay | Clear | Refuse


def compare(
    plan: Plan | None, stored: int | None, stored_version: int, incarnation: str, epoch: int, fingerprint: str
) -> Adoption:
    """What to do about a plan found at a claim; `incarnation`, `epoch` and `fingerprint` are the present ones.

    `stored` is where the claim begins without a plan (`resume`), `stored_version` the version of the offset's node (-1:
    there is none).
    """
    # The order matters: what comes first does not look at what follows. A range of another destination is refused
    # before its topic is compared, as only a member that writes there may forget it. A range is replayed as a whole
    # even if another program has moved the offset within it: the destination knows it under its bounds.
    if plan is None:
        return StartAt(stored)
    if (reason := refusal(plan, fingerprint)) is not None:
        return Refuse(reason)
    planned = f"the planned range {plan.first} to {plan.until}"
    if plan.incarnation != incarnation:
        return Clear(stored, f"{planned} is of a deleted topic ({plan.incarnation}); the present one is {incarnation}")
    if plan.epoch != epoch:
        return Clear(stored, f"{planned} is of reset epoch {plan.epoch}; it is {epoch} now")
    if stored is None:
        return Clear(stored, f"{planned} has no stored offset any more")
    if not plan.first <= stored < plan.until:
        return Clear(stored, f"the stored offset was moved to {stored}, out of {planned}")
    as_planned = stored == plan.first and stored_version == plan.offset_version
    return Replay(plan.first, plan.until, None if as_planned else stored)


def resume(stored: int | None, committed_until: int | None) -> int | None:
    """Where a claim begins: at the stored offset, but never below `committed_until` of the claim record.

    That is None for a sink that is not replayable, and if unknown. A lower stored offset was written by a program that
    does not know claim records; the destination has the records in between.
    """
    if committed_until is None or (stored is not None and stored >= committed_until):
        return stored
    return committed_until


def missing(plan: Plan, log_start: int, log_end: int) -> tuple[tuple[int, int], ...]:
    """The parts of the range that a log from `log_start` to `log_end` lacks, as (first, until)."""
    begins = min(max(plan.first, log_start), plan.until)
    ends = max(min(plan.until, log_end), begins)
    return tuple(part for part in ((plan.first, begins), (ends, plan.until)) if part[0] < part[1])


# ZooKeeper or the brokers: which of two storages decides where a partition begins.

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


class Destination(Protocol):
    """A place where publishing a range is atomic, the first publication wins, and nothing is deleted.

    `fingerprint` identifies it: target, format, partition columns, function. Two members with the same one write the
    same to the same place. It is not empty, and valid once the sink is entered.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def remembers(self) -> bool:
        """Whether `has` knows a published range for ever.

        Each claim asks such a destination for the last committed range; if it is missing, the partition is not
        consumed.
        """
        ...

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        """Those that are published, by any member."""
        ...


class SinkDestination(Destination, Protocol):
    """A destination as a member asks it, also if the sink cannot set ranges aside.

    Its errors, and answers that take too long, are raised as SinkError.
    """

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """See `kzconsumer.sinks.interface.SettingAside`; otherwise whether the range is unpublished."""
        ...
