"""The cluster and its topics as they are shown; the fields are those of `-o json`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from kzconsumer.registry.nodes import BrokerListener, decode_listeners, read_json
from kzconsumer.registry.paths import is_number

# Kafka's nodes about the cluster and its topics, in the formats of all versions; members read less of them. Decoders
# raise ValueError with the reason. Formats: `kafka.zk.ZkData` (3.9), `kafka.utils.ZkUtils` (0.8), and 0.7.

NO_LEADER = -1
"""The leader of a partition without leader."""

_MOST_MS = 253_402_300_799_999
"""The last one of the year 9999, after which a datetime has no time."""

_Id = Annotated[int, Meta(ge=0)]
_Replicas = tuple[int, ...]


class BrokerNode(msgspec.Struct, frozen=True):
    """`/brokers/ids/<id>`. `version` 0 is a 0.7 broker, which writes `<creator>:<host>:<port>`."""

    version: int
    listeners: tuple[BrokerListener, ...]
    since: int | None
    """Time of its registration by its own clock, in ms since 1970."""
    rack: str | None


class ControllerNode(msgspec.Struct, frozen=True):
    """`/controller`."""

    broker: int
    since: int | None
    """In ms since 1970."""
    kraft: bool = False
    """A KRaft controller, during a migration (3.4 to 3.9)."""


class AssignmentNode(msgspec.Struct, frozen=True):
    """`/brokers/topics/<topic>`: partition -> replicas, the preferred leader first; and reassignments in progress."""

    replicas: Mapping[int, _Replicas]
    adding: Mapping[int, _Replicas]
    removing: Mapping[int, _Replicas]
    topic_id: str | None
    """From 2.8 on."""


class StateNode(msgspec.Struct, frozen=True):
    """`/brokers/topics/<topic>/partitions/<n>/state`."""

    leader: int
    leader_epoch: int
    controller_epoch: int
    isr: _Replicas


class _Broker(msgspec.Struct):
    version: int = 1
    timestamp: str | int | None = None
    rack: str | None = None


class _Controller(msgspec.Struct):
    brokerid: int
    timestamp: str | int | None = None
    kraftControllerEpoch: int = -1  # as the node has it


class _Assignment(msgspec.Struct):
    partitions: dict[_Id, _Replicas]
    adding_replicas: dict[_Id, _Replicas] = {}
    removing_replicas: dict[_Id, _Replicas] = {}
    topic_id: str | None = None


class _State(msgspec.Struct):
    leader: int
    leader_epoch: int
    isr: _Replicas
    controller_epoch: int = 0


class _Config(msgspec.Struct):
    config: dict[str, str]


class _Partition(msgspec.Struct):
    topic: str
    partition: _Id
    replicas: _Replicas = ()


class _Partitions(msgspec.Struct):
    partitions: tuple[_Partition, ...]


def decode_broker(data: bytes) -> BrokerNode:
    if not data.lstrip().startswith(b"{"):
        return BrokerNode(0, (_of_0_7(data),), None, None)
    fields = read_json(data, _Broker)
    return BrokerNode(fields.version, decode_listeners(data), _number(fields.timestamp), fields.rack)


def decode_controller(data: bytes) -> ControllerNode:
    """JSON, or only the broker's number, as controllers before 0.8 write it."""
    if data.isdigit():
        return ControllerNode(int(data), None)
    fields = read_json(data, _Controller)
    return ControllerNode(fields.brokerid, _number(fields.timestamp), fields.kraftControllerEpoch >= 0)


def decode_epoch(data: bytes) -> int:
    """`/controller_epoch`: a decimal number."""
    if not data.isdigit():
        raise ValueError(f"{data[:40]!r} is not a number")
    return int(data)


def decode_assignment(data: bytes) -> AssignmentNode:
    fields = read_json(data, _Assignment)
    return AssignmentNode(fields.partitions, fields.adding_replicas, fields.removing_replicas, fields.topic_id)


def decode_state(data: bytes) -> StateNode:
    fields = read_json(data, _State)
    return StateNode(fields.leader, fields.leader_epoch, fields.controller_epoch, fields.isr)


def decode_config(data: bytes) -> dict[str, str]:
    """`/config/topics/<topic>`: the topic's own settings."""
    return read_json(data, _Config).config


def decode_requested(data: bytes) -> dict[tuple[str, int], _Replicas]:
    """`/admin/reassign_partitions` or `/admin/preferred_replica_election`: partition -> requested replicas."""
    return {(each.topic, each.partition): each.replicas for each in read_json(data, _Partitions).partitions}


def decode_partition_counts(children: Mapping[str, bytes]) -> dict[int, int]:
    """A 0.7 topic: broker -> its number of partitions, which are named `<broker>-<n>`.

    `children` are those of `/brokers/topics/<topic>`. Raises ValueError if they are not in the format of 0.7.
    """
    counts: dict[int, int] = {}
    for name, data in children.items():
        if not (is_number(name) and data.isdigit()):
            raise ValueError(f"{name!r} is not a 0.7 broker with a number of partitions")
        counts[int(name)] = int(data)
    return counts


def _of_0_7(data: bytes) -> BrokerListener:
    parts = data.decode("utf-8", "replace").rsplit(":", 2)
    if len(parts) != 3 or not parts[1] or not (parts[2].isascii() and parts[2].isdecimal()):
        raise ValueError("neither JSON nor <creator>:<host>:<port>, as 0.7 brokers write")
    return BrokerListener("PLAINTEXT", "PLAINTEXT", parts[1], int(parts[2]))


