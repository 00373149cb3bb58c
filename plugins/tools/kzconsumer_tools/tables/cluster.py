"""The cluster and its topics as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kzconsumer.figures import moment, plural
from kzconsumer_tools.cluster.description import (
    BrokerShown,
    ClusterDescription,
    PartitionShown,
    TopicDescription,
    Unreadable,
)
from kzconsumer_tools.tables.text import columns, dash, sentence


def cluster_table(cluster: ClusterDescription, *, wide: bool = False) -> str:
    name = f"cluster {cluster.cluster_id}" if cluster.cluster_id is not None else "cluster without an id"
    lines = [f"{name}: {plural(len(cluster.brokers), 'broker')}, {plural(cluster.topics, 'topic')}"]
    since = f", since {moment(cluster.controller_since)}" if cluster.controller_since is not None else ""
    controller = f"broker {cluster.controller}{since}" if cluster.controller is not None else "none"
    lines.append(f"controller: {controller}; epoch {dash(cluster.controller_epoch)}")
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
        facts = (topic.partition_count, replicas, topic.leaderless, topic.under_replicated, len(topic.config))
        settings = ", ".join(f"{name}={value}" for name, value in topic.config.items()) or "-"
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
    yield from (f"{name} = {value}" for name, value in topic.config.items())
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
    moving = [f"+{each}" for each in at.adding] + [f"-{each}" for each in at.removing]
    replicas = " ".join([",".join(map(str, at.replicas)), *moving])
    in_sync = ",".join(map(str, at.isr)) or "none"
    behind = ",".join(str(each) for each in at.replicas if each not in at.isr) or "none"
    preferred = dash(at.replicas[0] if at.replicas else None)
    facts = dash(at.leader), dash(at.leader_epoch), replicas, in_sync, behind, preferred, dash(at.controller_epoch)
    return str(at.partition), *facts


def _broker(broker: BrokerShown) -> tuple[str, ...]:
    listeners = ", ".join(f"{each.name}://{each.host}:{each.port}" for each in broker.listeners)
    version = "0.7" if broker.version == 0 else str(broker.version)
    security = ", ".join(each.security_protocol for each in broker.listeners)
    return str(broker.id), version, broker.rack or "-", moment(broker.since), listeners, security


def _unreadable(nodes: Iterable[Unreadable]) -> list[str]:
    lines = [f"  {each.path}: {each.reason}" for each in nodes]
    return ["", "Nodes that cannot be read:", *lines] if lines else []
