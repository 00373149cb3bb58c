"""The cluster, its topics, and requests to the controller and the brokers, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote

from kzconsumer.display import moment, plural, some
from kzconsumer_tools.cluster.description import (
    BrokerShown,
    ClusterDescription,
    PartitionShown,
    TopicDescription,
    Unreadable,
)
from kzconsumer_tools.cluster.requests import Configured, Deleted, Elected, OwnSettings, Reassigned
from kzconsumer_tools.tables.text import columns, dash, sentence

_FROM_BROKERS = "As brokers report it. They do not report"


def cluster_table(cluster: ClusterDescription, *, wide: bool = False) -> str:
    name = f"cluster {cluster.cluster_id}" if cluster.cluster_id is not None else "cluster without an id"
    lines = [f"{name}: {plural(len(cluster.brokers), 'broker')}, {plural(cluster.topics, 'topic')}"]
    since = f", since {moment(cluster.controller_since)}" if cluster.controller_since is not None else ""
    kind = "node" if cluster.from_brokers and cluster.kraft_controller else "broker"
    without = "unknown" if cluster.from_brokers else "none"
    controller = f"{kind} {cluster.controller}{since}" if cluster.controller is not None else without
    lines.append(f"controller: {controller}; epoch {dash(cluster.controller_epoch)}")
    if without == "none" and cluster.controller is None:
        lines += sentence("Nobody elects leaders: `topics` shows what the last controller has written.")
    if cluster.brokers:
        head = ("BROKER", "FORMAT", "RACK", "SINCE", "LISTENERS", "SECURITY")
        lines += ["", *columns([head, *map(_broker, cluster.brokers)], right={0, 1}, wide=wide, more=1)]
    asked = {
        "deleted": cluster.deleting,
        "reassigned": cluster.reassigning,
        "led by the preferred leader": cluster.electing,
    }
    for verb, names in asked.items():
        if names:
            lines += ["", *sentence(f"To be {verb}: {', '.join(names)}")]
    if cluster.from_brokers:
        lines += ["", *sentence(f"{_FROM_BROKERS}: formats, times and other listeners, deletions and elections.")]
    return "\n".join([*lines, *_unreadable(cluster.unreadable)])


def topics_table(topics: Sequence[TopicDescription], *, wide: bool = False) -> str:
    if not topics:
        return "There are no topics."
    head = ("PARTITIONS", "REPLICAS", "LEADERLESS", "UNSYNCED", "SETTINGS", "TOPIC", "ID", "ITS SETTINGS")
    rows: list[tuple[str, ...]] = [head]
    for topic in topics:
        numbers = sorted({len(each.replicas) for each in topic.partitions})
        replicas = "-".join(map(str, dict.fromkeys((*numbers[:1], *numbers[-1:])))) or "-"
        note = " (0.7)" if topic.brokers_of_0_7 else " (to be deleted)" if topic.deleting else ""
        own = dash(len(topic.config) if topic.config is not None else None)
        facts = (topic.partition_count, replicas, topic.leaderless, topic.under_replicated, own)
        settings = ", ".join(f"{name}={value}" for name, value in (topic.config or {}).items()) or "-"
        rows.append((*map(str, facts), topic.topic + note, topic.topic_id or "-", settings))
    unreadable = [each for topic in topics for each in topic.unreadable]
    return "\n".join([*columns(rows, right={0, 1, 2, 3, 4}, wide=wide, more=2), *_unreadable(unreadable)])


def describe_table(topics: Sequence[TopicDescription], *, wide: bool = False) -> str:
    return "\n\n".join("\n".join(_topic(each, wide)) for each in topics)


def _topic(topic: TopicDescription, wide: bool) -> Iterator[str]:
    yield f"topic {topic.topic}: {plural(topic.partition_count, 'partition')}"
    if topic.topic_id is not None:
        yield f"id {topic.topic_id}"
    if topic.deleting:
        yield "to be deleted"
    yield from (f"{name} = {value}" for name, value in (topic.config or {}).items())
    if topic.brokers_of_0_7:
        rows = [("BROKER", "PARTITIONS")]
        rows += [(str(broker), f"{broker}-0 to {broker}-{n - 1}") for broker, n in topic.brokers_of_0_7.items() if n]
        yield from ("in the form of Kafka 0.7:", *columns(rows, right={0}))
    if topic.partitions:
        head = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "NOT IN SYNC", "PREFERRED", "CONTROLLER EPOCH")
        yield ""
        yield from columns([head, *map(_partition, topic.partitions)], right={0, 1, 2, 6}, wide=wide, more=3)
    yield from _unreadable(topic.unreadable)


def _partition(at: PartitionShown) -> tuple[str, ...]:
    moving = [f"+{each}" for each in at.adding or ()] + [f"-{each}" for each in at.removing or ()]
    replicas = " ".join([",".join(map(str, at.replicas)), *moving])
    in_sync = ",".join(map(str, at.isr)) or "none"
    behind = ",".join(str(each) for each in at.replicas if each not in at.isr) or "none"
    preferred = dash(at.replicas[0] if at.replicas else None)
    leader = dash(at.leader) + (" (gone)" if at.leader is not None and not at.leader_registered else "")
    facts = leader, dash(at.leader_epoch), replicas, in_sync, behind, preferred, dash(at.controller_epoch)
    return str(at.partition), *facts


def _broker(broker: BrokerShown) -> tuple[str, ...]:
    scheme = [f"{each.name}://" if each.name is not None else "" for each in broker.listeners]
    listeners = ", ".join(f"{name}{each.host}:{each.port}" for name, each in zip(scheme, broker.listeners, strict=True))
    version = "0.7" if broker.version == 0 else dash(broker.version)
    security = ", ".join(each.security_protocol for each in broker.listeners)
    return str(broker.id), version, broker.rack or "-", moment(broker.since), listeners, security


def _unreadable(nodes: Iterable[Unreadable]) -> list[str]:
    lines = list(dict.fromkeys(f"  {each.path}: {each.reason}" for each in nodes))
    return ["", "Cannot be read:", *lines] if lines else []


_NOT_DONE = "Nothing was changed. Add --execute to do it"


def reassigned_table(result: Reassigned, flags: str) -> str:
    """`flags` is the cluster option of the command that undoes it."""
    rows: list[tuple[str, ...]] = [("PARTITION", "OLD", "NEW", "TOPIC")]
    for each in result.partitions:
        new = ",".join(map(str, each.new)) if each.changes else "unchanged"
        rows.append((str(each.partition), ",".join(map(str, each.old)), new, each.topic))
    lines = [*columns(rows, right={0}), ""]
    changes = sum(each.changes for each in result.partitions)
    if not changes:
        return "\n".join([*lines, "Nothing to change."])
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}; an undo file is written first."])
    undo = f"kzconsumer topics reassign --file {quote(result.undo or '')} --execute {flags}"
    return "\n".join([*lines, *_end(result.pending, f"{plural(changes, 'partition')} moved"), f"To undo: {undo}"])


def elected_table(result: Elected) -> str:
    if not result.partitions:
        return "Every partition is led by its preferred leader."
    rows: list[tuple[str, ...]] = [("PARTITION", "LEADER", "PREFERRED", "TOPIC")]
    for each in result.partitions:
        preferred = f"{each.preferred} {each.reason}" if each.reason else str(each.preferred)
        rows.append((str(each.partition), dash(each.leader), preferred, each.topic))
    lines = [*columns(rows, right={0, 1}), ""]
    able = sum(each.reason is None for each in result.partitions)
    if not able:
        return "\n".join([*lines, "None of the preferred leaders can lead now."])
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}."])
    return "\n".join([*lines, *_end(result.pending, f"{plural(able, 'leader')} elected")])


def deleted_table(result: Deleted) -> str:
    number = f"{plural(len(result.topics), 'topic')}, {plural(result.partitions, 'partition')}"
    lines = sentence(f"{number}: {', '.join(result.topics)}")
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}.", "All records would be deleted; this cannot be undone."])
    note = "With delete.topic.enable=false (the default up to 0.11), it stays pending."
    end = _end(result.pending, "deleted")
    return "\n".join([*lines, *end, *([note] if result.pending else [])])


def settings_table(topics: Sequence[OwnSettings]) -> str:
    lines = []
    for topic in topics:
        settings = [f"  {name} = {value}" for name, value in topic.config.items()] or ["  no settings of its own"]
        lines += [topic.topic, *settings]
    return "\n".join(lines)


def configured_table(result: Configured, flags: str) -> str:
    if not result.settings:
        return "Nothing to change."
    rows: list[tuple[str, ...]] = [("SETTING", "OLD", "NEW")]
    rows += [(each.name, each.old or "-", each.new or "-") for each in result.settings]
    lines = [f"topic {result.topic}", "", *columns(rows, right=()), ""]
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}."])
    back = [quote(f"{each.name}={each.old}") for each in result.settings if each.old is not None]
    away = [f"--unset {quote(each.name)}" for each in result.settings if each.old is None]
    undo = " ".join(["kzconsumer topics config set", quote(result.topic), *back, *away, "--execute", flags])
    return "\n".join([*lines, "Done; the brokers are notified. They send no confirmation.", f"To undo: {undo}"])


def _end(pending: Sequence[str], done: str) -> list[str]:
    if not pending:
        return [f"Done: {done}."]
    return sentence(
        f"Requested, still pending: {some(pending)}. The controller continues; see kzconsumer cluster describe."
    )
