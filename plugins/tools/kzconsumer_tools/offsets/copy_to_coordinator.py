"""Changes of a group's offsets in the brokers: computed from what is stored and the logs, and applied.

Brokers accept an offset from any client: that the group has no members is checked in ZooKeeper, before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kzconsumer.errors import NotDoneError
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.members_present import members_present, require_no_members
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.offsets.coordinator_changes import NO_OFFSET, CoordinatorChange, undo_file
from kzconsumer_tools.offsets.prepare import nodes_at, require_partitions


class CoordinatorChanges(NamedTuple):
    """The changes of one group in the brokers."""

    nodes: GroupNodes
    changes: list[CoordinatorChange]

    def undo_file(self) -> bytes:
        return undo_file(self.nodes.group, self.changes)

    async def apply(self, access: ClusterAccess) -> None:
        """Store what changes, and read it back. Raises NotDoneError, GroupInUseError, CoordinatorError."""
        group = self.nodes.group
        before = {change.partition: change.before for change in self.changes if change.changes}
        after = {change.partition: change.after for change in self.changes if change.changes}
        if not after:
            return
        require_no_members(await access.nodes(group))
        coordinator = access.coordinator(group)
        present = await coordinator.stored(after)
        if any(present.get(where) != expected for where, expected in before.items()):
            raise NotDoneError(f"the brokers' offsets of group {group} changed meanwhile; nothing was changed")
        refused = await coordinator.store({where: offset or NO_OFFSET for where, offset in after.items()})
        if refused:
            where, why = min(refused.items())
            raise NotDoneError(
                f"{where} and {len(refused) - 1} more were not stored: {why}; {len(after) - len(refused)} were"
            )
        present = await coordinator.stored(after)
        if wrong := [where for where, offset in sorted(after.items()) if present.get(where) != offset]:
            raise NotDoneError(
                f"the brokers have {present.get(wrong[0])} for {wrong[0]}: another client stores offsets of the group"
            )
        if (reason := members_present(await access.nodes(group))) is not None:
            raise NotDoneError(f"group {group} {reason}; it joined meanwhile and may have begun at the earlier offsets")


async def prepare_copy(
    access: ClusterAccess,
    nodes: GroupNodes,
    offsets: Mapping[TopicPartition, int],
    present: Mapping[TopicPartition, WithBrokers],
) -> list[CoordinatorChange]:
    """These offsets, moved into the log, in the partition's present reset epoch. `present`: what the brokers have."""
    await require_partitions(access, offsets)
    logs = await access.logs(offsets)
    changes = []
    for partition, offset in sorted(offsets.items()):
        claim = nodes_at(nodes, partition).claim
        epoch, new, before = claim.epoch if claim else None, logs[partition].clamp(offset), present.get(partition)
        after = WithBrokers(new, epoch)
        if before is not None and before.offset == new and not before.before(epoch or 0):
            after = before  # the effective offset is the same, whatever stands beside it
        changes.append(CoordinatorChange(partition, before, after, epoch, offset, logs[partition]))
    return changes
