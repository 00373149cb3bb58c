"""Committed offsets in ZooKeeper: `/consumers/<group>/offsets/<topic>/<partition>`, written only through a fence.

Owns no state. Called by offsets/committer. A member that lost a partition cannot move its offset, forwards or
backwards: the owner's and the claim record's versions are checked in the same transaction that sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec
import structlog

from kzconsumer.errors import BadVersion, ConnectionLost, MultiFailed, NodeExists, NoNode
from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper import znodes
from kzconsumer.zookeeper.ownership import Fence
from kzconsumer.zookeeper.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import repeated, together
from kzconsumer.zookeeper.session import Check, Create, SetData, Stat, ZooKeeperSession

log = structlog.get_logger("kzconsumer.offsets")

# One transaction of this many partitions stays far below ZooKeeper's 1 MB limit on a request.
PARTITIONS_PER_TRANSACTION = 64
OPERATIONS_PER_PARTITION = 3


class OffsetWrite(msgspec.Struct, frozen=True):
    """One offset to be stored; `version` is the offset node's as last seen, -1 while there is none."""

    topic_partition: TopicPartition
    fence: Fence
    offset: int
    version: int
    in_doubt: int | None = None
    """What an earlier write, whose reply was not awaited, may have stored."""


class Stored(msgspec.Struct, frozen=True):
    version: int


class Lost(msgspec.Struct, frozen=True):
    """The partition is no longer ours: nothing was written."""

    reason: str


class ZooKeeperOffsetStorage:
    """Fenced writes of offsets on one session."""

    def __init__(self, session: ZooKeeperSession, paths: GroupPaths) -> None:
        self._session = session
        self._paths = paths

    async def write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost]:
        """Store all offsets, in transactions of up to 64 partitions; a lost partition holds up no other."""
        parts = [
            writes[first : first + PARTITIONS_PER_TRANSACTION]
            for first in range(0, len(writes), PARTITIONS_PER_TRANSACTION)
        ]
        results: dict[TopicPartition, Stored | Lost] = {}
        for part in await together([self._write(part) for part in parts]):
            results.update(part)
        return results

    async def last_writes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The id of the transaction that last wrote each partition's offset (mzxid), of those that have one."""
        asked = list(partitions)
        stats = await together([self._session.exists(self._paths.offset(partition)) for partition in asked])
        return {partition: stat.mzxid for partition, stat in zip(asked, stats, strict=True) if stat is not None}

    async def _write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost]:
        results: dict[TopicPartition, Stored | Lost] = {}
        pending = list(writes)
        while pending:
            try:
                stats = await self._session.multi([op for write in pending for op in self._operations(write)])
            except MultiFailed as refused:
                index, role = divmod(refused.index, OPERATIONS_PER_PARTITION)
                write = pending.pop(index)
                if role < 2:
                    results[write.topic_partition] = Lost(str(refused.error))
                elif isinstance(refused.error, (BadVersion, NodeExists, NoNode)):
                    pending.append(await repeated(partial(self._seen_anew, write)))
                else:
                    raise refused.error from refused
            except ConnectionLost:
                pending = await repeated(partial(self._not_executed, pending, results))
            else:
                for write, stat in zip(pending, stats[2::OPERATIONS_PER_PARTITION], strict=True):
                    results[write.topic_partition] = Stored(stat.version if isinstance(stat, Stat) else 0)
                break
        return results

    def _operations(self, write: OffsetWrite) -> tuple[Check, Check, SetData | Create]:
        path = self._paths.offset(write.topic_partition)
        data = znodes.encode_offset(write.offset)
        store = Create(path, data) if write.version < 0 else SetData(path, data, write.version)
        return *write.fence.checks(), store

    async def _seen_anew(self, write: OffsetWrite) -> OffsetWrite:
        """The offset node is not as we left it: a write of ours, cancelled midway, or somebody else's: say so."""
        path = self._paths.offset(write.topic_partition)
        node = await self._session.find(path)
        if (
            node is not None
            and write.in_doubt is not None
            and node.stat.version == write.version + 1
            and node.data == znodes.encode_offset(write.in_doubt)
        ):
            return msgspec.structs.replace(write, version=node.stat.version, in_doubt=None)
        if node is None:
            await self._session.ensure(path.rpartition("/")[0])
        log.error(
            "offset changed by somebody who does not own the partition; ours is set again",
            path=path,
            found=node.data[:40].decode("utf-8", "replace") if node else None,
            ours=write.offset,
        )
        return msgspec.structs.replace(write, version=node.stat.version if node else -1)

    async def _not_executed(
        self, writes: list[OffsetWrite], results: dict[TopicPartition, Stored | Lost]
    ) -> list[OffsetWrite]:
        """After a lost reply: the offset nodes tell which writes still have to be made."""
        await self._session.sync()
        nodes = await together([self._session.find(self._paths.offset(write.topic_partition)) for write in writes])
        remaining = []
        for write, node in zip(writes, nodes, strict=True):
            executed = (
                node is not None
                and node.stat.version == write.version + 1
                and node.data == znodes.encode_offset(write.offset)
            )
            if executed and node is not None:
                results[write.topic_partition] = Stored(node.stat.version)
            else:
                remaining.append(write)
        return remaining
