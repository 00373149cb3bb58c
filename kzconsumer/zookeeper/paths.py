"""Where things lie in ZooKeeper, all relative to the chroot.

Pure. The layout is the original consumer's (`kafka.utils.ZkUtils`, `ZKGroupDirs`, 1.1.1) plus our `claims` beside it.
"""

from __future__ import annotations

from kzconsumer.model import TopicPartition

BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"


def broker(broker_id: int | str) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def topic(name: str) -> str:
    return f"{BROKER_TOPICS}/{name}"


class GroupPaths:
    """The nodes of one consumer group."""

    def __init__(self, group: str) -> None:
        self.root = f"/consumers/{group}"
        self.ids = f"{self.root}/ids"

    def member(self, consumer: str) -> str:
        return f"{self.ids}/{consumer}"

    def owner(self, partition: TopicPartition) -> str:
        return f"{self.root}/owners/{partition.topic}/{partition.partition}"

    def offset(self, partition: TopicPartition) -> str:
        return f"{self.root}/offsets/{partition.topic}/{partition.partition}"

    def claim_record(self, partition: TopicPartition) -> str:
        return f"{self.root}/claims/{partition.topic}/{partition.partition}"

    def containers(self, topic: str) -> tuple[str, str, str]:
        """The parents of a topic's owner, offset and claim nodes."""
        return f"{self.root}/owners/{topic}", f"{self.root}/offsets/{topic}", f"{self.root}/claims/{topic}"
