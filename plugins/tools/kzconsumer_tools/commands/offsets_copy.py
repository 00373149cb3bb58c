"""`kzconsumer offsets copy --from zookeeper --to kafka`, and back; and the undoing of what was copied to the brokers.

Owns no state. `cli/offsets` adds it to its actions. To ZooKeeper it is a move as any other there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kzconsumer.errors import NotThere
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import Storage
from kzconsumer.registry.nodes import encode_offset
from kzconsumer_tools.commands.cluster_option import Target
from kzconsumer_tools.commands.execute_option import undo_path, write_file
from kzconsumer_tools.commands.offsets_apply import Act
from kzconsumer_tools.groups.cluster_access import Outside
from kzconsumer_tools.groups.members_present import attending, refuse_attended
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.groups.reader import nodes_of, require_group
from kzconsumer_tools.offsets.coordinator_changes import BrokerMove, SavedWithBrokers, undo_file
from kzconsumer_tools.offsets.copy_to_coordinator import copy_moves, execute
from kzconsumer_tools.offsets.prepare import Scope, file_moves, within
from kzconsumer_tools.offsets.results import Moved, MovedGroup, Planned
from kzconsumer_tools.offsets.view import SeenGroup, see


class BrokerAct(NamedTuple):
    """As `offset_acts.Act`, with the brokers."""

    at: Target
    plan: Callable[[Outside], Awaitable[list[tuple[GroupNodes, list[BrokerMove]]]]]


def to_zookeeper(at: Target, group: str, scope: Scope | None) -> Act:
    async def plan(outside: Outside) -> list[Planned]:
        seen, offsets = await _offsets(outside, at, group, scope, "kafka")
        data: dict[TopicPartition, bytes | None] = {each: encode_offset(at) for each, at in offsets.items()}
        return [Planned(seen.nodes, await file_moves(outside, seen.nodes, data, as_they_are=False))]

    return Act(at, plan)


def to_brokers(at: Target, group: str, scope: Scope | None) -> BrokerAct:
    async def plan(outside: Outside) -> list[tuple[GroupNodes, list[BrokerMove]]]:
        seen, offsets = await _offsets(outside, at, group, scope, "zookeeper")
        has = await outside.with_brokers(group, offsets)
        return [(seen.nodes, await copy_moves(outside, seen.nodes, offsets, has))]

    return BrokerAct(at, plan)


def undone(at: Target, saved: Sequence[SavedWithBrokers]) -> BrokerAct:
    """What a file says, as it is."""

    async def plan(outside: Outside) -> list[tuple[GroupNodes, list[BrokerMove]]]:
        planned = []
        for group in sorted({each.group for each in saved}):
            had = {each.where: each.had for each in saved if each.group == group}
            has = await outside.with_brokers(group, had)
            moves = [BrokerMove(where, has.get(where), before) for where, before in sorted(had.items())]
            planned.append((await nodes_of(outside.session, group), moves))
        return planned

    return BrokerAct(at, plan)


async def carry_out(act: BrokerAct, to_execute: bool, undo: Path | None) -> Moved:
    """Raises GroupInUse or NotDone when it is to be executed and must not be: nothing is changed then."""
    async with act.at.outside() as outside:
        planned = await act.plan(outside)
        written = None
        if to_execute and any(move.changes for _, moves in planned for move in moves):
            for nodes, _ in planned:
                refuse_attended(nodes)
            written = undo_path(undo, planned[0][0].group)
            write_file(written, b"".join(undo_file(nodes.group, moves) for nodes, moves in planned))
            for nodes, moves in planned:
                await execute(outside, nodes, moves)
    groups = [
        MovedGroup(nodes.group, attending(nodes), tuple(move.described() for move in moves)) for nodes, moves in planned
    ]
    return Moved(written is not None, str(written) if written is not None else None, tuple(groups))


async def _offsets(
    outside: Outside, at: Target, group: str, scope: Scope | None, storage: Storage
) -> tuple[SeenGroup, dict[TopicPartition, int]]:
    """Where members with that storage begin. Raises NotThere where there is no offset of what is meant."""
    await require_group(outside.session, at.zookeeper.connect, group)
    seen = await see(outside, await nodes_of(outside.session, group), storage)
    offsets = {
        each: offset
        for each, offset in seen.known.offsets.items()
        if offset is not None and each in seen.known.existing and within(each, scope)
    }
    if not offsets:
        raise NotThere(f"group {group} has no offset in {storage} of a partition that is meant and exists")
    return seen, offsets
