"""Every partition of a group as ZooKeeper and the brokers have it, of all owners: reads for the status page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kzconsumer.brokers.leaders import LogOffsets, why_unknown
from kzconsumer.brokers.protocol.log_reads import LATEST, ListedOffset
from kzconsumer.errors import KzConsumerError
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_transactions import OwnerRegistry

#: Partitions that are read in one round trip: the session's other requests wait behind them.
AT_ONCE = 100
#: Seconds for the brokers to list the ends of logs.
PATIENCE = 3.0


class OverviewPartition(msgspec.Struct, frozen=True):
    """`owner` is the owner node's text, None if there is none; `committed` None if nothing is stored."""

    owner: str | None
    committed: int | None
    end: int | Why


class Overview:
    """Every partition of a group as ZooKeeper and the brokers have it, of all owners: reads for the status page."""

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

    async def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OverviewPartition]:
        """Raises as the session and the coordinator do; brokers that do not answer leave ends unknown."""
        owners: dict[TopicPartition, str] = {}
        committed: dict[TopicPartition, int] = {}
        for first in range(0, len(partitions), AT_ONCE):
            part = partitions[first : first + AT_ONCE]
            owners |= {partition: held.owner for partition, held in (await self._owners.standing(part)).items()}
            committed |= await self._committed(part)
        ends = await self._ends(partitions)
        return {p: OverviewPartition(owners.get(p), committed.get(p), ends[p]) for p in partitions}

    async def _committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if isinstance(self._offsets, ZooKeeperOffsetStorage):
            return await self._offsets.stored(partitions)
        return {partition: found.offset for partition, found in (await self._offsets.stored(partitions)).items()}

    async def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | Why]:
        try:
            found = await self._log_offsets.once(dict.fromkeys(partitions, LATEST), within=PATIENCE)
        except KzConsumerError as error:
            return dict.fromkeys(partitions, why_unknown(error))
        return {p: at.offset if isinstance(at, ListedOffset) else why_unknown(at) for p, at in found.items()}
