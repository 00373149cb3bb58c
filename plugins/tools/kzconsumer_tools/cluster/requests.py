"""Requests to the controller in ZooKeeper: their exact format, why one is refused, and what has become of it.

Formats: `kafka.zk.ZkData` (1.1 to 3.9) and `kafka.utils.ZkUtils`, `kafka.admin.AdminUtils` (0.8.2), which differ only
in the notification of changed settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from kzconsumer.figures import some
from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.cluster.description import ClusterDescription, PartitionShown, TopicDescription
from kzconsumer_tools.paths import DELETE_TOPICS, PREFERRED_ELECTION, REASSIGN_PARTITIONS

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

Replicas = tuple[int, ...]
Wanted = Mapping[tuple[str, int], Replicas]
"""(topic, partition) -> the requested replicas, the preferred leader first."""


class Reassignment(msgspec.Struct, frozen=True):
    """A partition's replicas, present and requested."""

    topic: str
    partition: int
    old: Replicas
    new: Replicas

    @property
    def changes(self) -> bool:
        return self.old != self.new


class Election(msgspec.Struct, frozen=True):
    """A partition that is not led by the first of its replicas. `reason`: why the controller would not change that."""

    topic: str
    partition: int
    leader: int | None
    preferred: int
    reason: str | None


class Reassigned(msgspec.Struct, frozen=True):
    """The result of `reassign`; `pending`: what was not yet done at the end of `--wait`."""

    executed: bool
    undo: str | None
    pending: tuple[str, ...]
    partitions: tuple[Reassignment, ...]


class Elected(msgspec.Struct, frozen=True):
    """The result of `elect-preferred`: the partitions that are not led by their preferred leader."""

    executed: bool
    pending: tuple[str, ...]
    partitions: tuple[Election, ...]


class Deleted(msgspec.Struct, frozen=True):
    """The result of `delete`."""

    executed: bool
    pending: tuple[str, ...]
    topics: tuple[str, ...]
    partitions: int


class Refused(ValueError):
    """The cluster would not carry out the request."""


def require_controller(cluster: ClusterDescription) -> None:
    """Raises Refused if no controller reads requests in ZooKeeper."""
    if any(broker.version == 0 for broker in cluster.brokers):
        raise Refused("brokers of 0.7 have no controller")
    if cluster.kraft_controller:
        raise Refused(
            "a KRaft controller (a migration is in progress) does not read requests in ZooKeeper; use Kafka's own tools"
        )
    if cluster.controller is None:
        raise Refused("there is no controller at the moment")


def require_brokers(cluster: ClusterDescription) -> list[int]:
    """The versions of the brokers' registrations. Raises Refused without brokers that read settings."""
    versions = [broker.version for broker in cluster.brokers if broker.version is not None]
    if not versions:
        raise Refused("no broker is alive, so the format that they read is unknown")
    if 0 in versions:
        raise Refused("brokers of 0.7 do not read settings in ZooKeeper")
    return versions


def require_usable(topic: TopicDescription) -> TopicDescription:
    """The topic. Raises Refused for one that a controller would not change."""
    if topic.brokers_of_0_7:
        raise Refused(f"{topic.topic} is a topic in the format of Kafka 0.7, which no controller reads")
    if topic.deleting:
        raise Refused(f"{topic.topic} is being deleted")
    if topic.unreadable:
        raise Refused(f"{topic.unreadable[0].path}: {topic.unreadable[0].reason}")
    return topic


def reassignments(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], wanted: Wanted
) -> list[Reassignment]:
    """All requested partitions, changed or not. Raises Refused for what the controller would not carry out."""
    if cluster.reassigning:
        raise Refused(f"another reassignment is in progress: {some(cluster.reassigning)}; wait until it has finished")
    alive = {broker.id for broker in cluster.brokers}
    shown = {topic.topic: require_usable(topic) for topic in topics}
    found: list[Reassignment] = []
    for (name, number), new in sorted(wanted.items()):
        at = f"{name}-{number}"
        partition = _partition(shown[name], number)
        if not new:
            raise Refused(f"{at}: no replica given")
        if len(set(new)) != len(new):
            raise Refused(f"{at}: a broker is given twice")
        if down := sorted(set(new) - alive):
            raise Refused(f"{at}: {_brokers(down)} not alive; alive are {some(map(str, sorted(alive)))}")
        if partition.adding or partition.removing:
            raise Refused(f"{at}: it is being reassigned; wait until that has finished")
        found.append(Reassignment(name, number, partition.replicas, new))
    return found


