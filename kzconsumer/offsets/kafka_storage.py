"""Committed offsets with the brokers alone: the fence is checked in ZooKeeper, then the coordinator stores.

No transaction spans the two: a member that loses a partition in between can still move its offset, also back, so that
records are redelivered. Plans are never stored this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from kzconsumer.errors import MultiFailedError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.storage import Lost, OffsetWrite, Refused, Stored
from kzconsumer.offsets.zookeeper_storage import by_transaction
from kzconsumer.zookeeper.round_trips import repeated, together
from kzconsumer.zookeeper.session import ZooKeeperSession

CHECKS_PER_PARTITION = 2


class KafkaOffsetStorage:
    """Offsets of one group with its coordinator, of claims that held a moment before."""

    name: Final = "kafka"
    forgets: Final = True

    def __init__(self, session: ZooKeeperSession, coordinator: GroupCoordinator) -> None:
        self._session = session
        self._coordinator = coordinator

    async def write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost | Refused]:
        """Store all whose claim holds. Raises SessionExpiredError, ZooKeeperError, CoordinatorError."""
        results: dict[TopicPartition, Stored | Lost | Refused] = {}
        for lost in await together([self._lost(part) for part in by_transaction(writes)]):
            results.update(lost)
        held = [write for write in writes if write.topic_partition not in results]
        refused = await self._coordinator.store(
            {
                write.topic_partition: WithBrokers(write.offset, write.epoch, leader_epoch=write.leader_epoch)
                for write in held
            }
        )
        for write in held:
            assert write.plan is None, f"{write.topic_partition}: a plan, and offsets only in Kafka"
            reason = refused.get(write.topic_partition)
            stored = Stored(write.fence, write.record, write.version)
            results[write.topic_partition] = stored if reason is None else Refused(reason)
        return results

    async def executed(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored]:
        """None are known: offsets with the brokers have no versions. They may be written twice."""
        return {}

    async def _lost(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Lost]:
        lost: dict[TopicPartition, Lost] = {}
        pending = list(writes)
        while pending:
            checks = [check for write in pending for check in write.fence.checks()]
            try:
                await repeated(partial(self._session.multi, checks))
            except MultiFailedError as refused:
                write = pending.pop(refused.index // CHECKS_PER_PARTITION)
                lost[write.topic_partition] = Lost(str(refused.error))
            else:
                break
        return lost
