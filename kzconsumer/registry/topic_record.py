"""The identity of a topic where brokers report topics by id: `/consumers/<group>/topics/<topic>`.

Claim records, plans and destinations identify a topic by its incarnation, a transaction of ZooKeeper. So each topic id
gets one: the czxid of the topic's node if a cluster in ZooKeeper mode has created the topic, which keeps its identity
through a migration, else the transaction that records the id here. Both are later than every offset stored before.
"""

from __future__ import annotations

import msgspec

from kzconsumer.registry.node_json import read_json
from kzconsumer.zookeeper.operations import Node

TOPIC_RECORD_VERSION = 1


class TopicRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the node.

    `ids` are the ids of the topics that had the name, the present one last: one of the others is what a broker reports
    that lags behind. `incarnation`: empty for the transaction that wrote this.
    """

    version: int
    ids: tuple[str, ...]
    incarnation: str = ""

    def followed_by(self, topic_id: str) -> TopicRecord:
        return TopicRecord(TOPIC_RECORD_VERSION, (*self.ids, topic_id))


def decode_topic_record(data: bytes) -> TopicRecord:
    """Raises ValueError."""
    record = read_json(data, TopicRecord)
    if record.version != TOPIC_RECORD_VERSION or not record.ids:
        raise ValueError(f"topic record of format {record.version}, this version knows {TOPIC_RECORD_VERSION}")
    return record


def incarnation_of(node: Node, topic_id: str) -> int | None:
    """The incarnation of the topic with that id; None if it is of an earlier topic.

    Raises LookupError if the id is not recorded, ValueError.
    """
    record = decode_topic_record(node.data)
    if topic_id not in record.ids:
        raise LookupError(topic_id)
    if topic_id != record.ids[-1]:
        return None
    return last_incarnation(node)


def last_incarnation(node: Node) -> int:
    """The incarnation of the topic that was seen last. Raises ValueError."""
    record = decode_topic_record(node.data)
    return int(record.incarnation, 16) if record.incarnation else node.stat.mzxid
