"""One act on stored offsets from reading to answer: what would change, what forbids it, the undo file, the change.

Owns no state. `cli/offsets` chooses the act and prints the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kzconsumer.errors import NotDone
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools.commands.cluster_option import Target
from kzconsumer_tools.commands.execute_option import write_undo
from kzconsumer_tools.groups.cluster_access import Outside
from kzconsumer_tools.groups.members_present import attending, refuse_attended
from kzconsumer_tools.groups.reader import nodes_of, require_group
from kzconsumer_tools.offsets.changes import Move, Reset
from kzconsumer_tools.offsets.files import SavedOffset
from kzconsumer_tools.offsets.prepare import Scope, clone_moves, execute, file_moves, reset_moves, scoped
from kzconsumer_tools.offsets.results import Moved, MovedGroup, Planned


class Act(NamedTuple):
    """Where, and what would be done: worked out in the very session that does it."""

    at: Target
    plan: Callable[[Outside], Awaitable[list[Planned]]]


def reset(at: Target, group: str, scope: Scope | None, to: Reset) -> Act:
    async def plan(outside: Outside) -> list[Planned]:
        if scope is None:
            await require_group(outside.session, at.zookeeper.connect, group)
        nodes = await nodes_of(outside.session, group)
        partitions = await scoped(outside, nodes, scope)
        return [Planned(nodes, await reset_moves(outside, nodes, partitions, to))]

    return Act(at, plan)


def from_file(at: Target, saved: Sequence[SavedOffset], group: str | None, *, as_they_are: bool) -> Act:
    """`group` is that of offsets whose file does not say it."""

    async def plan(outside: Outside) -> list[Planned]:
        planned = []
        for name in sorted({each.group or group or "" for each in saved}):
            nodes = await nodes_of(outside.session, name)
            offsets = {each.partition: each.data for each in saved if (each.group or group) == name}
            planned.append(Planned(nodes, await file_moves(outside, nodes, offsets, as_they_are=as_they_are)))
        return planned

    return Act(at, plan)


def clone(at: Target, source: str, group: str, scope: Scope | None) -> Act:
    async def plan(outside: Outside) -> list[Planned]:
        await require_group(outside.session, at.zookeeper.connect, source)
        original, nodes = await nodes_of(outside.session, source), await nodes_of(outside.session, group)
        return [Planned(nodes, await clone_moves(outside, original, nodes, scope))]

    return Act(at, plan)


async def carry_out(act: Act, to_execute: bool, republish: bool, undo: Path | None) -> Moved:
    """Raises GroupInUse or NotDone when it is to be executed and must not be: nothing is changed then."""
    async with act.at.outside() as outside:
        planned = await act.plan(outside)
        changes = [
            change for nodes, moves in planned for move in moves for change in move.changed(GroupPaths(nodes.group))
        ]
        written = None
        if to_execute and changes:
            for nodes, moves in planned:
                refuse_attended(nodes)
                if not republish:
                    _refuse_republishing(nodes.group, moves)
            offsets = [change for change in changes if "/offsets/" in change.path]
            written = write_undo(undo, planned[0].nodes.group, offsets)
            for nodes, moves in planned:
                await execute(outside, nodes, moves)
    groups = [
        MovedGroup(nodes.group, attending(nodes), tuple(move.described() for move in moves)) for nodes, moves in planned
    ]
    return Moved(written is not None, str(written) if written is not None else None, tuple(groups))


def _refuse_republishing(group: str, moves: list[Move]) -> None:
    again = [each for each in (move.described() for move in moves) if each.republished]
    if again:
        number = sum(each.republished for each in again)
        reason = f"group {group}: {number} offsets that its replayable sink has published, or may have, in "
        where = ", ".join(f"{each.topic}-{each.partition}" for each in again[:3]) + (", ..." if again[3:] else "")
        told = f"{reason}{where} would be consumed again, and its destination would hold these records twice"
        raise NotDone(f"{told}; say --republish if that is meant (nothing was changed)")
