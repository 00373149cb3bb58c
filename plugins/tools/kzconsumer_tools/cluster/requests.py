"""Requests to the controller in ZooKeeper: their exact format, why one is refused, and what has become of it.

Formats: `kafka.zk.ZkData` (1.1 to 3.9) and `kafka.utils.ZkUtils`, `kafka.admin.AdminUtils` (0.8.2), which differ only
in the notification of changed settings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from kzconsumer.display import some
from kzconsumer.settings.table_reader import nearest
from kzconsumer.settings.value_readers import INTERNAL_TOPICS
from kzconsumer.zookeeper.operations import Create
from kzconsumer_tools.cluster.description import ClusterDescription, PartitionShown, TopicDescription
from kzconsumer_tools.node_changes import CONFIG_CHANGE, DELETE_TOPICS, PREFERRED_ELECTION, REASSIGN_PARTITIONS

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


class RequestRefused(ValueError):
    """The cluster would not carry out the request."""


def require_controller(cluster: ClusterDescription) -> None:
    """Raises RequestRefused if no controller reads requests in ZooKeeper."""
    if any(broker.version == 0 for broker in cluster.brokers):
        raise RequestRefused("brokers of 0.7 have no controller")
    if cluster.kraft_controller:
        raise RequestRefused(
            "a KRaft controller (a migration is in progress) does not read requests in ZooKeeper; use Kafka's own tools"
        )
    if cluster.controller is None:
        raise RequestRefused("there is no controller at the moment")


def require_brokers(cluster: ClusterDescription) -> list[int]:
    """The versions of the brokers' registrations. Raises RequestRefused without brokers that read settings."""
    versions = [broker.version for broker in cluster.brokers if broker.version is not None]
    if not versions:
        raise RequestRefused("no broker is alive, so the format that they read is unknown")
    if 0 in versions:
        raise RequestRefused("brokers of 0.7 do not read settings in ZooKeeper")
    return versions


def require_usable(topic: TopicDescription) -> TopicDescription:
    """The topic. Raises RequestRefused for one that a controller would not change."""
    if topic.brokers_of_0_7:
        raise RequestRefused(f"{topic.topic} is a topic in the format of Kafka 0.7, which no controller reads")
    if topic.deleting:
        raise RequestRefused(f"{topic.topic} is being deleted")
    if topic.unreadable:
        raise RequestRefused(f"{topic.unreadable[0].path}: {topic.unreadable[0].reason}")
    return topic


def reassignments(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], wanted: Wanted
) -> list[Reassignment]:
    """All requested partitions, changed or not. Raises RequestRefused for what the controller would not carry out."""
    if cluster.reassigning:
        raise RequestRefused(
            f"another reassignment is in progress: {some(cluster.reassigning)}; wait until it has finished"
        )
    alive = {broker.id for broker in cluster.brokers}
    shown = {topic.topic: require_usable(topic) for topic in topics}
    found: list[Reassignment] = []
    for (name, number), new in sorted(wanted.items()):
        at = f"{name}-{number}"
        partition = _partition(shown[name], number)
        if not new:
            raise RequestRefused(f"{at}: no replica given")
        if twice := {each for each in new if new.count(each) > 1}:
            raise RequestRefused(f"{at}: broker {min(twice)} is given twice")
        if down := sorted(set(new) - alive):
            raise RequestRefused(f"{at}: {_brokers(down)} not alive; alive are {some(map(str, sorted(alive)))}")
        if partition.adding or partition.removing:
            raise RequestRefused(f"{at}: it is being reassigned; wait until that has finished")
        found.append(Reassignment(name, number, partition.replicas, new))
    return found


def elections(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], scope: Mapping[str, Collection[int] | None] | None
) -> list[Election]:
    """The partitions of the scope (None: of all topics) whose leader is not the preferred one."""
    if cluster.electing:
        raise RequestRefused(f"another election is in progress: {some(cluster.electing)}; wait until it has finished")
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
            found.append(Election(topic.topic, each.partition, each.leader, each.replicas[0], _obstacle(each, alive)))
    return found


def _obstacle(partition: PartitionShown, alive: Collection[int]) -> str | None:
    """Why its preferred leader would not be elected."""
    preferred = partition.replicas[0]
    if preferred not in alive:
        return "not alive"
    if partition.leader_epoch is None:
        return "state unknown"
    return "not in sync" if preferred not in partition.isr else None