def _number(text: str | int | None) -> int | None:
    """Brokers write times as text; -1 stands for none."""
    try:
        number = -1 if text is None else int(text)
    except ValueError:
        number = _MOST_MS + 1
    if number > _MOST_MS:
        raise ValueError(f"{str(text)[:40]!r} is not a time in ms")
    return number if number >= 0 else None


class Unreadable(msgspec.Struct, frozen=True):
    """A node whose content is not what brokers write there, or what a broker was asked for and refused."""

    path: str
    reason: str


class ListenerShown(msgspec.Struct, frozen=True):
    """`name`: None from brokers, which report the listener that is asked."""

    name: str | None
    security_protocol: str
    host: str
    port: int


class BrokerShown(msgspec.Struct, frozen=True):
    """`version` is that of its registration; 0 is a 0.7 broker. Times are those of brokers' clocks. Both None: from
    brokers, which do not report them.
    """

    id: int
    version: int | None
    listeners: tuple[ListenerShown, ...]
    since: datetime | None
    rack: str | None


class ClusterDescription(msgspec.Struct, frozen=True):
    """`controller` is a broker id; what the cluster lacks, or its version does not write, is None.

    From brokers (`from_brokers`) None is what they do not report.
    """

    from_brokers: bool
    cluster_id: str | None
    controller: int | None
    controller_since: datetime | None
    controller_epoch: int | None
    kraft_controller: bool | None
    brokers: tuple[BrokerShown, ...]
    topics: int
    deleting: tuple[str, ...] | None
    reassigning: tuple[str, ...] | None
    electing: tuple[str, ...] | None
    unreadable: tuple[Unreadable, ...]


class PartitionShown(msgspec.Struct, frozen=True):
    """As last written by the controller; `replicas` starts with the preferred leader. Unknown: None and empty.

    `leader_registered`: after the last broker's death no controller writes that the partition has no leader.
    From brokers `controller_epoch` is None, and `adding` and `removing` are if they do not report them.
    """

    partition: int
    leader: int | None
    leader_registered: bool
    leader_epoch: int | None
    controller_epoch: int | None
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] | None
    removing: tuple[int, ...] | None

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


class TopicDescription(msgspec.Struct, frozen=True):
    """`brokers_of_0_7`: broker -> its partitions, for a topic in the form of 0.7, which has no others.

    `deleting` is None from brokers, which do not report it, and `config` if they refuse to.
    """

    topic: str
    topic_id: str | None
    deleting: bool | None
    config: Mapping[str, str] | None
    partitions: tuple[PartitionShown, ...]
    brokers_of_0_7: Mapping[int, int]
    unreadable: tuple[Unreadable, ...]

    @property
    def partition_count(self) -> int:
        return len(self.partitions) + sum(self.brokers_of_0_7.values())

    @property
    def leaderless(self) -> int:
        """As `kafka-topics.sh --unavailable-partitions`: also those whose leader is not registered."""
        return sum(not each.leader_registered for each in self.partitions)

    @property
    def under_replicated(self) -> int:
        return sum(each.under_replicated for each in self.partitions)


def cluster_description(
    cluster_id: str | None,
    controller: ControllerNode | None,
    epoch: int | None,
    brokers: Mapping[int, BrokerNode],
    topics: int,
    deleting: Sequence[str],
    reassigning: Sequence[tuple[str, int]],
    electing: Sequence[tuple[str, int]],
    unreadable: Sequence[Unreadable],
) -> ClusterDescription:
    return ClusterDescription(
        from_brokers=False,
        cluster_id=cluster_id,
        controller=controller.broker if controller is not None else None,
        controller_since=_time(controller.since) if controller is not None else None,
        controller_epoch=epoch,
        kraft_controller=controller is not None and controller.kraft,
        brokers=tuple(
            BrokerShown(
                number,
                node.version,
                tuple(
                    ListenerShown(each.name, each.security_protocol, each.host, each.port) for each in node.listeners
                ),
                _time(node.since),
                node.rack,
            )
            for number, node in sorted(brokers.items())
        ),
        topics=topics,
        deleting=tuple(sorted(deleting)),
        reassigning=tuple(f"{topic}-{number}" for topic, number in sorted(reassigning)),
        electing=tuple(f"{topic}-{number}" for topic, number in sorted(electing)),
        unreadable=tuple(unreadable),
    )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def topic_description(
    topic: str,
    assignment: AssignmentNode | None,
    states: Mapping[int, StateNode],
    config: Mapping[str, str],
    deleting: bool,
    of_0_7: Mapping[int, int],
    registered: Collection[int],
    unreadable: Sequence[Unreadable],
) -> TopicDescription:
    """`assignment` is None for a topic of 0.7, and for one whose node cannot be read."""
    assigned = assignment or AssignmentNode({}, {}, {}, None)
    return TopicDescription(
        topic=topic,
        topic_id=assigned.topic_id,
        deleting=deleting,
        config=dict(sorted(config.items())),
        partitions=tuple(
            _partition(number, assigned, states.get(number), registered) for number in sorted(assigned.replicas)
        ),
        brokers_of_0_7=dict(sorted(of_0_7.items())),
        unreadable=tuple(unreadable),
    )


def _partition(
    number: int, assigned: AssignmentNode, state: StateNode | None, registered: Collection[int]
) -> PartitionShown:
    return PartitionShown(
        partition=number,
        leader=state.leader if state is not None and state.leader != NO_LEADER else None,
        leader_registered=state is not None and state.leader in registered,
        leader_epoch=state.leader_epoch if state is not None else None,
        controller_epoch=state.controller_epoch if state is not None else None,
        replicas=assigned.replicas[number],
        isr=state.isr if state is not None else (),
        adding=assigned.adding.get(number, ()),
        removing=assigned.removing.get(number, ()),
    )
