"""The paths of nodes in ZooKeeper, below the chroot.

The layout is the original consumer's (`kafka.utils.ZkUtils`, `ZKGroupDirs`, 1.1.1), with `claims` and `run` added.
"""

from __future__ import annotations

from typing import NamedTuple

from kzconsumer.model import TopicPartition

CONSUMERS = "/consumers"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
CONFIG_CHANGE = "/config/changes/config_change_"


def broker(broker_id: int | str) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}"


def partition_state(name: str, partition: int) -> str:
    return f"{topic(name)}/partitions/{partition}/state"


def topic_config(name: str) -> str:
    return f"/config/topics/{name}"


def is_number(name: str) -> bool:
    """Whether a name is that of a broker or a partition: a number of 32 bits, in decimal digits."""
    return name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) < 1 << 31


def topic_of(leaf: str) -> str:
    """The topic of a group's owner, offset or claim node."""
    return leaf.split("/")[-2]


def partition_of(leaf: str) -> TopicPartition:
    """The partition of a group's owner, offset or claim node. Raises ValueError for another name."""
    name = leaf.rpartition("/")[2]
    if not is_number(name):
        raise ValueError(f"{name!r} is not a partition's number")
    return TopicPartition(topic_of(leaf), int(name))


class PartitionOf07(NamedTuple):
    """A partition as Kafka 0.7 counts them: each broker has its own."""

    topic: str
    broker: int
    number: int


def partition_of_0_7(leaf: str) -> PartitionOf07:
    """That of a group's offset node, `<broker>-<number>`. Raises ValueError for another name."""
    broker, dash, number = leaf.rpartition("/")[2].partition("-")
    if not dash or not is_number(broker) or not is_number(number):
        raise ValueError(f"{leaf!r} is no partition of Kafka 0.7")
    return PartitionOf07(topic_of(leaf), int(broker), int(number))


class GroupPaths:
    """The nodes of one consumer group."""

    def __init__(self, group: str) -> None:
        self.root = f"{CONSUMERS}/{group}"
        self.ids = f"{self.root}/ids"
        self.owners = f"{self.root}/owners"
        self.offsets = f"{self.root}/offsets"
        self.claims = f"{self.root}/claims"
        self.run = f"{self.root}/run"

    def member(self, consumer: str) -> str:
        return f"{self.ids}/{consumer}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.offsets}/{partition.topic}/{partition.partition}"

    def claim_record(self, partition: TopicPartition) -> str:
        return f"{self.claims}/{partition.topic}/{partition.partition}"

    def containers(self, topic: str) -> tuple[str, str, str]:
        """The parents of a topic's owner, offset and claim nodes."""
        return f"{self.owners}/{topic}", f"{self.offsets}/{topic}", f"{self.claims}/{topic}"
