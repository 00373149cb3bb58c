"""With dual commit the brokers have the offset that ZooKeeper has, once an owner gives a partition up, and at rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.operations import Delete, Operation
from tests.support.simulated.coordinator import Coordinator
from tests.support.simulated.member import Member
from tests.support.simulated.promises import Promises

EXCUSES = ("final commit to the coordinator failed", "rebalance interrupted", "partition lost")
EXCUSED = 20.0
"""Seconds for which such an event excuses the member that has logged it."""


class Copies:
    """Checks each release of a member that has not logged why it could not copy."""

    def __init__(self, promises: Promises, coordinator: Coordinator) -> None:
        self._promises = promises
        self._coordinator = coordinator
        self._excused: dict[str, float] = {}  # members, and until when
        promises.ensemble.committed.append(self._committed)

    def logged(self, name: str, event: str) -> None:
        if event.startswith(EXCUSES):
            self._excused[name] = self._promises.world.now + EXCUSED

    def missing(self, members: Iterable[Member]) -> str:
        """At rest; empty if every copy is there."""
        owned = (partition for member in members if member.active for partition in member.held)
        return next(filter(None, map(self._missing, owned)), "")

    def _missing(self, partition: TopicPartition) -> str:
        kept, stored = self._coordinator.stored.get(partition), self._promises.stored_by_owner(partition)
        if stored is None or (kept is not None and kept.offset == stored):
            return ""
        return f"of {partition} {stored} is stored, and the brokers have {kept}"

    def _committed(self, session: int, operations: Sequence[Operation]) -> None:
        """A release deletes owner nodes, as the end of a session does."""
        promises = self._promises
        deleted = {operation.path for operation in operations if isinstance(operation, Delete)}
        process = promises.network.processes.get(session)
        if process is None or not promises.ensemble.sessions[session].alive:
            return
        if promises.world.now < self._excused.get(process.name, 0.0):
            return
        for partition in promises.logs.partitions:
            released = promises.paths.owner(partition) in deleted and promises.paths.offset(partition) not in deleted
            if released and (missing := self._missing(partition)):
                promises.violated(f"{process} releases {partition}: {missing}")
