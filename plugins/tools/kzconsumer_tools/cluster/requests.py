"""What an operator asks the controller for in ZooKeeper: the request in its exact form, why not, and what became of it.

Pure. Written and watched by `admin`, asked for by `cli/topics_admin`. Forms: `kafka.zk.ZkData` (1.1 to 3.9) and
`kafka.utils.ZkUtils`, `kafka.admin.AdminUtils` (0.8.2), which agree but for the notification of changed settings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from kzconsumer.registry import paths
from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.cluster.description import ClusterDescription, PartitionShown, TopicDescription

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})

Replicas = tuple[int, ...]
Wanted = Mapping[tuple[str, int], Replicas]
"""(topic, partition) -> the replicas it is to have, the preferred leader first."""


class Move(msgspec.Struct, frozen=True):
    """A partition's replicas, as they are and as they are to be."""

    topic: str
    partition: int
    old: Replicas
    new: Replicas

    @property
    def changes(self) -> bool:
        return self.old != self.new


class Election(msgspec.Struct, frozen=True):
    """A partition that is to be led by the first of its replicas. `reason`: why its controller would not do that."""

    topic: str
    partition: int
    leader: int | None
    preferred: int
    reason: str | None


class Refused(ValueError):
    """Why the cluster would not do what is asked."""


def require_controller(cluster: ClusterDescription) -> None:
    """Raises Refused where nobody acts on requests in ZooKeeper."""
    if any(broker.version == 0 for broker in cluster.brokers):
        raise Refused("brokers of 0.7 have no controller, which would act on it")
    if cluster.kraft_controller:
        raise Refused(
            "the controller is one of KRaft (a migration is under way), which acts on no request in ZooKeeper; "
            "ask the brokers with Kafka's own tools"
        )
    if cluster.controller is None:
        raise Refused("there is no controller at the moment, which would act on it")


def require_brokers(cluster: ClusterDescription) -> list[int]:
    """The versions of their registrations. Raises Refused without brokers that would read settings."""
    versions = [broker.version for broker in cluster.brokers]
    if not versions:
        raise Refused("no broker is alive, whose version says what form it reads")
    if 0 in versions:
        raise Refused("brokers of 0.7 read no settings in ZooKeeper")
    return versions


def require_usable(topic: TopicDescription) -> TopicDescription:
    """The topic. Raises Refused for one that no controller would touch."""
    if topic.brokers_of_0_7:
        raise Refused(f"{topic.topic} is a topic in the form of Kafka 0.7, which no controller knows")
    if topic.deleting:
        raise Refused(f"{topic.topic} is to be deleted")
    if topic.unreadable:
        raise Refused(f"{topic.unreadable[0].path}: {topic.unreadable[0].reason}")
    return topic


def moves(cluster: ClusterDescription, topics: Sequence[TopicDescription], wanted: Wanted) -> list[Move]:
    """What reassigning comes to, also what stays. Raises Refused for what the controller would leave undone."""
    if cluster.reassigning:
        raise Refused(f"another reassignment is under way: {_some(cluster.reassigning)}; wait for its end")
    alive = {broker.id for broker in cluster.brokers}
    shown = {topic.topic: require_usable(topic) for topic in topics}
    found: list[Move] = []
    for (name, number), new in sorted(wanted.items()):
        at = f"{name}-{number}"
        partition = _partition(shown[name], number)
        if not new:
            raise Refused(f"{at}: no replica is left")
        if len(set(new)) != len(new):
            raise Refused(f"{at}: a broker stands there twice")
        if down := sorted(set(new) - alive):
            raise Refused(f"{at}: {_brokers(down)} not alive; alive are {_some(map(str, sorted(alive)))}")
        if partition.adding or partition.removing:
            raise Refused(f"{at}: another reassignment of it is under way; wait for its end")
        found.append(Move(name, number, partition.replicas, new))
    return found


def elections(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], scope: Mapping[str, Collection[int] | None] | None
) -> list[Election]:
    """The partitions of the scope (None: of all topics) whose leader is not the preferred one."""
    if cluster.electing:
        raise Refused(f"another election is under way: {_some(cluster.electing)}; wait for its end")
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
            meant = numbers is None or each.partition in numbers
            if not meant or not each.replicas or each.leader == each.replicas[0]:
                continue
            preferred = each.replicas[0]
            reason = "not alive" if preferred not in alive else "not in sync" if preferred not in each.isr else None
            found.append(Election(topic.topic, each.partition, each.leader, preferred, reason))
    return found


def require_deletable(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], consuming: Mapping[str, Sequence[str]]
) -> None:
    """`consuming`: topic -> groups with a member that owns some of it. Raises Refused."""
    alive = {broker.id for broker in cluster.brokers}
    for topic in topics:
        require_usable(topic)
        if topic.topic in INTERNAL_TOPICS:
            raise Refused(f"{topic.topic} is Kafka's own topic")
        if groups := consuming.get(topic.topic):
            raise Refused(f"{topic.topic} is being consumed by {_some(groups)}; stop its members first")
        if down := sorted({each for at in topic.partitions for each in at.replicas} - alive):
            raise Refused(f"{topic.topic}: {_brokers(down)} not alive, so that its replicas there would stay")
        if any(at.adding or at.removing for at in topic.partitions) or any(
            each.rpartition("-")[0] == topic.topic for each in cluster.reassigning
        ):
            raise Refused(f"{topic.topic} is being reassigned; wait for its end")


def reassignment_request(moving: Iterable[Move]) -> Create:
    wanted = {(each.topic, each.partition): each.new for each in moving}
    return Create(paths.REASSIGN_PARTITIONS, encode_reassignment(wanted))


def encode_reassignment(wanted: Wanted) -> bytes:
    """Also the file that Kafka's own tool takes and gives (`kafka-reassign-partitions.sh`)."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": replicas} for (topic, number), replicas in wanted.items()
    ]
    return msgspec.json.encode({"version": 1, "partitions": partitions})


def election_request(electing: Iterable[Election]) -> Create:
    partitions = [{"topic": each.topic, "partition": each.partition} for each in electing]
    return Create(paths.PREFERRED_ELECTION, msgspec.json.encode({"version": 1, "partitions": partitions}))


def deletion_requests(topics: Iterable[str]) -> list[Create]:
    return [Create(f"{paths.DELETE_TOPICS}/{topic}", b"") for topic in topics]


def not_moved(topics: Iterable[TopicDescription], moving: Iterable[Move]) -> list[str]:
    """Those whose replicas are not as asked, after the controller has taken the request away."""
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
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {_some(map(str, ids))} are"


def _some(names: Iterable[str]) -> str:
    """Not more of them than a line holds."""
    shown = list(names)
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
