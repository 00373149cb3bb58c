"""The cluster and its topics as they are shown; the fields are those of `-o json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from kzconsumer_tools.cluster.nodes import NO_LEADER, AssignmentNode, BrokerNode, ControllerNode, StateNode


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

    From brokers `controller_epoch` is None, and `adding` and `removing` are if they do not report them.
    """

    partition: int
    leader: int | None
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
        return sum(each.leader is None for each in self.partitions)

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
    unreadable: Sequence[Unreadable],
) -> TopicDescription:
    """`assignment` is None for a topic of 0.7, and for one whose node cannot be read."""
    assigned = assignment or AssignmentNode({}, {}, {}, None)
    return TopicDescription(
        topic=topic,
        topic_id=assigned.topic_id,
        deleting=deleting,
        config=dict(sorted(config.items())),
        partitions=tuple(_partition(number, assigned, states.get(number)) for number in sorted(assigned.replicas)),
        brokers_of_0_7=dict(sorted(of_0_7.items())),
        unreadable=tuple(unreadable),
    )


def _partition(number: int, assigned: AssignmentNode, state: StateNode | None) -> PartitionShown:
    return PartitionShown(
        partition=number,
        leader=state.leader if state is not None and state.leader != NO_LEADER else None,
        leader_epoch=state.leader_epoch if state is not None else None,
        controller_epoch=state.controller_epoch if state is not None else None,
        replicas=assigned.replicas[number],
        isr=state.isr if state is not None else (),
        adding=assigned.adding.get(number, ()),
        removing=assigned.removing.get(number, ()),
    )
