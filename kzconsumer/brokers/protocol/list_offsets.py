"""ListOffsets: where a partition's log begins and ends, and the first offset at or after a time; for its leader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from kzconsumer.brokers.protocol.primitives import INT8, INT32, INT64, Reader
from kzconsumer.brokers.protocol.versions import LIST_OFFSETS, encoding_of, response
from kzconsumer.model import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4
"""The first offset that the broker has on its own disks. Tiered storage (KIP-405) may have earlier ones elsewhere;
without it, this is EARLIEST."""
EARLIEST_LOCAL_VERSION: Final = 8
"""From this version of the request on brokers know EARLIEST_LOCAL. Apache Kafka before it has no tiered storage."""


class ListedOffset(msgspec.Struct, frozen=True):
    error: int
    offset: int
    """-1 if there is none: an error, or no record at or after the requested time."""
    timestamp: int
    """Milliseconds, of the record at `offset`; -1 for LATEST, EARLIEST and EARLIEST_LOCAL, and always in version 0."""
    leader_epoch: int = -1
    """Of the record at `offset`, for LATEST the log's last one; -1 before version 4 (Kafka 2.1), and if unknown."""


class ListOffsetsRequest(msgspec.Struct, frozen=True):
    """`partitions` says for each LATEST, EARLIEST, EARLIEST_LOCAL or a time in ms since 1970.

    With a time, version 0 (before Kafka 0.10.1) finds no record but the base offset of the newest segment that was last
    written before that time. With `isolation` 1 (read committed) LATEST is the last stable offset, from version 2 on.
    `leader_epochs`: in which the broker is taken to lead (version 4 on); it refuses any other.
    """

    partitions: Mapping[TopicPartition, int]
    isolation: int = 0
    leader_epochs: Mapping[TopicPartition, int] = {}
    api_key: ClassVar[int] = LIST_OFFSETS

    def encode(self, version: int) -> bytes:
        head = INT32.pack(-1)  # replica_id
        if version >= 2:
            head += INT8.pack(self.isolation)
        epochs = self.leader_epochs
        after = INT32.pack(1) if version == 0 else b""  # max_num_offsets
        encoding = encoding_of(LIST_OFFSETS, version)
        after += encoding.tags
        partitions = encoding.by_topic(
            (where, (INT32.pack(epochs.get(where, -1)) if version >= 4 else b"") + INT64.pack(timestamp) + after)
            for where, timestamp in self.partitions.items()
        )
        return head + partitions + encoding.tags

    def decode(self, version: int, body: memoryview) -> dict[TopicPartition, ListedOffset]:
        with response(LIST_OFFSETS, version, body) as reader:
            if version >= 2:
                reader.int32()  # throttle_time_ms
            return {where: _listed(reader, version) for where in reader.partitions()}


def _listed(reader: Reader, version: int) -> ListedOffset:
    error = reader.int16()
    if version == 0:
        offsets = reader.int64s()
        return ListedOffset(error, offsets[0] if offsets else -1, -1)
    timestamp = reader.int64()
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 4 else -1
    reader.tags()
    return ListedOffset(error, offset, timestamp, leader_epoch)
