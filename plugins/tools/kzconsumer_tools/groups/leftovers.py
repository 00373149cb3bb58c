"""Nodes that a group leaves behind: all of one without members, and those that are nobody's in any group.

Pure. `kzconsumer groups delete`, `clean` and `restore` show the changes and have `group/unattended` carry them out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from kzconsumer.registry import paths
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.run_record import GroupRun, decode_group_run
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.nodes import GroupNodes
from kzconsumer_tools.node_changes import Change, SavedNode

LeftoverKind = Literal["persistent_owner", "persistent_registration", "topic_gone"]


class Leftover(msgspec.Struct, frozen=True):
    """A node that is removed, and why."""

    path: str
    kind: LeftoverKind
    reason: str


def deletion(tree: Mapping[str, Node], topic: str | None = None) -> list[Change]:
    """Remove a group, or what it has of one topic: everything of `tree` (path -> node, the group's root and below).

    An unfinished run that has the topic goes with it: it would wait for offsets that nobody may ever store again.
    Children come before their parents, so that any number of transactions may carry it out.
    Source: `kafka.admin.AdminUtils.deleteConsumerGroupInZK` and `...InfoForTopicInZK` (1.1.1), which leave claims be.
    """
    chosen = tree if topic is None else {path: node for path, node in tree.items() if _of_topic(path, node, topic)}
    return [Change(path, chosen[path], None) for path in sorted(chosen, key=lambda path: (-path.count("/"), path))]


def leftovers(nodes: GroupNodes) -> list[Leftover]:
    """What no session holds where one should; and, of a group without members, what it has of topics that are gone."""
    group = GroupPaths(nodes.group)
    found = [
        Leftover(path, "persistent_owner", "no session holds it: no member can own the partition")
        for path, node in sorted(nodes.owners.items())
        if not node.stat.ephemeral_owner
    ]
    found += [
        Leftover(group.member(consumer), "persistent_registration", "no session holds it: all wait for this member")
        for consumer, node in sorted(nodes.registrations.items())
        if not node.stat.ephemeral_owner
    ]
    if not any(node.stat.ephemeral_owner for node in (*nodes.registrations.values(), *nodes.owners.values())):
        found += [
            Leftover(path, "topic_gone", "the cluster has no such topic")
            for path in sorted((*nodes.offsets, *nodes.claims))
            if nodes.all_topics and paths.topic_of(path) not in nodes.all_topics
        ]
        run = _run(nodes.run)
        if run is not None and run.topics and nodes.all_topics and run.topics.keys().isdisjoint(nodes.all_topics):
            found.append(Leftover(group.run, "topic_gone", "the cluster has none of the run's topics"))
    return found


def removal(nodes: GroupNodes, chosen: Iterable[Leftover]) -> list[Change]:
    """Remove these; each at the version that was read."""
    group = GroupPaths(nodes.group)
    seen = {**nodes.owners, **nodes.offsets, **nodes.claims}
    seen |= {group.member(consumer): node for consumer, node in nodes.registrations.items()}
    if nodes.run is not None:
        seen[group.run] = nodes.run
    return [Change(each.path, seen[each.path], None) for each in chosen]


def restoration(saved: Sequence[SavedNode], present: Mapping[str, Node]) -> list[Change]:
    """Make the nodes of a file that are missing, parents first.

    Raises ValueError for a path that is no group's, and where something else stands there today.
    """
    changes = []
    for node in sorted(saved, key=lambda each: (each.path.count("/"), each.path)):
        if not node.path.startswith(f"{paths.CONSUMERS}/") or node.data is None:
            raise ValueError(f"{node.path}: not a node that a group had")
        found = present.get(node.path)
        if found is None:
            changes.append(Change(node.path, None, node.data))
        elif found.data != node.data:
            raise ValueError(f"{node.path} holds something else today; `kzconsumer offsets import` moves offsets")
    return changes


def _of_topic(path: str, node: Node, topic: str) -> bool:
    """`/consumers/<group>/<owners, offsets or claims>/<topic>` and what is below it; the unfinished run that has it."""
    parts = path.split("/")
    if parts[3:] == ["run"]:
        run = _run(node)
        return run is not None and run.finished is None and topic in run.topics
    return len(parts) > 4 and parts[4] == topic and parts[3] in ("owners", "offsets", "claims")


def _run(node: Node | None) -> GroupRun | None:
    """None also for one that this version cannot read, which is nobody's business to judge."""
    try:
        return decode_group_run(node.data) if node is not None else None
    except ValueError:
        return None
