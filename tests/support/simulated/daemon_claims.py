"""What daemons write of the partitions that they own, and what of it is committed when they give them up.

`DaemonClaims` owns, of each partition, the present claim, and what was last written by a daemon that had claimed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kzconsumer.model import TopicPartition
from kzconsumer.sinks.interface import Batch
from kzconsumer.zookeeper.operations import Operation
from tests.support.simulated.ensemble import OPERATOR
from tests.support.simulated.virtual_time import Process

if TYPE_CHECKING:
    from tests.support.simulated.daemon import SimulatedDaemon
    from tests.support.simulated.daemons import Daemons


class Written(NamedTuple):
    claim: int
    """The owner node's czxid."""
    daemon: SimulatedDaemon
    incarnation: int
    until: int


class DaemonClaims:
    """See the module."""

    def __init__(self, daemons: Daemons) -> None:
        self._daemons = daemons
        self._group = daemons.group
        self._present: dict[TopicPartition, tuple[int, int]] = {}  # the owner node's czxid and session
        self._written: dict[TopicPartition, Written] = {}
        self._group.ensemble.committed.append(self._committed)

    def of(self, batch: Batch) -> dict[TopicPartition, int]:
        """The present claims of its partitions, 0 of one without owner."""
        return {part.topic_partition: self._group.promises.claim_of(part.topic_partition) for part in batch.ranges}

    def holder(self, partition: TopicPartition) -> Process | None:
        """The process that owns it."""
        return self._group.network.processes.get(self._group.promises.owners.get(partition, OPERATOR))

    def begins(self, daemon: SimulatedDaemon, batch: Batch) -> dict[TopicPartition, int]:
        """A write begins: the daemon owns all of it, and has written none of it yet. Returns the claims."""
        claims = self.of(batch)
        for part in batch.ranges:
            partition = part.topic_partition
            claim = claims[partition]
            if (holder := self.holder(partition)) is not daemon.process and self._group.world.now > daemon.misled_until:
                self._daemons.violated(f"{daemon} begins to write {part.range}, which belongs to {holder}")
            before = self._written.get(partition)
            if before is None or (before.claim, before.incarnation) != (claim, part.incarnation):
                continue
            again = part.first < before.until and partition not in self._daemons.cut
            if again and not self._says_so(daemon, partition):  # it may be on another stream, with the same owner node
                self._daemons.violated(f"{daemon} writes {part.range}, and has written up to {before.until}")
        return claims

    def wrote(self, daemon: SimulatedDaemon, batch: Batch, claims: Mapping[TopicPartition, int]) -> None:
        """The write has ended that began with these claims."""
        for part in batch.ranges:
            partition = part.topic_partition
            claim, before = claims[partition], self._written.get(partition)
            if claim and (before is None or claim >= before.claim):
                self._written[partition] = Written(claim, daemon, part.incarnation, part.until)

    def _committed(self, session: int, operations: Sequence[Operation]) -> None:
        """Every transaction that ZooKeeper executed."""
        promises, touched = self._group.promises, {operation.path for operation in operations}
        for partition in self._group.logs.partitions:
            if self._group.paths.owner(partition) in touched:
                before = self._present.pop(partition, None)
                if (holder := promises.owners.get(partition)) is not None:
                    self._present[partition] = promises.claim_of(partition), holder
                if before is not None and before != self._present.get(partition):
                    for daemon in self._daemons.daemons:
                        if self._group.network.processes.get(before[1]) is daemon.process:
                            daemon.ended_claims.append(self._group.world.now)
                    self._ended(partition, *before, by=session)

    def _ended(self, partition: TopicPartition, claim: int, holder: int, by: int) -> None:
        """If its owner has given it up in order, or says what it has not committed, nothing is redelivered unseen."""
        written, session = self._written.get(partition), self._group.ensemble.sessions[holder]
        if written is None or written.claim != claim or by != holder or partition in self._daemons.cut:
            return
        daemon = written.daemon
        asked = session.alive or (session.attached is not None and session.attached.asked_to_close)
        if not asked or daemon.killed or self._group.world.now < daemon.troubled:
            return
        if written.incarnation != self._daemons.incarnation(partition.topic):
            return
        stored = self._daemons.stored(partition)
        if stored < written.until and not self._says_so(daemon, partition):
            self._daemons.violated(f"{daemon} gives up {partition}: {stored} is stored, {written.until} is written")

    def _says_so(self, daemon: SimulatedDaemon, partition: TopicPartition) -> bool:
        for event in self._group.events:
            if event["member"] == daemon.process.name:
                late = event["event"].startswith("work not finished in time")
                if late and (event["topic"], event["partition"]) == partition:
                    return True
                if event["event"].startswith("final commit failed"):
                    return True
        return False
