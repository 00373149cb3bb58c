"""Changes of a group's offsets, in ZooKeeper or in the brokers: computed from its nodes and the logs, and applied.

Brokers accept an offset from any client unless Kafka's newer consumer has members in the group: that no member of the
ZooKeeper group stores offsets is checked before and after.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from shlex import quote
from typing import NamedTuple, cast

import msgspec

from kzconsumer.assignors import Assignor
from kzconsumer.display import some
from kzconsumer.errors import CoordinatorError, NotDoneError, NotFoundError, PluginError
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import Storage, WithBrokers
from kzconsumer.plugins import ASSIGNORS, list_plugins, load
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_tools import node_changes
from kzconsumer_tools.groups.advice import Symptom
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.diagnosis import examine, not_asked
from kzconsumer_tools.groups.group_lag import next_offsets, partition_lags, partitions_of, standing_of
from kzconsumer_tools.groups.group_nodes import (
    GroupFacts,
    GroupNodes,
    facts,
    has_earlier_record,
    is_of_earlier_topic,
    members_present,
    require_no_members,
)
from kzconsumer_tools.groups.group_reader import apply_changes, make_parents
from kzconsumer_tools.node_changes import ChangeProgress, NodeChange, SavedNode, partition_of, partition_of_0_7
from kzconsumer_tools.offsets.offset_changes import (
    NO_OFFSET,
    CoordinatorChange,
    OffsetChange,
    PartitionNodes,
    Reset,
    coordinator_undo_file,
    offset_in,
    reset,
    to_offset,
)
from kzconsumer_tools.offsets.offset_files import FileFormat, SavedOffset
from kzconsumer_tools.offsets.stored_offsets import (
    EARLIER,
    OffsetOrigin,
    counting,
    effective_offsets,
    offsets_of_0_7,
    origin_of,
    require_present_topics,
    stored_offsets,
)

Scope = Mapping[str, Collection[int] | None]
"""Topic -> the chosen partitions, None for all of them."""


class OffsetChanges(NamedTuple):
    """The changes of one group in ZooKeeper."""

    nodes: GroupNodes
    changes: list[OffsetChange]
    left_out: tuple[str, ...] = ()
    """Partitions that were to be changed and do not exist."""

    def undo_file(self) -> bytes:
        """The present content of the offset nodes; claim records are not restored: epochs only grow."""
        return node_changes.write_nodes(
            saved_node(self.nodes, change.nodes.partition, offset.data if (offset := change.nodes.offset) else None)
            for change in self.changes
            if change.changes
        )

    async def apply(self, access: ClusterAccess, progress: ChangeProgress) -> None:
        """`progress` counts partitions. Raises GroupInUseError or NotDoneError, as `apply_changes`."""
        group = GroupPaths(self.nodes.group)
        topics = {change.nodes.partition.topic for change in self.changes if change.changes}
        await access.identify(self.nodes.group, sorted(topics))
        known = await (await access.topics()).found(sorted(topics), self.nodes.group)
        incarnations = {name: topic.incarnation for name, topic in known.items()}
        units = [
            changed
            for change in self.changes
            if (changed := change.changed(group, incarnations.get(change.nodes.partition.topic)))
        ]
        await make_parents(access.session, [change for unit in units for change in unit])
        await apply_changes(access.session, group, units, progress, topics=topics)


class CoordinatorChanges(NamedTuple):
    """The changes of one group in the brokers. `nodes` are those of the group of that name in ZooKeeper."""

    nodes: GroupNodes
    changes: list[CoordinatorChange]
    left_out: tuple[str, ...] = ()

    def undo_file(self) -> bytes:
        return coordinator_undo_file(self.nodes.group, self.changes)

    async def apply(self, access: ClusterAccess, progress: ChangeProgress) -> None:
        """Store what changes, and read it back. `progress` counts partitions.

        Raises NotDoneError, GroupInUseError, CoordinatorError.
        """
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
        with progress.request(len(after)):
            refused = await coordinator.store({where: offset or NO_OFFSET for where, offset in after.items()})
        if refused:
            progress.refused(len(refused))
            where, why = min(refused.items())
            raise NotDoneError(f"{where} and {len(refused) - 1} more were not stored: {why}")
        present = await coordinator.stored(after)
        if wrong := [where for where, offset in sorted(after.items()) if not _is_stored(offset, present.get(where))]:
            raise NotDoneError(
                f"the brokers have {present.get(wrong[0])} for {wrong[0]}: another client stores offsets of the group"
            )
        if (reason := members_present(await access.nodes(group))) is not None:
            raise NotDoneError(f"group {group} {reason}; it joined meanwhile and may have begun at the earlier offsets")


def _is_stored(wanted: WithBrokers | None, present: WithBrokers | None) -> bool:
    """Brokers before 2.1 do not keep leader epochs."""
    without = present is not None and wanted is not None and present.leader_epoch < 0
    return (wanted._replace(leader_epoch=-1) if without and wanted is not None else wanted) == present


def saved_node(nodes: GroupNodes, partition: TopicPartition, data: bytes | None) -> SavedNode:
    """A stored offset for a file, with what is known of its log."""
    origin = origin_of(nodes, partition)
    return SavedNode(GroupPaths(nodes.group).offset(partition), data, origin.topic, origin.leader_epoch)


def undo_of_removal(nodes: GroupNodes, removed: Iterable[NodeChange], gone: Collection[str] = ()) -> bytes:
    """The present content of nodes that are removed, and of which topic offsets are; `gone`: of one that is gone."""
    return node_changes.write_nodes(_removed(nodes, change, gone) for change in removed)


def _removed(nodes: GroupNodes, change: NodeChange, gone: Collection[str]) -> SavedNode:
    path, node = change.path, change.seen
    assert node is not None
    if path not in nodes.offsets:
        return SavedNode(path, node_changes.kept_content(path, node))
    try:
        saved = saved_node(nodes, partition_of(path), node.data)
    except ValueError:
        return SavedNode(path, node.data)
    return msgspec.structs.replace(saved, topic=saved.topic or EARLIER) if path in gone else saved


async def require_same_topics(access: ClusterAccess, group: str, restored: Iterable[SavedNode]) -> None:
    """Raises NotDoneError for offsets of an earlier topic: stored now, they would count for the present one."""
    origins = {partition_of(each.path): OffsetOrigin(each.topic) for each in restored if each.topic}
    topics = await (await access.topics()).found(sorted({each.topic for each in origins}), group)
    require_present_topics(origins, topics, "remove their lines from the file")


def within(partition: TopicPartition, scope: Scope | None) -> bool:
    """Whether the scope has the partition; None has all."""
    if scope is None:
        return True
    numbers = scope.get(partition.topic, ())
    return numbers is None or partition.partition in numbers


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


def choose(existing: Mapping[str, Collection[int]], scope: Scope) -> list[TopicPartition]:
    """The partitions of the scope. Raises NotFoundError for a topic or partition that does not exist."""
    found = []
    for topic, wanted in sorted(scope.items()):
        if topic not in existing:
            raise NotFoundError(f"there is no topic {topic}")
        for number in sorted(existing[topic] if wanted is None else set(wanted)):
            if number not in existing[topic]:
                raise NotFoundError(f"topic {topic} has no partition {number} (it has {len(existing[topic])})")
            found.append(TopicPartition(topic, number))
    return found


async def partitions_in(access: ClusterAccess, nodes: GroupNodes, scope: Scope | None) -> list[TopicPartition]:
    """The partitions of the scope; None stands for all topics for which the group has offsets or members.

    Raises NotFoundError for a topic or partition that the cluster does not have.
    """
    if scope is not None:
        return choose(await access.required(sorted(scope)), scope)
    existing = await access.partitions(sorted(nodes.topics))
    return [TopicPartition(topic, number) for topic, numbers in existing.items() for number in numbers]


async def prepare_reset(
    access: ClusterAccess, nodes: GroupNodes, partitions: Collection[TopicPartition], to: Reset
) -> list[OffsetChange]:
    """For a reset by time, `to.amount` is in ms since 1970. Raises NotDoneError if a new offset cannot be computed."""
    logs = await access.logs(partitions)
    times = await access.at_time(partitions, to.amount) if to.kind == "time" else {}
    try:
        return [reset(_to_change(nodes, each), to, logs[each], times.get(each)) for each in partitions]
    except ValueError as error:
        raise NotDoneError(f"{error}; nothing was changed") from None


async def require_counting(
    access: ClusterAccess, nodes: GroupNodes, partitions: Iterable[TopicPartition], storage: Storage | None
) -> None:
    """Raises NotDoneError if members start at other offsets than ZooKeeper's, or may; `storage` None: at which is not
    said."""
    if storage == "zookeeper":
        return
    chosen = list(partitions)
    zookeeper = facts(nodes).offsets
    try:
        brokers = await access.coordinator_offsets(nodes.group, chosen)
    except CoordinatorError as error:
        way = "if it has none with the brokers, say --storage zookeeper"
        raise NotDoneError(
            f"{error}: where group {nodes.group} continues is not known; {way} (nothing was changed)"
        ) from error
    counting = effective_offsets(nodes, zookeeper, brokers, storage or "both")
    others = [each for each in chosen if counting.get(each) not in (None, zookeeper.get(each))]
    if others:
        raise NotDoneError(
            f"the brokers have other offsets of group {nodes.group} than ZooKeeper, for {some(map(str, others))}: "
            f"`kzconsumer groups move {quote(nodes.group)} --from-kafka --execute` copies them first; "
            "with --storage zookeeper they do not count (nothing was changed)"
        )


async def prepare_import(
    access: ClusterAccess,
    nodes: GroupNodes,
    saved: Mapping[TopicPartition, SavedOffset],
    *,
    verbatim: bool,
    way_out: str = "to use the numbers all the same, remove the topics and leader epochs from the file",
) -> OffsetChanges:
    """The offsets of a file. `verbatim`: restore nodes as they were; otherwise offsets are moved into the log.

    Raises NotFoundError if none of the partitions exists, NotDoneError with the `way_out` for offsets of other topics.
    """
    topics = await (await access.topics()).found(sorted({each.topic for each in saved}), nodes.group)
    require_present_topics({each: at.origin for each, at in saved.items()}, topics, way_out)
    epochs = {each: at.origin.leader_epoch for each, at in saved.items()}
    if verbatim:
        restored = [
            OffsetChange(_to_change(nodes, each), at.data, leader_epoch=epochs[each])
            for each, at in sorted(saved.items())
        ]
        return OffsetChanges(nodes, restored)
    contents = {each: at.data for each, at in saved.items() if at.data is not None}
    offsets = {each: offset_in(data) for each, data in contents.items()}
    existing = await access.partitions(sorted({each.topic for each in offsets}))
    left_out = sorted(each for each in offsets if each.partition not in existing.get(each.topic, ()))
    if offsets and len(left_out) == len(offsets):
        choose(existing, by_topic(offsets))  # raises
    there = {each: offset for each, offset in offsets.items() if each not in left_out}
    logs = await access.logs([each for each, offset in there.items() if offset is not None])
    changes = [
        to_offset(_to_change(nodes, each), offset, logs[each], leader_epoch=epochs[each])
        if offset is not None
        else OffsetChange(_to_change(nodes, each), contents[each])
        for each, offset in sorted(there.items())
    ]
    return OffsetChanges(nodes, changes, tuple(map(str, left_out)))


def prepare_export(nodes: GroupNodes, format: FileFormat, scope: Scope | None) -> list[SavedNode]:
    """The stored offsets of a group for a file, also those that a consumer of Kafka 0.7 has left.

    Raises NotDoneError for offsets of an earlier topic if the format does not say of which topic they are.
    """
    stored = {each: data for each, data in stored_offsets(nodes).items() if within(each, scope)}
    if format in ("csv", "spark"):
        require_present_topics({each: origin_of(nodes, each) for each in stored}, nodes.topics, _reset_hint(nodes))
    saved = [saved_node(nodes, each, data) for each, data in stored.items()]
    for path, data in offsets_of_0_7(nodes).items():
        left = partition_of_0_7(path)
        if within(TopicPartition(left.topic, left.number), scope):
            saved.append(SavedNode(path, data))
    return saved


def _reset_hint(nodes: GroupNodes) -> str:
    return f"`kzconsumer offsets reset {quote(nodes.group)}` sets where to begin, --topic leaves topics out"


async def prepare_clone(
    access: ClusterAccess, source: GroupNodes, target: GroupNodes, scope: Scope | None
) -> OffsetChanges:
    """The stored offsets of one group for another one, with their leader epochs.

    Raises NotFoundError if there are none, NotDoneError for offsets of an earlier topic of that name.
    """
    chosen = {
        each: SavedOffset(None, each, data, origin_of(source, each))
        for each, data in stored_offsets(source).items()
        if offset_in(data) is not None and within(each, scope)
    }
    existing = await access.partitions(sorted({each.topic for each in chosen}))
    if not any(each.partition in existing.get(each.topic, ()) for each in chosen):
        raise NotFoundError(f"group {source.group} has no stored offset of a chosen partition that exists")
    return await prepare_import(access, target, chosen, verbatim=False, way_out=_reset_hint(source))


def nodes_at(nodes: GroupNodes, partition: TopicPartition) -> PartitionNodes:
    """Raises NotDoneError for a claim record in the format of a newer version."""
    group = GroupPaths(nodes.group)
    path = group.claim_record(partition)
    found = PartitionNodes(
        partition,
        nodes.offsets.get(group.offset(partition)),
        nodes.claims.get(path),
        is_of_earlier_topic(nodes, partition),
        has_earlier_record(nodes, partition),
    )
    try:
        found.claim  # noqa: B018
    except ValueError as error:
        raise NotDoneError(f"{path}: {error}; use a newer kzconsumer") from None
    return found


def _to_change(nodes: GroupNodes, partition: TopicPartition) -> PartitionNodes:
    """Before anything is changed. Raises as `nodes_at`."""
    try:
        return nodes_at(nodes, partition)
    except NotDoneError as error:
        raise NotDoneError(f"{error} (nothing was changed)") from None


# The effective offsets of a group are ZooKeeper's, the brokers', or the larger of both.


class GroupView(msgspec.Struct, frozen=True):
    """`facts.offsets` are those that a member starts at; `brokers` are the brokers', or why they are not known (empty
    if they were not asked)."""

    nodes: GroupNodes
    facts: GroupFacts
    brokers: Mapping[TopicPartition, WithBrokers | Why]


def view_of(nodes: GroupNodes) -> GroupView:
    """The view of a group that stores its offsets in ZooKeeper only."""
    return GroupView(nodes, facts(nodes), {})


async def read_view(access: ClusterAccess, nodes: GroupNodes, storage: Storage) -> GroupView:
    """Ask the brokers too if they store offsets of the group. What they do not return is unknown, with its reason."""
    view = view_of(nodes)
    if storage == "zookeeper":
        return view
    known = view.facts
    asked = known.existing.union(known.offsets, known.owners, known.claimed)
    brokers = await access.known_offsets(nodes.group, asked)
    more = sorted({partition.topic for partition in brokers}.difference(nodes.topics))
    if more:
        found = await (await access.topics()).found(more, nodes.group)
        nodes = msgspec.structs.replace(nodes, topics={**nodes.topics, **found})
    return GroupView(nodes, counting(nodes, storage, brokers), brokers)


async def read_known_view(access: ClusterAccess, nodes: GroupNodes, storage: Storage) -> GroupView:
    """As `read_view`, for a change. Raises CoordinatorError if it is not known where a member starts."""
    view = await read_view(access, nodes, storage)
    for why in view.facts.unread_offsets.values():
        raise CoordinatorError(why.detail)
    return view


# One look at a group for `describe` and `doctor`: its nodes, its effective offsets, and the logs.


class Look(NamedTuple):
    """`not_asked`: what could not be examined, a sentence each."""

    view: GroupView
    symptoms: list[Symptom]
    not_asked: list[str]


async def look(access: ClusterAccess, group: str, storage: Storage) -> Look:
    view = await read_view(access, await access.nodes(group), storage)
    partitions = partitions_of(view.facts)
    logs = await access.known_logs([each for each in partitions if not view.facts.gone(each)])
    at = time.time()
    standing = standing_of(view.nodes, view.facts, partition_lags(view.facts, partitions, logs, {}, at), at)
    if unclear := {each for each, seconds in standing.items() if seconds is None}:
        nexts = next_offsets(view.facts, logs)
        written = await access.written({each: nexts[each] for each in unclear})
        standing = standing_of(view.nodes, view.facts, partition_lags(view.facts, partitions, logs, written, at), at)
    symptoms = examine(view.nodes, logs, _assignors(), view.facts, standing)
    return Look(view, symptoms, not_asked(logs, standing, view.nodes, view.facts))


def _assignors() -> Mapping[str, Assignor]:
    """All installed assignors that can be loaded; `kzconsumer plugins` shows the others."""
    found: dict[str, Assignor] = {}
    for plugin in list_plugins(ASSIGNORS):
        try:
            found[plugin.name] = cast("Assignor", load(ASSIGNORS, plugin.name))
        except PluginError:
            continue
    return found
