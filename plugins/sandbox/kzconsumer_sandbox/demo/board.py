"""The rows of the demo at one moment: members, partitions, and how far each is; of what its callers have read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec


class MemberState(Enum):
    """The state of a member, as it is displayed."""

    STARTING = "starting Spark"
    JOINING = "joining"
    CONSUMING = "consuming"
    KILLED = "killed with kill -9"
    STOPPING = "stopping"
    STOPPED = "stopped, exit status 0"


class MemberRow(msgspec.Struct, frozen=True):
    """A member; `owns` is its number of partitions in ZooKeeper."""

    name: str
    pid: int
    state: MemberState
    owns: int


class PartitionRow(msgspec.Struct, frozen=True):
    """A partition; offsets are next offsets, and so numbers of records. None: unknown."""

    partition: int
    owner: str | None
    produced: int
    fetched: int | None
    consumed: int | None
    committed: int

    @property
    def lag(self) -> int:
        """Records in the log that the group has not committed."""
        return max(0, self.produced - self.committed)


class Board(msgspec.Struct, frozen=True):
    """`messages` is the number of messages to be produced."""

    messages: int
    partitions: tuple[PartitionRow, ...] = ()
    members: tuple[MemberRow, ...] = ()

    @property
    def produced(self) -> int:
        return sum(row.produced for row in self.partitions)

    @property
    def committed(self) -> int:
        return sum(row.committed for row in self.partitions)

    @property
    def owned(self) -> int:
        return sum(row.owner is not None for row in self.partitions)

    def owned_by(self, name: str) -> frozenset[int]:
        return frozenset(row.partition for row in self.partitions if row.owner == name)


class Reported(msgspec.Struct, frozen=True):
    """A partition as an owner reports it in its log."""

    topic: str
    partition: int
    fetched: int | None
    consumed: int


def partition_rows(
    produced: Sequence[int],
    owners: Mapping[int, str],
    committed: Mapping[int, int],
    reported: Mapping[str, Mapping[int, Reported]],
) -> tuple[PartitionRow, ...]:
    """A row for each partition. Fetched and consumed offsets are those that its owner in ZooKeeper reports."""
    rows = []
    for partition, count in enumerate(produced):
        owner = owners.get(partition)
        seen = reported.get(owner, {}).get(partition) if owner is not None else None
        rows.append(
            PartitionRow(
                partition=partition,
                owner=owner,
                produced=count,
                fetched=seen.fetched if seen else None,
                consumed=seen.consumed if seen else None,
                committed=committed.get(partition, 0),
            )
        )
    return tuple(rows)
