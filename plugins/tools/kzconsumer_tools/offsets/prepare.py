"""Moves of a group's stored offsets in ZooKeeper: worked out from what its nodes and the logs say, and carried out.

Owns no state. `kzconsumer offsets reset | import | clone` call it; what a move is, `offsets/moves` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kzconsumer.errors import NotDone, NotThere
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools.groups.apply import carry_out, make_parents
from kzconsumer_tools.groups.cluster_access import Outside
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.offsets.changes import Move, Reset, Standing, offset_in, reset, to_offset
from kzconsumer_tools.offsets.stored import stored_offsets

Scope = Mapping[str, Collection[int] | None]
"""Topic -> the partitions that are meant, None for all of them."""


async def scoped(outside: Outside, nodes: GroupNodes, scope: Scope | None) -> list[TopicPartition]:
    """The partitions that are meant; None stands for all of the topics that the group has offsets of or members for.

    Raises NotThere for a topic or partition that the cluster does not have.
    """
    if scope is None:
        known = await outside.partitions(sorted(nodes.topics))
        return [TopicPartition(topic, number) for topic, numbers in known.items() for number in numbers]
    known = await outside.partitions(sorted(scope))
    found = []
    for topic, wanted in sorted(scope.items()):
        if topic not in known:
            raise NotThere(f"there is no topic {topic}")
        for number in sorted(known[topic] if wanted is None else set(wanted)):
            if number not in known[topic]:
                raise NotThere(f"topic {topic} has no partition {number} (it has {len(known[topic])})")
            found.append(TopicPartition(topic, number))
    return found


async def reset_moves(
    outside: Outside, nodes: GroupNodes, partitions: Collection[TopicPartition], to: Reset
) -> list[Move]:
    """Of a reset by time, `to.amount` is the time in ms since 1970. Raises NotDone where it cannot be worked out."""
    logs = await outside.logs(partitions)
    times = await outside.at_time(partitions, to.amount) if to.kind == "time" else {}
    try:
        return [reset(standing(nodes, each), to, logs[each], times.get(each)) for each in partitions]
    except ValueError as error:
        raise NotDone(f"{error}; nothing was changed") from None


async def file_moves(
    outside: Outside, nodes: GroupNodes, saved: Mapping[TopicPartition, bytes | None], *, as_they_are: bool
) -> list[Move]:
    """What a file says. `as_they_are`: of a file of nodes, which are restored; offsets of others are clamped."""
    if as_they_are:
        return [Move(standing(nodes, each), data) for each, data in sorted(saved.items())]
    offsets = {each: offset_in(data) for each, data in saved.items() if data is not None}
    await scoped(outside, nodes, _scope(offsets))
    logs = await outside.logs([each for each, offset in offsets.items() if offset is not None])
    return [
        to_offset(standing(nodes, each), offset, logs[each])
        if offset is not None
        else Move(standing(nodes, each), saved[each])
        for each, offset in sorted(offsets.items())
    ]


async def clone_moves(outside: Outside, source: GroupNodes, target: GroupNodes, scope: Scope | None) -> list[Move]:
    """The offsets that one group has stored, for another one. Raises NotThere where there are none."""
    chosen: dict[TopicPartition, bytes | None] = {
        each: data
        for each, data in stored_offsets(source).items()
        if offset_in(data) is not None and within(each, scope)
    }
    existing = await outside.partitions(sorted({each.topic for each in chosen}))
    chosen = {each: data for each, data in chosen.items() if each.partition in existing.get(each.topic, ())}
    if not chosen:
        raise NotThere(f"group {source.group} has no stored offset of a partition that is meant and exists")
    return await file_moves(outside, target, chosen, as_they_are=False)


async def execute(outside: Outside, nodes: GroupNodes, moves: Sequence[Move]) -> None:
    """Carry the moves out; raises as `unattended.carry_out`."""
    group = GroupPaths(nodes.group)
    units = [changed for move in moves if (changed := move.changed(group))]
    await make_parents(outside.session, [change for unit in units for change in unit])
    topics = {move.standing.partition.topic for move in moves if move.changes}
    await carry_out(outside.session, group, units, topics=topics)


def standing(nodes: GroupNodes, partition: TopicPartition) -> Standing:
    """Raises NotDone where the claim record is of a version that knows more than this one."""
    group = GroupPaths(nodes.group)
    path = group.claim_record(partition)
    found = Standing(partition, nodes.offsets.get(group.offset(partition)), nodes.claims.get(path))
    try:
        found.claim  # noqa: B018
    except ValueError as error:
        raise NotDone(f"{path}: {error}; a newer kzconsumer has to do it") from None
    return found


def _scope(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    scope: dict[str, list[int]] = {}
    for topic, number in partitions:
        scope.setdefault(topic, []).append(number)
    return scope


def within(partition: TopicPartition, scope: Scope | None) -> bool:
    """Whether the partition is one of those that are meant."""
    if scope is None:
        return True
    if partition.topic not in scope:
        return False
    numbers = scope[partition.topic]
    return numbers is None or partition.partition in numbers
