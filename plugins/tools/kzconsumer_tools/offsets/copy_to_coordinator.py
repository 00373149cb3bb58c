"""Moves of a group's offsets with the brokers: worked out from what is stored and the logs, and carried out.

Owns no state. `kzconsumer offsets copy` and `offsets import` call it. The brokers take an offset from whoever asks:
that nobody is a member is looked at before and after, in ZooKeeper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kzconsumer.errors import NotDone
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer_tools.groups.cluster_access import Outside
from kzconsumer_tools.groups.members_present import attending, refuse_attended
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.groups.reader import nodes_of
from kzconsumer_tools.offsets.coordinator_changes import NOTHING, BrokerMove
from kzconsumer_tools.offsets.prepare import scoped, standing


async def copy_moves(
    outside: Outside,
    nodes: GroupNodes,
    offsets: Mapping[TopicPartition, int],
    has: Mapping[TopicPartition, WithBrokers],
) -> list[BrokerMove]:
    """These offsets for the coordinator, which `has` those, in the log and of the partition's present reset epoch."""
    scope: dict[str, list[int]] = {}
    for topic, number in offsets:
        scope.setdefault(topic, []).append(number)
    await scoped(outside, nodes, scope)
    logs = await outside.logs(offsets)
    moves = []
    for partition, offset in sorted(offsets.items()):
        claim = standing(nodes, partition).claim
        epoch, new, before = claim.epoch if claim else None, logs[partition].clamp(offset), has.get(partition)
        after = WithBrokers(new, epoch)
        if before is not None and before.offset == new and not before.before(epoch or 0):
            after = before  # unchanged: whoever has stored it
        moves.append(BrokerMove(partition, before, after, epoch, offset, logs[partition]))
    return moves


async def execute(outside: Outside, nodes: GroupNodes, moves: Sequence[BrokerMove]) -> None:
    """Have the coordinator store what changes, and see that it has. Raises NotDone, GroupInUse, CoordinatorFailed."""
    changing = {move.partition: move.after for move in moves if move.changes}
    if not changing:
        return
    refuse_attended(await nodes_of(outside.session, nodes.group))
    coordinator = outside.coordinator(nodes.group)
    has = await coordinator.stored(changing)
    if any(has.get(move.partition) != move.before for move in moves if move.changes):
        raise NotDone(f"group {nodes.group} has stored other offsets with the brokers meanwhile; nothing was changed")
    refused = await coordinator.store({where: after or NOTHING for where, after in changing.items()})
    if refused:
        where, why = min(refused.items())
        raise NotDone(
            f"{where} and {len(refused) - 1} more were not stored: {why}; {len(changing) - len(refused)} were"
        )
    has = await coordinator.stored(changing)
    if wrong := [where for where, after in sorted(changing.items()) if has.get(where) != after]:
        raise NotDone(
            f"{wrong[0]} is at {has.get(wrong[0])} with the brokers: somebody else stores offsets of the group"
        )
    if (who := attending(await nodes_of(outside.session, nodes.group))) is not None:
        raise NotDone(f"group {nodes.group} {who}: it joined meanwhile and may have begun at the offsets before")