def require_deletable(
    cluster: ClusterDescription, topics: Sequence[TopicDescription], consuming: Mapping[str, Sequence[str]]
) -> None:
    """Raises RequestRefused. `consuming`: topic -> groups with owner nodes of it."""
    alive = {broker.id for broker in cluster.brokers}
    for topic in topics:
        require_usable(topic)
        if topic.topic in INTERNAL_TOPICS:
            raise RequestRefused(f"{topic.topic} is an internal topic of Kafka")
        if groups := consuming.get(topic.topic):
            raise RequestRefused(
                f"topic {topic.topic} is being consumed by group{'s' if len(groups) > 1 else ''} {some(groups)}; "
                "stop the members first"
            )
        if down := sorted({each for at in topic.partitions for each in at.replicas} - alive):
            raise RequestRefused(f"{topic.topic}: {_brokers(down)} not alive, its replicas there would not be deleted")
        if any(at.adding or at.removing for at in topic.partitions) or any(
            each.rpartition("-")[0] == topic.topic for each in cluster.reassigning or ()
        ):
            raise RequestRefused(f"{topic.topic} is being reassigned; wait until that has finished")


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
    raise RequestRefused(f"topic {topic.topic} has no partition {number} (it has {len(topic.partitions)})")


def _brokers(ids: Sequence[int]) -> str:
    return f"broker {ids[0]} is" if len(ids) == 1 else f"brokers {some(map(str, ids))} are"


# A topic's own settings: which ones each version knows, their values, and the notification of brokers about a change.
#
# A broker with a value that it cannot read fails at its next start, so such a value is not written. Source:
# `kafka.log.LogConfig` of 0.8.2.2 to 2.8.2 and that of `org.apache.kafka.storage` 3.9.1, printed by their own
# ConfigDef; `kafka.server.TopicConfigManager` (0.8.2), `DynamicConfigManager` (0.9 to 3.9).

_INT, _LONG = 2**31 - 1, 2**63 - 1
_THROTTLED = re.compile(r"|\*|\d+:\d+(,\d+:\d+)*")


class Whole(msgspec.Struct, frozen=True):
    least: int
    most: int

    def fault(self, value: str) -> str | None:
        if re.fullmatch(r"[+-]?\d+", value, re.ASCII) and self.least <= int(value) <= self.most:
            return None
        return f"not a whole number from {self.least} to {self.most}"


class Share(msgspec.Struct, frozen=True):
    def fault(self, value: str) -> str | None:
        return None if re.fullmatch(r"0|1|[01]?\.\d+", value, re.ASCII) and float(value) <= 1 else "not from 0 to 1"


class OneOf(msgspec.Struct, frozen=True):
    words: tuple[str, ...]

    def fault(self, value: str) -> str | None:
        return None if value in self.words else f"not one of {', '.join(self.words)}"


class ListOf(msgspec.Struct, frozen=True):
    words: tuple[str, ...]

    def fault(self, value: str) -> str | None:
        known = set(re.split(r"\s*,\s*", value.strip())) <= {*self.words}
        return None if known else f"not one of {', '.join(self.words)}, nor several with commas"


class Throttled(msgspec.Struct, frozen=True):
    def fault(self, value: str) -> str | None:
        return None if _THROTTLED.fullmatch(value) else "neither * nor PARTITION:BROKER,PARTITION:BROKER"


Kind = Whole | Share | OneOf | ListOf | Throttled

_BOOLEAN = OneOf(("true", "false"))
_COUNT, _MS = Whole(0, _INT), Whole(0, _LONG)
_CODECS = ("uncompressed", "producer", "gzip", "snappy", "lz4")

