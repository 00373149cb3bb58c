"""Nodes that may be removed: all nodes of a group without members, and in any group those that no session holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from kzconsumer.registry import paths
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.run_record import GroupRun, decode_group_run
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.members_present import members_present
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.node_changes import Change, SavedNode

LeftoverKind = Literal["persistent_owner", "persistent_registration", "topic_gone"]


class Leftover(msgspec.Struct, frozen=True):
    """A node that can be removed, and why."""

    path: str
    kind: LeftoverKind
    reason: str


class ChangedNode(msgspec.Struct, frozen=True):
    """`old` and `new` are contents, None for no node; binary content is shown with replacement characters."""

    path: str
    old: str | None
    new: str | None
    reason: str | None


class RepairResult(msgspec.Struct, frozen=True):
    """The result of `delete`, `clean` and `restore`. `in_use`: why the group must not be changed now, else None."""

    group: str
    executed: bool
    undo: str | None
    in_use: str | None
    nodes: tuple[ChangedNode, ...]


def repair_result(
    nodes: GroupNodes,
    changes: Sequence[Change],
    undo: Path | None,
    *,
    executed: bool,
    reasons: Mapping[str, str] | None = None,
) -> RepairResult:
    """`reasons`: path -> why the node changes."""
    return RepairResult(
        group=nodes.group,
        executed=executed,
        undo=str(undo) if undo is not None else None,
        in_use=members_present(nodes),
        nodes=tuple(
            ChangedNode(each.path, _text(each.before), _text(each.after), (reasons or {}).get(each.path))
            for each in changes
        ),
    )


def deletion(tree: Mapping[str, Node], topic: str | None = None) -> list[Change]:
    """Remove a group, or its nodes of one topic. `tree`: path -> node, the group's root and everything below.

    An unfinished run of the topic is removed too: it would wait for offsets that may never be stored again. Children
    come before their parents, so that the changes can be split into any number of transactions.
    Source: `kafka.admin.AdminUtils.deleteConsumerGroupInZK` and `...InfoForTopicInZK` (1.1.1), without claims.
    """
    chosen = tree if topic is None else {path: node for path, node in tree.items() if _of_topic(path, node, topic)}
    return [Change(path, chosen[path], None) for path in sorted(chosen, key=lambda path: (-path.count("/"), path))]


def leftovers(nodes: GroupNodes) -> list[Leftover]:
    """Owner nodes and registrations that no session holds; nodes of missing partitions of topics that nobody owns."""
    group = GroupPaths(nodes.group)
    found = [
        Leftover(path, "persistent_owner", "no session holds it: no member can own the partition")
        for path, node in sorted(nodes.owners.items())
        if not node.stat.ephemeral_owner
    ]
    found += [
        Leftover(group.member(consumer), "persistent_registration", "no session holds it: all members wait for it")
        for consumer, node in sorted(nodes.registrations.items())
        if not node.stat.ephemeral_owner
    ]
    if not nodes.all_topics or nodes.from_brokers:
        return found  # a broker that starts knows no topics
    owned = {paths.topic_of(path) for path, node in nodes.owners.items() if node.stat.ephemeral_owner}
    found += [
        Leftover(path, "topic_gone", "the cluster has no such partition")
        for path in sorted((*nodes.offsets, *nodes.claims))
        if paths.topic_of(path) not in owned and _gone(nodes, path)
    ]
    run = None if nodes.registrations or owned else _run(nodes.run)
    if run is not None and run.topics and run.topics.keys().isdisjoint(nodes.all_topics):
        found.append(Leftover(group.run, "topic_gone", "the cluster has none of the run's topics"))
    return found


def _gone(nodes: GroupNodes, path: str) -> bool:
    topic = nodes.topics.get(paths.topic_of(path))
    if topic is None:
        return paths.topic_of(path) not in nodes.all_topics
    number = path.rpartition("/")[2]
    return not topic.fault and paths.is_number(number) and int(number) not in topic.partitions


def removal(nodes: GroupNodes, chosen: Iterable[Leftover]) -> list[Change]:
    """Remove these nodes, each at the version that was read."""
    group = GroupPaths(nodes.group)
    seen = {**nodes.owners, **nodes.offsets, **nodes.claims}
    seen |= {group.member(consumer): node for consumer, node in nodes.registrations.items()}
    if nodes.run is not None:
        seen[group.run] = nodes.run
    return [Change(each.path, seen[each.path], None) for each in chosen]


def restoration(saved: Sequence[SavedNode], present: Mapping[str, Node]) -> list[Change]:
    """Create the missing nodes of a file, parents first.

    Raises ValueError for a path that is not a group's, and for a node that exists with other content.
    """
    changes = []
    for node in sorted(saved, key=lambda each: (each.path.count("/"), each.path)):
        if not node.path.startswith(f"{paths.CONSUMERS}/") or node.data is None:
            raise ValueError(f"{node.path}: not a node of a group")
        found = present.get(node.path)
        if found is None:
            changes.append(Change(node.path, None, node.data))
        elif found.data != node.data:
            raise ValueError(f"{node.path} has other content now; `kzconsumer offsets import` changes offsets")
    return changes


def _of_topic(path: str, node: Node, topic: str) -> bool:
    """`/consumers/<group>/<owners, offsets or claims>/<topic>` and below; an unfinished run that has the topic."""
    parts = path.split("/")
    if parts[3:] == ["run"]:
        run = _run(node)
        return run is not None and run.finished is None and topic in run.topics
    return len(parts) > 4 and parts[4] == topic and parts[3] in ("owners", "offsets", "claims")


def _run(node: Node | None) -> GroupRun | None:
    """None also for a record that this version cannot read."""
    try:
        return decode_group_run(node.data) if node is not None else None
    except ValueError:
        return None


def _text(data: bytes | None) -> str | None:
    return data.decode("utf-8", "replace") if data is not None else None
