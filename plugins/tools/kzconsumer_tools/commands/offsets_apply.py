"""Changes of stored offsets: prepared from what is read, and applied in the same session.

Each verb has one function that prepares its changes; `perform` checks and applies the changes of any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from kzconsumer.display import plural
from kzconsumer.errors import NotDoneError
from kzconsumer.offsets.start_rules import Storage
from kzconsumer_tools.commands.cluster_option import ClusterOption
from kzconsumer_tools.commands.output_and_options import write_undo
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.group_nodes import members_present, require_no_members
from kzconsumer_tools.groups.group_reader import require_group
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.offsets.move_rules import MovedPartition
from kzconsumer_tools.offsets.offset_changes import (
    ChangedGroup,
    ChangedOffsets,
    CoordinatorChange,
    DescribedChange,
    Reset,
    SavedCoordinatorOffset,
)
from kzconsumer_tools.offsets.offset_files import SavedOffset
from kzconsumer_tools.offsets.prepare import (
    CoordinatorChanges,
    OffsetChanges,
    Scope,
    partitions_in,
    prepare_clone,
    prepare_import,
    prepare_reset,
    require_counting,
)
from kzconsumer_tools.offsets.stored_offsets import stored_offsets

Prepared = Sequence[OffsetChanges | CoordinatorChanges]
"""The changes of each group."""
Prepare = Callable[[ClusterAccess], Awaitable[Prepared]]


async def perform(
    at: ClusterOption, prepare: Prepare, execute: bool, republish: bool, undo: Path | None
) -> ChangedOffsets:
    """Prepare the changes, and apply them if `execute`.

    Raises GroupInUseError if a group has members, NotDoneError if a replayable sink would write records twice without
    `republish`, or if the undo file cannot be written; nothing is changed then.
    """
    async with ChangeProgress("partition") as progress, at.access() as access:
        prepared = await prepare(access)
        described = [[change.described() for change in each.changes] for each in prepared]
        written = None
        changing = sum(change.changes for changes in described for change in changes)
        if execute and changing:
            for each, changes in zip(prepared, described, strict=True):
                require_no_members(each.nodes)
                if not republish:
                    refuse_republishing(each.nodes.group, changes)
            written = write_undo(undo, prepared[0].nodes.group, b"".join(each.undo_file() for each in prepared))
            progress.begin(changing, written)
            for each in prepared:
                await each.apply(access, progress)
                progress.finished.append(f"group {each.nodes.group}")
    groups = [
        ChangedGroup(each.nodes.group, members_present(each.nodes), tuple(changes), each.left_out, _is_new(each))
        for each, changes in zip(prepared, described, strict=True)
    ]
    return ChangedOffsets(written is not None, str(written) if written is not None else None, tuple(groups))


def _is_new(change: OffsetChanges | CoordinatorChanges) -> bool:
    nodes = change.nodes
    return isinstance(change, OffsetChanges) and not (nodes.registrations or nodes.offsets or nodes.claims)


def refuse_republishing(group: str, changes: Sequence[DescribedChange | MovedPartition]) -> None:
    """Raises NotDoneError if a replayable sink would write records of the group twice."""
    found = [each for each in changes if each.republished]
    if found:
        number = sum(each.republished for each in found)
        where = ", ".join(f"{each.topic}-{each.partition}" for each in found[:3]) + (", ..." if found[3:] else "")
        raise NotDoneError(
            f"group {group}: {plural(number, 'offset')} that its replayable sink has published, or may have, in "
            f"{where} would be consumed again, and its destination would hold these records twice; use --republish if "
            "that is meant (nothing was changed)"
        )


async def reset(
    connect: str, group: str, scope: Scope | None, to: Reset, storage: Storage | None, access: ClusterAccess
) -> Sequence[OffsetChanges]:
    """`storage`: where members of the group store their offsets; None: the operator has not said."""
    if scope is None:
        await require_group(access.session, connect, group)
    nodes = await access.nodes(group)
    partitions = await partitions_in(access, nodes, scope)
    if to.kind in ("current", "shift"):
        await require_counting(access, nodes, partitions, storage)
    left_out = sorted(stored_offsets(nodes).keys() - set(partitions)) if scope is None else ()
    return [OffsetChanges(nodes, await prepare_reset(access, nodes, partitions, to), tuple(map(str, left_out)))]


async def import_offsets(
    saved: Sequence[SavedOffset], group: str | None, verbatim: bool, access: ClusterAccess
) -> Sequence[OffsetChanges]:
    """`group` is that of offsets without one in the file."""
    prepared = []
    for name in sorted({each.group or group or "" for each in saved}):
        nodes = await access.nodes(name)
        offsets = {each.partition: each for each in saved if (each.group or group) == name}
        prepared.append(await prepare_import(access, nodes, offsets, verbatim=verbatim))
    return prepared


async def clone(
    connect: str, source: str, group: str, scope: Scope | None, access: ClusterAccess
) -> Sequence[OffsetChanges]:
    await require_group(access.session, connect, source)
    original, nodes = await access.nodes(source), await access.nodes(group)
    return [await prepare_clone(access, original, nodes, scope)]


async def undo_in_brokers(
    saved: Sequence[SavedCoordinatorOffset], access: ClusterAccess
) -> Sequence[CoordinatorChanges]:
    prepared = []
    for group in sorted({each.group for each in saved}):
        before = {each.topic_partition: each.stored for each in saved if each.group == group}
        present = await access.coordinator_offsets(group, before)
        changes = [CoordinatorChange(where, present.get(where), after) for where, after in sorted(before.items())]
        prepared.append(CoordinatorChanges(await access.nodes(group), changes))
    return prepared
