"""Problems of a group: in its nodes, compared with the logs and with an assignment; and nodes that may be removed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from kzconsumer.assignors import Assignor
from kzconsumer.display import plural, some, span
from kzconsumer.errors import PluginError
from kzconsumer.group.assignment import GroupSnapshot, assignment
from kzconsumer.lag.partition import STALLED_FOR_OTHERS, Why
from kzconsumer.lag.totals import MOST_NAMES, lag_text, total
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.registry.group_records import GroupRun, decode_group_run
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Node
from kzconsumer_tools.groups.advice import Problem, Symptom, examined
from kzconsumer_tools.groups.group_lag import LogRange, Logs, Standing, partition_lags, partitions_of
from kzconsumer_tools.groups.group_nodes import GroupFacts, GroupNodes, facts, record_of
from kzconsumer_tools.node_changes import NodeChange, SavedNode, kept_content, partition_of


class Verified(msgspec.Struct, frozen=True):
    """The result of `verify`: a narrower question than that of `doctor`. `rebalanced` is None if no partition needs an
    owner, since no member subscribes to one that exists: that every one of none has an owner proves nothing."""

    group: str
    rebalanced: bool | None
    findings: tuple[Problem, ...]


def verified(nodes: GroupNodes) -> Verified:
    known, symptoms = facts(nodes), verify(nodes)
    wanted = not _subscribed(known).isdisjoint(each.topic for each in known.existing)
    return Verified(nodes.group, not symptoms if symptoms or wanted else None, examined(nodes.group, symptoms).findings)


def not_asked(logs: Logs, standing: Standing, nodes: GroupNodes, known: GroupFacts) -> list[str]:
    """What an examination of these leaves out, a sentence each. `known`: with the effective offsets."""
    missing = []
    for reason, number in Counter(each.reason for each in logs.values() if isinstance(each, Why)).items():
        if reason != "no leader":
            detail = next(each.detail for each in logs.values() if isinstance(each, Why) and each.reason == reason)
            missing.append(f"the {'log' if number == 1 else 'logs'} of {plural(number, 'partition')}: {detail}")
    for detail, number in Counter(each.detail for each in known.unread_offsets.values()).items():
        missing.append(f"where a member starts in {plural(number, 'partition')}: {detail}")
    if unclear := [str(partition) for partition, seconds in sorted(standing.items()) if seconds is None]:
        why = "neither its commits nor its next record have a time that says since when"
        missing.append(f"whether the owner of {some(unclear, MOST_NAMES)} advances: {why}")
    if nodes.foreign:
        names = some(nodes.foreign, 3)
        missing.append(f"what {GroupPaths(nodes.group).root} has of another client, such as a Storm spout: {names}")
    return missing


def verify(nodes: GroupNodes) -> list[Symptom]:
    """Why not every partition of every subscribed topic has an owner that is a registered thread.

    Source: `kafka.tools.VerifyConsumerRebalance.validateRebalancingOperation` (1.1.1).
    """
    known = facts(nodes)
    group = GroupPaths(nodes.group)
    subscribed = _subscribed(known)
    strange = [
        Symptom("unregistered_owner", group.owner(partition), f"{owner.thread} is not a registered thread of the topic")
        for partition, owner in known.owners.items()
        if partition in known.existing
        and partition.topic in subscribed
        and not _is_thread(known, owner.thread, partition.topic)
        and not (owner.whole and partition.topic in known.streams.get(owner.thread, {}))
    ]
    return sorted([*_unreadable(known), *_without_owner(known, group), *strange])


def examine(
    nodes: GroupNodes,
    logs: Logs,
    assignors: Mapping[str, Assignor],
    offsets: GroupFacts | None = None,
    standing: Standing = MappingProxyType({}),
) -> list[Symptom]:
    """All problems. Partitions without a range in `logs` are not compared with their log. `offsets`: the facts with the
    effective offsets, if those are not the nodes'.

    `assignors` by name: those in the claim records of our members are computed, or if there are none, all of them; the
    one whose result is closest to the present owners is taken to be the group's.
    """
    known = facts(nodes)
    group = GroupPaths(nodes.group)
    symptoms = [Symptom(each.kind, each.path, each.reason) for each in known.findings]
    symptoms += _without_owner(known, group)
    symptoms += [
        Symptom("topic_missing", paths.topic(topic), "a member subscribes to it, and the cluster has no such topic")
        for topic in sorted(_subscribed(known).difference(nodes.topics))
    ]
    symptoms += [*_earlier(known, group), *_plans_of_earlier_topics(nodes)]
    if nodes.from_brokers:
        cannot = (
            "an original member cannot follow the cluster to KRaft: stop it before the first broker changes its mode"
        )
        symptoms += [
            Symptom("original_member", group.member(name), cannot)
            for name, member in known.members.items()
            if not member.ours
        ]
    effective = offsets or known
    symptoms += _outside_log(effective, group, logs)
    symptoms += of_progress(nodes, effective, logs, standing)
    symptoms += _gone(effective, group)
    symptoms += _without_members(nodes, effective, group, logs)
    symptoms += _other_owners(nodes, known, group, assignors)
    return sorted(set(symptoms))


def lasting(first: list[Symptom], second: list[Symptom]) -> list[Symptom]:
    """The symptoms of `second` that `first` has too, which excludes a rebalance in progress."""
    before = {(each.kind, each.path) for each in first}
    return [each for each in second if (each.kind, each.path) in before]


def _unreadable(known: GroupFacts) -> Iterator[Symptom]:
    for each in known.findings:
        if each.kind in ("unreadable_registration", "unusable_pattern", "unreadable_topic"):
            yield Symptom(each.kind, each.path, each.reason)


def _without_owner(known: GroupFacts, group: GroupPaths) -> Iterator[Symptom]:
    subscribed = _subscribed(known)
    for partition in sorted(known.existing.difference(known.owners)):
        if partition.topic in subscribed:
            yield Symptom("unowned_partition", group.owner(partition), "the partition has no owner")


def of_progress(nodes: GroupNodes, known: GroupFacts, logs: Logs, standing: Standing) -> list[Symptom]:
    """Why partitions do not advance, or have no lag that could be known, as the lag shows it. `known`: with the
    effective offsets."""
    group = GroupPaths(nodes.group)
    beyond = (each for each in _outside_log(known, group, logs) if each.kind == "offset_after_log")
    asked = {group.offset(partition) for partition in logs}
    unreadable = (
        Symptom(each.kind, each.path, each.reason)
        for each in known.findings
        if each.kind == "unreadable_offset" and each.path in asked
    )
    earlier = (each for each in _earlier(known, group) if each.path in asked)
    return [*_leaderless(logs), *_stalled(group, known, standing), *beyond, *unreadable, *earlier]


def _stalled(group: GroupPaths, known: GroupFacts, standing: Standing) -> Iterator[Symptom]:
    for partition, seconds in sorted(standing.items()):
        if seconds is not None and seconds >= STALLED_FOR_OTHERS:
            reason = f"records wait, and {known.owners[partition].thread} has stored no offset for {span(seconds)}"
            yield Symptom("stalled", group.offset(partition), reason)


def _leaderless(logs: Logs) -> Iterator[Symptom]:
    for partition, why in sorted(logs.items()):
        if isinstance(why, Why) and why.reason == "no leader":
            path = f"{paths.topic(partition.topic)}/partitions/{partition.partition}"
            yield Symptom("no_leader", path, why.detail or "the partition has no leader")


def _gone(known: GroupFacts, group: GroupPaths) -> Iterator[Symptom]:
    """Offsets of what the cluster does not have."""
    for partition in sorted(known.offsets):
        if known.gone(partition):
            yield Symptom("topic_gone", group.offset(partition), "the cluster has no such partition")


def _without_members(nodes: GroupNodes, known: GroupFacts, group: GroupPaths, logs: Logs) -> Iterator[Symptom]:
    if nodes.registrations:
        return
    rows = partition_lags(known, partitions_of(known), logs, {}, 0.0)
    waiting = sum(each.behind is True for each in rows)
    if waiting:
        left = lag_text(total(rows))
        yield Symptom("no_members", group.ids, f"{plural(waiting, 'partition')} with records left to read: lag {left}")


def _outside_log(known: GroupFacts, group: GroupPaths, logs: Logs) -> Iterator[Symptom]:
    for partition, stored in known.offsets.items():
        log = logs.get(partition)
        if stored is None or not isinstance(log, LogRange) or log.start <= stored <= log.end:
            continue
        path = group.offset(partition)
        if stored < log.start:
            lost = f"{stored} is stored and the log starts at {log.start}: {log.start - stored} offsets are lost"
            yield Symptom("offset_before_log", path, lost)
        else:
            yield Symptom("offset_after_log", path, f"{stored} is stored and the log ends at {log.end}")


def _earlier(known: GroupFacts, group: GroupPaths) -> Iterator[Symptom]:
    for partition in sorted(known.earlier_offsets):
        reason = "the offset was stored for an earlier topic of that name: members of ours do not use it"
        yield Symptom("recreated_topic", group.offset(partition), reason)


def _plans_of_earlier_topics(nodes: GroupNodes) -> Iterator[Symptom]:
    for path in nodes.claims:
        topic = nodes.topics.get(paths.topic_of(path))
        with contextlib.suppress(ValueError):  # reported as unknown_node
            record = record_of(nodes, partition_of(path))
            if record is None or record.plan is None or topic is None or not topic.identified:
                continue
            present = f"{topic.incarnation:#x}" if topic.incarnation is not None else "new to the group"
            if record.incarnation != present:
                was = f"the planned range is of an earlier topic of that name ({record.incarnation})"
                yield Symptom("recreated_topic", path, f"{was}; the present one is {present}")


def _other_owners(
    nodes: GroupNodes, known: GroupFacts, group: GroupPaths, assignors: Mapping[str, Assignor]
) -> Iterator[Symptom]:
    """Owners that differ from the assignment: the member has another view of the group, or runs another assignor."""
    if any(owner.whole for owner in known.owners.values()):
        return  # clients without threads assign partitions by rules of their own
    owners = {
        partition: owner.thread
        for partition, owner in known.owners.items()
        if owner.kind == "member" and partition.topic not in known.unreadable_topics  # whose partitions are not known
    }
    claimed = _assignors_of_ours(nodes, known, owners)
    names = sorted(set(claimed.values()))
    if len(names) > 1:
        for partition, name in sorted(claimed.items()):
            others = ", ".join(other for other in names if other != name)
            reason = f"its owner runs {name}, other members run {others}: all of a group must run the same"
            yield Symptom("different_assignors", group.claim_record(partition), reason)
    snapshot = GroupSnapshot(
        known.members,
        nodes.all_topics,
        {name: Topic(topic.partitions, topic.incarnation or 0) for name, topic in nodes.topics.items()},
    )
    if len(known.streams) < len(nodes.registrations):
        return  # no member can compute an assignment; reported as unreadable_registration or unusable_pattern
    wrong = {}
    for name in names or sorted(assignors):
        if name in assignors:
            with contextlib.suppress(PluginError):  # no member can run an assignor that breaks its contract
                wrong[name] = _differences(owners, assignment(name, assignors[name], snapshot.context()))
    if not wrong:
        return
    name = min(wrong, key=lambda each: (len(wrong[each]), each != "range", each))
    for partition, thread, computed_for in wrong[name]:
        reason = f"{thread} owns it, and {name} assigns it to {computed_for}"
        yield Symptom("owner_not_as_computed", group.owner(partition), reason)


def _differences(
    owners: Mapping[TopicPartition, str], computed: Mapping[TopicPartition, ConsumerThreadId]
) -> list[tuple[TopicPartition, str, str]]:
    return [
        (partition, thread, str(computed.get(partition, "no thread")))
        for partition, thread in sorted(owners.items())
        if str(computed.get(partition)) != thread
    ]


def _assignors_of_ours(
    nodes: GroupNodes, known: GroupFacts, owners: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    """The assignors in the claim records of our members that own partitions."""
    group = GroupPaths(nodes.group)
    found = {}
    for partition, thread in owners.items():
        node = nodes.claims.get(group.claim_record(partition))
        member = known.members.get(thread.rpartition("-")[0])
        if node is None or member is None or not member.ours:
            continue
        try:
            found[partition] = decode_claim_record(node.data).assignor
        except ValueError:
            continue
    return found


def _subscribed(known: GroupFacts) -> set[str]:
    return {topic for topics in known.streams.values() for topic in topics}


def _is_thread(known: GroupFacts, thread: str, topic: str) -> bool:
    consumer = thread.rpartition("-")[0]
    streams = known.streams.get(consumer, {}).get(topic, 0)
    return any(thread == f"{consumer}-{number}" for number in range(streams))


# All nodes of a group without members may be removed, and in any group those that no session holds.

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
    """The result of `delete`, `clean` and `restore`. `in_use`: why the group must not be changed now, else None.

    `clean` changes nothing that a member has: it may be used at any time.
    """

    group: str
    executed: bool
    undo: str | None
    in_use: str | None
    nodes: tuple[ChangedNode, ...]


def repair_result(
    group: str,
    changes: Sequence[NodeChange],
    undo: Path | None,
    *,
    executed: bool,
    in_use: str | None = None,
    reasons: Mapping[str, str] | None = None,
) -> RepairResult:
    """`reasons`: path -> why the node changes."""
    return RepairResult(
        group=group,
        executed=executed,
        undo=str(undo) if undo is not None else None,
        in_use=in_use,
        nodes=tuple(
            ChangedNode(each.path, _text(each.before), _text(each.after), (reasons or {}).get(each.path))
            for each in changes
        ),
    )


def deletion(tree: Mapping[str, Node], topic: str | None = None) -> list[NodeChange]:
    """Remove a group, or its nodes of one topic. `tree`: path -> node, the group's root and everything below.

    An unfinished run of the topic is removed too: it would wait for offsets that may never be stored again. Children
    come before their parents, so that the changes can be split into any number of transactions.
    Source: `kafka.admin.AdminUtils.deleteConsumerGroupInZK` and `...InfoForTopicInZK` (1.1.1), without claims.
    """
    chosen = tree if topic is None else {path: node for path, node in tree.items() if _of_topic(path, node, topic)}
    return [NodeChange(path, chosen[path], None) for path in sorted(chosen, key=lambda path: (-path.count("/"), path))]


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
        if paths.topic_of(path) not in owned and _is_gone(nodes, path)
    ]
    run = None if nodes.registrations or owned else _run(nodes.run)
    if run is not None and run.topics and run.topics.keys().isdisjoint(nodes.all_topics):
        found.append(Leftover(group.run, "topic_gone", "the cluster has none of the run's topics"))
    return found


def _is_gone(nodes: GroupNodes, path: str) -> bool:
    topic = nodes.topics.get(paths.topic_of(path))
    if topic is None:
        return paths.topic_of(path) not in nodes.all_topics
    number = path.rpartition("/")[2]
    return not topic.fault and paths.is_number(number) and int(number) not in topic.partitions


def removal(nodes: GroupNodes, chosen: Iterable[Leftover]) -> list[NodeChange]:
    """Remove these nodes, each at the version that was read."""
    group = GroupPaths(nodes.group)
    seen = {**nodes.owners, **nodes.offsets, **nodes.claims}
    seen |= {group.member(consumer): node for consumer, node in nodes.registrations.items()}
    if nodes.run is not None:
        seen[group.run] = nodes.run
    return [NodeChange(each.path, seen[each.path], None) for each in chosen]


def restoration(saved: Sequence[SavedNode], present: Mapping[str, Node]) -> list[NodeChange]:
    """Create the missing nodes of a file, parents first.

    Raises ValueError for a path that is not a group's, and for a node that exists with other content.
    """
    changes = []
    for node in sorted(saved, key=lambda each: (each.path.count("/"), each.path)):
        if not node.path.startswith(f"{paths.CONSUMERS}/") or node.data is None:
            raise ValueError(f"{node.path}: not a node of a group")
        found = present.get(node.path)
        if found is None:
            changes.append(NodeChange(node.path, None, node.data))
        elif node.data not in (found.data, kept_content(node.path, found)):
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