SETTINGS: Mapping[str, tuple[tuple[int, Kind], ...]] = {
    # Name -> (version of the broker's registration, values that brokers take from it on). Versions: 1: 0.8.2, 2: 0.9,
    # 3: 0.10, 4: 0.10.2, 5: 2.7. message.format.version is left out: its values differ with each release.
    "cleanup.policy": ((1, OneOf(("delete", "compact"))), (4, ListOf(("delete", "compact")))),
    "compression.gzip.level": ((5, Whole(-1, 9)),),
    "compression.lz4.level": ((5, Whole(1, 17)),),
    "compression.type": ((2, OneOf(_CODECS)), (5, OneOf((*_CODECS, "zstd")))),
    "compression.zstd.level": ((5, Whole(-131072, 22)),),
    "delete.retention.ms": ((1, _MS),),
    "file.delete.delay.ms": ((1, _MS),),
    "flush.messages": ((1, Whole(1, _LONG)),),
    "flush.ms": ((1, _MS),),
    "follower.replication.throttled.replicas": ((4, Throttled()),),
    "index.interval.bytes": ((1, _COUNT),),
    "leader.replication.throttled.replicas": ((4, Throttled()),),
    "local.retention.bytes": ((5, Whole(-2, _LONG)),),
    "local.retention.ms": ((5, Whole(-2, _LONG)),),
    "max.compaction.lag.ms": ((4, Whole(1, _LONG)),),
    "max.message.bytes": ((1, _COUNT),),
    "message.downconversion.enable": ((4, _BOOLEAN),),
    "message.timestamp.after.max.ms": ((5, _MS),),
    "message.timestamp.before.max.ms": ((5, _MS),),
    "message.timestamp.difference.max.ms": ((3, _MS),),
    "message.timestamp.type": ((3, OneOf(("CreateTime", "LogAppendTime"))),),
    "min.cleanable.dirty.ratio": ((1, Share()),),
    "min.compaction.lag.ms": ((4, _MS),),
    "min.insync.replicas": ((1, Whole(1, _INT)),),
    "preallocate": ((2, _BOOLEAN),),
    "remote.log.copy.disable": ((5, _BOOLEAN),),
    "remote.log.delete.on.disable": ((5, _BOOLEAN),),
    "remote.storage.enable": ((5, _BOOLEAN),),
    "retention.bytes": ((1, Whole(-1, _LONG)),),
    "retention.ms": ((1, _MS), (3, Whole(-1, _LONG))),  # in 0.8, -1 does not mean unlimited
    "segment.bytes": ((1, Whole(14, _INT)),),
    "segment.index.bytes": ((1, Whole(4, _INT)),),
    "segment.jitter.ms": ((1, _MS),),
    "segment.ms": ((1, Whole(1, _LONG)),),
    "unclean.leader.election.enable": ((1, _BOOLEAN),),
}


class Setting(msgspec.Struct, frozen=True):
    """A topic's own setting, present and requested; None: not set."""

    name: str
    old: str | None
    new: str | None


class OwnSettings(msgspec.Struct, frozen=True):
    """An item of the result of `get`."""

    topic: str
    config: dict[str, str]


class Configured(msgspec.Struct, frozen=True):
    """The result of `set`: the settings that change."""

    topic: str
    executed: bool
    settings: tuple[Setting, ...]


def changed(
    config: Mapping[str, str], give: Mapping[str, str], take: Collection[str], brokers: Collection[int]
) -> list[Setting]:
    """The settings that change. `brokers`: versions of the live brokers' registrations.

    Raises ValueError for a value in `give` that the oldest broker would not take; any name can be unset by `take`.
    """
    oldest = min(brokers)
    for name, value in give.items():
        kinds = [kind for since, kind in SETTINGS.get(name, ()) if since <= oldest]
        if not kinds:
            close = nearest(name, [each for each, of in SETTINGS.items() if of[0][0] <= oldest])
            raise ValueError(
                f"{name} is not a setting that all brokers know" + (f"; did you mean {close}?" if close else "")
            )
        if fault := kinds[-1].fault(value):
            raise ValueError(f"{name}={value}: {fault}")
    wanted = {**give, **dict.fromkeys(take)}
    return [Setting(name, config.get(name), new) for name, new in wanted.items() if config.get(name) != new]


def encode_config(config: Mapping[str, str]) -> bytes:
    """`/config/topics/<topic>`."""
    return msgspec.json.encode({"version": 1, "config": config})


def notification(topic: str, brokers: Collection[int]) -> Create:
    """Makes brokers read the topic's settings. Raises ValueError if there is no format that all of them read."""
    oldest, newest = min(brokers), max(brokers)
    content: object = {"version": 2, "entity_path": f"topics/{topic}"}  # from 0.10.1 on
    if oldest < 4:
        content = {"version": 1, "entity_type": "topics", "entity_name": topic}  # from 0.9 on
    if oldest < 2:
        if newest > 1:
            raise ValueError(
                "brokers of 0.8 and later ones have no notification format in common; finish the upgrade first"
            )
        content = topic
    return Create(CONFIG_CHANGE, msgspec.json.encode(content), sequential=True)
