"""What must hold in a group in which nothing happens any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, cast

from kzconsumer.assignors import Assignor
from kzconsumer.group.assignment import GroupSnapshot, assignment, wanted_by
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.plugins import ASSIGNORS, load_chosen
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.registry.group_records import (
    Registration,
    decode_registration,
    needs_all_topics,
    subscribed_topics,
)
from kzconsumer.registry.nodes import Topic, decode_topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.watch_table import WatchKind
from tests.support.members import sessions_of
from tests.support.simulated.member import GROUP, Member, listed
from tests.support.simulated.partition_logs import PartitionLogs
from tests.support.simulated.promises import Promises
from tests.support.simulated.znode_tree import Tree

PATHS = GroupPaths(GROUP)


def unsettled(
    tree: Tree, logs: PartitionLogs, promises: Promises, members: Iterable[Member], assignor_name: str
) -> str:
    """What does not hold yet; empty if everything does."""
    active = {member.consumer: member for member in members if member.active}
    registered = set(tree.nodes[PATHS.ids].children) if PATHS.ids in tree.nodes else set()
    if registered != set(active):
        return f"registered are {sorted(registered)}, not {sorted(active)}"
    for consumer, member in active.items():
        if tree.nodes[PATHS.member(consumer)].owner != member.session:
            return f"{member.name} is still registered by an earlier session"
        if member.connector is None or not sessions_of(member.connector).lease.held:
            return f"{member.name} has yet to find a server, and out what became of its session"
    assigned = _assigned(tree, assignor_name) if active else {}
    for partition, thread in assigned.items():
        if (owner := tree.data(PATHS.owner(partition))) != str(thread).encode():
            return f"{partition} belongs to {owner!r}, not {thread}"
        record, topic = tree.data(PATHS.claim_record(partition)), tree.nodes[paths.topic(partition.topic)]
        if record is None and partition in promises.unrecorded:
            continue  # its owner will find that by its next commit
        if record is None or decode_claim_record(record).incarnation != f"{topic.czxid:#x}":
            return f"{partition} is claimed as of a former topic of its name"
    for consumer, member in active.items():
        if member.held != (wanted := wanted_by(consumer, assigned)):
            return f"{member.name} holds {listed(member.held)}, not {listed(wanted)}"
        if member.owned != set(wanted):
            return f"{member.name} was notified of {listed(member.owned)}, not {listed(wanted)}"
        if not member.settled:
            return f"{member.name} has a rebalance to make, or to repeat"
    for member in active.values():
        if member.in_hand:
            return f"{member.name} still works on {len(member.in_hand)} batches or records"
        if member.uncommitted:  # its next commit may show that ZooKeeper was restored since the last one
            return f"{member.name} has something to commit"
    for member in active.values():
        if wrong := _wrongly_watched(tree, member):
            return wrong
    for partition in assigned:
        if undone := promises.unfinished(partition, logs.end(partition)):
            return undone
    return next(filter(None, (wrong for member in active.values() for wrong in _wrong(member, logs))), "")


def _wrong(member: Member, logs: PartitionLogs) -> Iterator[str]:
    yield _counted(member)
    yield _without(member)
    yield _untrue(member, logs)
    yield _miscounted(member)


def _wrongly_watched(tree: Tree, member: Member) -> str:
    """The nodes of which it is notified: who is in the group, topics that somebody consumes, and what it owns."""
    session = sessions_of(member.connector).session if member.connector is not None else None
    assert session is not None
    (watched,) = session.watches.chunks(1 << 20)
    topics = [paths.topic(name) for name in _subscribed(tree)]
    nodes = {PATHS.member(name) for name in tree.nodes[PATHS.ids].children}
    nodes |= {PATHS.owner(partition) for partition in member.held} | {path for path in topics if path in tree.nodes}
    # Whoever has found the list of members missing, with the group's nodes, watches the node, too.
    found = set(watched[WatchKind.DATA]) - {session.connect.full(PATHS.ids)}
    if different := {session.connect.full(path) for path in nodes} ^ found:
        return f"{member.name} watches, or does not watch, {sorted(different)}"
    if session.connect.full(PATHS.ids) not in watched[WatchKind.CHILD]:
        return f"{member.name} does not watch the list of members"
    return ""


def unreported(tree: Tree, member: Member, events: Iterable[Mapping[str, Any]]) -> str:
    """Streams without partitions, and topics that there are none of, that a member has not logged."""
    logged = {(each["event"], each.get("about")) for each in events if each["member"] == member.name}
    idle, subscribed = "stream has no partition", member.subscription
    if isinstance(subscribed, int):
        busy = {thread.thread for thread in member.held.values()}
        due = {(idle, f"stream {number}") for number in set(range(subscribed)) - busy}
        if not tree.nodes[paths.BROKER_TOPICS].children:
            due = {("no topic matches the list", "white_list .*")}
    else:
        there = {(topic, number) for topic, streams in subscribed.items() for number in range(streams)}
        there -= {(partition.topic, thread.thread) for partition, thread in member.held.items()}
        missing = {topic for topic in subscribed if paths.topic(topic) not in tree.nodes}
        due = {(idle, f"{topic} stream {number}") for topic, number in there if topic not in missing}
        due |= {("topic does not exist", paths.topic(topic)) for topic in missing}
    return f"{member.name} does not report {sorted(due - logged)}" if due - logged else ""


def unended(member: Member, events: Iterable[Mapping[str, Any]]) -> str:
    """Conditions of this membership of which it has logged the beginning alone, or an end without beginning."""
    degraded, unowned = False, set[str]()
    for each in events:
        if each["member"] != member.name:
            continue
        match each["event"]:
            case "registered":
                degraded, unowned = False, set()
            case "degraded":
                degraded = True
            case "no longer degraded":
                if not degraded:
                    return f"{member.name} logs that it is no longer degraded, which it was not"
                degraded = False
            case "partitions without owner":
                unowned.update(each["partitions"])
            case "partitions have an owner again" | "unowned partitions are assigned to other members":
                unowned.difference_update(each["partitions"])
    if degraded or unowned:
        return f"{member.name} is {'degraded' if degraded else f'without owner of {sorted(unowned)}'} as last logged"
    return ""


def forgotten_ends(member: Member) -> str:
    """Partitions of which it knows how far they can be read, and not since when: a daemon would ask for that again."""
    if (present := sessions_of(member.connector).member if member.connector is not None else None) is None:
        return ""
    states = [claim.fetch for claim in present.owned.claims.values() if claim.fetch.preferred != claim.fetch.broker]
    wrong = [each for each in states if (each.high_watermark is None) != (each.high_watermark_at is None)]
    return f"{member.name} does not know since when {wrong} can be read so far" if wrong else ""


def _untrue(member: Member, logs: PartitionLogs) -> str:
    """What it says of partitions of which everything is read."""
    positions = member.connector.positions() if member.connector is not None else ()
    for at in positions:
        end = logs.end(at.topic_partition)
        if (at.fetched, at.consumed, at.processed, at.high_watermark) != (end, end, end, end):
            return f"{member.name} shows {at}, and the log ends at {end}"
        if at.paused or at.failed or at.queue_full or not at.verified or at.leader is None:
            return f"{member.name} shows {at}, to which nothing happens"
        if at.thread != str(member.held[at.topic_partition]):
            return f"{member.name} shows {at}, which {member.held[at.topic_partition]} has"
    return ""


def _miscounted(member: Member) -> str:
    """What it counts of its rebalances: the last one that changed something led to what it owns, except for losses."""
    assert member.connector is not None
    counters = sessions_of(member.connector).counters.rebalances
    last, attempts = counters.timeline[-1], counters.counts.total()
    if counters.last != "done" or counters.seconds.count != attempts or attempts < len(counters.timeline):
        return f"{member.name} counts {counters.counts}, in all {counters.seconds.count}, the last one {counters.last}"
    counted, lost = last.kept + last.moved + last.claimed, len(member.lost - member.held.keys())
    if last.outcome == "done" and not counted - lost <= len(member.held) <= counted:
        return f"{member.name} holds {len(member.held)} partitions after {last}"
    return ""


def _counted(member: Member) -> str:
    """Everything fetched was taken, so nothing may count as queued any more."""
    if member.connector is None:
        return ""
    queues = [cursor.queue for cursor in sessions_of(member.connector).cursors.values()]
    queued, in_all = sum(queue.filled[1] for queue in queues), max((queue.total.used for queue in queues), default=0)
    if queued or in_all:
        return f"{member.name} counts {queued} and {in_all} bytes in empty queues"
    return f"{member.name} counts chunks in empty queues" if any(queue.filled[0] for queue in queues) else ""


def _without(member: Member) -> str:
    """Partitions whose leader is known and answers, but whose page says that they wait for one."""
    positions = member.connector.positions() if member.connector is not None else ()
    seeking = [str(at.topic_partition) for at in positions if not at.led]
    return f"{member.name} seeks the leaders of {', '.join(seeking)}" if seeking else ""


def _assigned(tree: Tree, assignor_name: str) -> Mapping[TopicPartition, ConsumerThreadId]:
    """As every member must compute it from the content of ZooKeeper."""
    registrations = _registrations(tree)
    names = tuple(sorted(tree.nodes[paths.BROKER_TOPICS].children))
    topics = {}
    for name in _subscribed(tree):
        if (node := tree.nodes.get(paths.topic(name))) is not None:
            topics[name] = Topic(decode_topic(node.data), node.czxid)
    snapshot = GroupSnapshot(registrations, names if needs_all_topics(registrations) else (), topics)
    return assignment(assignor_name, _assignor(assignor_name), snapshot.context())


def _registrations(tree: Tree) -> dict[str, Registration]:
    return {name: decode_registration(tree.nodes[PATHS.member(name)].data) for name in tree.nodes[PATHS.ids].children}


def _subscribed(tree: Tree) -> list[str]:
    """Topics that a member subscribes to, whether they exist or not."""
    return subscribed_topics(_registrations(tree), tuple(sorted(tree.nodes[paths.BROKER_TOPICS].children)))


@cache
def _assignor(name: str) -> Assignor:
    return cast(Assignor, load_chosen(ASSIGNORS, name, "test"))
