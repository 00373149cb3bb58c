"""The paths of nodes in ZooKeeper, below the chroot.

The layout is the original consumer's (`kafka.utils.ZkUtils`, `ZKGroupDirs`, 1.1.1), with `claims`, `run`, `topics` and
`brokers` added.
"""

from __future__ import annotations

from kzconsumer.model import TopicPartition

CONSUMERS = "/consumers"
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
MIGRATION = "/migration"


def broker(broker_id: int | str) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}"


def is_number(name: str) -> bool:
    """Whether a name is that of a broker or a partition: a number of 32 bits, in decimal digits."""
    return name.isascii() and name.isdecimal() and len(name) <= 10 and int(name) < 1 << 31


def topic_of(leaf: str) -> str:
    """The topic of a group's owner, offset or claim node."""
    return leaf.split("/")[-2]


class GroupPaths:
    """The nodes of one consumer group."""

    def __init__(self, group: str) -> None:
        self.root = f"{CONSUMERS}/{group}"
        self.ids = f"{self.root}/ids"
        self.owners = f"{self.root}/owners"
        self.offsets = f"{self.root}/offsets"
        self.claims = f"{self.root}/claims"
        self.run = f"{self.root}/run"
        self.topics = f"{self.root}/topics"
        self.brokers = f"{self.root}/brokers"
        self.known = {self.ids, self.owners, self.offsets, self.claims, self.run, self.topics, self.brokers}

    def member(self, consumer: str) -> str:
        return f"{self.ids}/{consumer}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.owners}/{partition.topic}/{partition.partition}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.offsets}/{partition.topic}/{partition.partition}"

    def claim_record(self, partition: TopicPartition) -> str:
        return f"{self.claims}/{partition.topic}/{partition.partition}"

    def topic(self, name: str) -> str:
        return f"{self.topics}/{name}"

    def containers(self, topic: str) -> tuple[str, str, str]:
        """The parents of a topic's owner, offset and claim nodes."""
        return f"{self.owners}/{topic}", f"{self.offsets}/{topic}", f"{self.claims}/{topic}"
