"""OffsetForLeaderEpoch: where the records of a leader epoch end in a partition's log; for its leader.

A leader epoch counts the elections of a partition's leader. Two logs have the same records up to an offset if the
record before it is of the same epoch in both (KIP-101). Brokers know the request from 0.11 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, NamedTuple

import msgspec

from kzconsumer.brokers.protocol.error_codes import CLUSTER_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED
from kzconsumer.brokers.protocol.primitives import INT32, Reader
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH, encoding_of, response
from kzconsumer.model import TopicPartition

CONSUMERS_MAY_ASK: Final = 3
"""From this version on (Kafka 2.3) the right Describe on the topic is enough (KIP-320)."""

NOT_PERMITTED: Final[Mapping[int, str]] = {
    TOPIC_AUTHORIZATION_FAILED: "Describe on the topic",
    CLUSTER_AUTHORIZATION_FAILED: "ClusterAction on the cluster (brokers before 2.3)",
}
"""Errors of a client that may not ask, and the right that it lacks."""


class AskedEpoch(NamedTuple):
    """The epoch that is asked about, and the one in which the broker is taken to lead (version 2 on, -1: unknown)."""

    epoch: int
    leader_epoch: int = -1


class EpochEnd(msgspec.Struct, frozen=True):
    """As `kafka.server.epoch.LeaderEpochFileCache.endOffsetFor` (3.9) answers.

    Of the latest epoch the end is that of the log. Of one before the log's first it is where that begins.
    """

    error: int
    epoch: int
    """The largest one in the log that is not above the one asked about; -1 if there is none, and in version 0."""
    end_offset: int
    """Where it ends; -1 if the log has no epoch as large as the one asked about, or none at all. Version 0 also has -1
    for epochs before the log's first one."""


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True):
    """Versions 0 to 2 need the right ClusterAction, later ones only Describe on the topic (KIP-320)."""

    partitions: Mapping[TopicPartition, AskedEpoch]
    api_key: ClassVar[int] = OFFSET_FOR_LEADER_EPOCH

    def encode(self, version: int) -> bytes:
        encoding = encoding_of(OFFSET_FOR_LEADER_EPOCH, version)
        head = INT32.pack(-1) if version >= 3 else b""  # replica_id: a consumer
        asked = encoding.by_topic(
            (where, (INT32.pack(leader) if version >= 2 else b"") + INT32.pack(epoch) + encoding.tags)
            for where, (epoch, leader) in self.partitions.items()
        )
        return head + asked + encoding.tags

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, EpochEnd]:
        with response(OFFSET_FOR_LEADER_EPOCH, version, body) as reader:
            if version >= 2:
                reader.int32()  # throttle_time_ms
            found: dict[TopicPartition, EpochEnd] = {}
            for _ in range(reader.count()):
                topic = reader.string()
                found |= (_end(reader, topic, version) for _ in range(reader.count()))
                reader.tags()
            return found


def _end(reader: Reader, topic: str, version: int) -> tuple[TopicPartition, EpochEnd]:
    error = reader.int16()
    where = TopicPartition(topic, reader.int32())
    epoch = reader.int32() if version >= 1 else -1
    end = EpochEnd(error, epoch, reader.int64())
    reader.tags()
    return where, end
