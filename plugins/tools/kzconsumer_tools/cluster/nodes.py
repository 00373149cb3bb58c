"""Kafka's nodes about the cluster and its topics, decoded, in the formats of all versions; members read less of them.

Decoders raise ValueError with the reason. Formats: `kafka.zk.ZkData` (3.9), `kafka.utils.ZkUtils` (0.8), and 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from kzconsumer.registry.listeners import Listener
from kzconsumer.registry.node_json import read_json
from kzconsumer.registry.nodes import decode_listeners
from kzconsumer.registry.paths import is_number

NO_LEADER = -1
"""The leader of a partition without leader."""

_Id = Annotated[int, Meta(ge=0)]
_Replicas = tuple[int, ...]


class BrokerNode(msgspec.Struct, frozen=True):
    """`/brokers/ids/<id>`. `version` 0 is a 0.7 broker, which writes `<creator>:<host>:<port>`."""

    version: int
    listeners: tuple[Listener, ...]
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
    return BrokerNode(fields.version, decode_listeners(data), _time(fields.timestamp), fields.rack)


def decode_controller(data: bytes) -> ControllerNode:
    """JSON, or only the broker's number, as controllers before 0.8 write it."""
    if data.isdigit():
        return ControllerNode(int(data), None)
    fields = read_json(data, _Controller)
    return ControllerNode(fields.brokerid, _time(fields.timestamp), fields.kraftControllerEpoch >= 0)


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


def _of_0_7(data: bytes) -> Listener:
    parts = data.decode("utf-8", "replace").rsplit(":", 2)
    if len(parts) != 3 or not parts[1] or not (parts[2].isascii() and parts[2].isdecimal()):
        raise ValueError("neither JSON nor <creator>:<host>:<port>, as 0.7 brokers write")
    return Listener("PLAINTEXT", "PLAINTEXT", parts[1], int(parts[2]))


def _time(text: str | int | None) -> int | None:
    """Brokers write times as text; -1 stands for none."""
    try:
        return int(text) if text is not None and int(text) >= 0 else None
    except ValueError:
        raise ValueError(f"{text!r} is not a time in ms") from None
