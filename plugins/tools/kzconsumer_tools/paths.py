"""Paths in ZooKeeper that only the tools use, besides those of `kzconsumer.registry.paths`."""

from __future__ import annotations

from typing import NamedTuple

from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import is_number, topic, topic_of

BROKERS = "/brokers"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
CONFIG_CHANGE = "/config/changes/config_change_"


class PartitionOf07(NamedTuple):
    """A partition of Kafka 0.7, which numbers them for each broker."""

    topic: str
    broker: int
    number: int


def partition_state(name: str, partition: int) -> str:
    return f"{topic(name)}/partitions/{partition}/state"


def topic_config(name: str) -> str:
    return f"/config/topics/{name}"


def partition_of(leaf: str) -> TopicPartition:
    """The partition of a group's owner, offset or claim node. Raises ValueError for another name."""
    name = leaf.rpartition("/")[2]
    if not is_number(name) or name != str(int(name)):  # no member uses 00 for 0
        raise ValueError(f"{name!r} is not a partition's number")
    return TopicPartition(topic_of(leaf), int(name))


def partition_of_0_7(leaf: str) -> PartitionOf07:
    """The partition of an offset node `<broker>-<number>`. Raises ValueError for another name."""
    broker, dash, number = leaf.rpartition("/")[2].partition("-")
    if not dash or not is_number(broker) or not is_number(number):
        raise ValueError(f"{leaf!r} is not a partition of Kafka 0.7")
    return PartitionOf07(topic_of(leaf), int(broker), int(number))
