"""Every partition of a group as ZooKeeper and the brokers have it, of all owners: reads for the status page."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from kzconsumer.brokers.log_offsets import LogOffsets
from kzconsumer.brokers.protocol.list_offsets import LATEST, ListedOffset
from kzconsumer.errors import KzConsumerError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.registry.owners import OwnerRegistry

#: Partitions that are read in one round trip: the session's other requests wait behind them.
AT_ONCE = 100
#: Seconds for the brokers to list the ends of logs.
PATIENCE = 3.0


class SeenPartition(msgspec.Struct, frozen=True):
    """`owner` is the owner node's text; None is none, or unknown."""

    owner: str | None
    committed: int | None
    end: int | None


class Overview:
    def __init__(
        self,
        owners: OwnerRegistry,
        offsets: ZooKeeperOffsetStorage | GroupCoordinator,
        log_offsets: LogOffsets,
    ) -> None:
        """`offsets`: where the group stores them; of two storages ZooKeeper."""
        self._owners = owners
        self._offsets = offsets
        self._log_offsets = log_offsets

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, SeenPartition]:
        """Raises as the session and the coordinator do; brokers that do not answer leave ends unknown."""
        owners: dict[TopicPartition, str] = {}
        committed: dict[TopicPartition, int] = {}
        for first in range(0, len(partitions), AT_ONCE):
            part = partitions[first : first + AT_ONCE]
            owners |= {partition: held.owner for partition, held in (await self._owners.standing(part)).items()}
            committed |= await self._committed(part)
        ends = await self._ends(partitions)
        return {p: SeenPartition(owners.get(p), committed.get(p), ends.get(p)) for p in partitions}

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if isinstance(self._offsets, ZooKeeperOffsetStorage):
            return await self._offsets.stored(partitions)
        return {partition: found.offset for partition, found in (await self._offsets.stored(partitions)).items()}

    async def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with anyio.move_on_after(PATIENCE):
            try:
                found = await self._log_offsets.once(dict.fromkeys(partitions, LATEST))
            except KzConsumerError:
                return {}
            return {partition: at.offset for partition, at in found.items() if isinstance(at, ListedOffset)}
        return {}