def elections(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], scope: Mapping[str, Collection[int] | None] | None
) -> list[Election]:
    """The partitions of the scope (None: of all topics) whose leader is not the preferred one."""
    if cluster.electing:
        raise Refused(f"another election is in progress: {some(cluster.electing)}; wait until it has finished")
    alive = {broker.id for broker in cluster.brokers}
    found: list[Election] = []
    for topic in topics:
        numbers = scope[topic.topic] if scope is not None else None
        if scope is not None:
            require_usable(topic)
            for number in sorted(numbers or ()):
                _partition(topic, number)
        elif topic.deleting:
            continue
        for each in topic.partitions:
            chosen = numbers is None or each.partition in numbers
            if not chosen or not each.replicas or each.leader == each.replicas[0]:
                continue
            preferred = each.replicas[0]
            reason = "not alive" if preferred not in alive else "not in sync" if preferred not in each.isr else None
            found.append(Election(topic.topic, each.partition, each.leader, preferred, reason))
    return found


def require_deletable(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], consuming: Mapping[str, Sequence[str]]
) -> None:
    """Raises Refused. `consuming`: topic -> groups with owner nodes of it."""
    alive = {broker.id for broker in cluster.brokers}
    for topic in topics:
        require_usable(topic)
        if topic.topic in INTERNAL_TOPICS:
            raise Refused(f"{topic.topic} is an internal topic of Kafka")
        if groups := consuming.get(topic.topic):
            raise Refused(f"{topic.topic} is being consumed by {some(groups)}; stop its members first")
        if down := sorted({each for at in topic.partitions for each in at.replicas} - alive):
            raise Refused(f"{topic.topic}: {_brokers(down)} not alive, its replicas there would not be deleted")
        if any(at.adding or at.removing for at in topic.partitions) or any(
            each.rpartition("-")[0] == topic.topic for each in cluster.reassigning or ()
        ):
            raise Refused(f"{topic.topic} is being reassigned; wait until that has finished")


def reassignment_request(moving: Iterable[Reassignment]) -> Create:
    wanted = {(each.topic, each.partition): each.new for each in moving}
    return Create(REASSIGN_PARTITIONS, encode_reassignment(wanted))


def encode_reassignment(wanted: Wanted) -> bytes:
    """Also the file format of `kafka-reassign-partitions.sh`."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": replicas} for (topic, number), replicas in wanted.items()
    ]
    return msgspec.json.encode({"version": 1, "partitions": partitions})


def election_request(electing: Iterable[Election]) -> Create:
    partitions = [{"topic": each.topic, "partition": each.partition} for each in electing]
    return Create(PREFERRED_ELECTION, msgspec.json.encode({"version": 1, "partitions": partitions}))


def deletion_requests(topics: Iterable[str]) -> list[Create]:
    return [Create(f"{DELETE_TOPICS}/{topic}", b"") for topic in topics]


def not_moved(topics: Iterable[TopicDescription], moving: Iterable[Reassignment]) -> list[str]:
    """Partitions whose replicas are not as requested, after the controller has removed the request."""
    now = {(topic.topic, each.partition): each for topic in topics for each in topic.partitions}
    return [
        f"{each.topic}-{each.partition}"
        for each in moving
        if (at := now.get((each.topic, each.partition))) is None or at.replicas != each.new or at.adding or at.removing
    ]


def not_elected(topics: Iterable[TopicDescription], electing: Iterable[Election]) -> list[str]:
    now = {(topic.topic, each.partition): each.leader for topic in topics for each in topic.partitions}
    return [
        f"{each.topic}-{each.partition}" for each in electing if now.get((each.topic, each.partition)) != each.preferred
    ]


def _partition(topic: TopicDescription, number: int) -> PartitionShown:
    for each in topic.partitions:
        if each.partition == number:
            return each
    raise Refused(f"topic {topic.topic} has no partition {number} (it has {len(topic.partitions)})")


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {some(map(str, ids))} are"
