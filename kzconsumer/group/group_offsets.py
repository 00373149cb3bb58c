"""The offsets that a group has stored, each with what stands beside it in its claim record.

Pure. `kzconsumer offsets show` shows them.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from kzconsumer.group.group_nodes import GroupNodes
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.moves import offset_in
from kzconsumer.zookeeper import paths, znodes
from kzconsumer.zookeeper.paths import GroupPaths


class StoredOffset(msgspec.Struct, frozen=True):
    """`stored` is None where the node says that there is none, or nothing that can be read. `written`: when its node
    was last written, ISO 8601 in UTC; an unchanged offset is not written again. `epoch` (None without a claim record)
    counts resets, `plan` is a range on its way into a replayable sink, as [first, until]."""

    topic: str
    partition: int
    stored: int | None
    written: str
    epoch: int | None
    plan: tuple[int, int] | None


class GroupOffsets(msgspec.Struct, frozen=True):
    group: str
    partitions: tuple[StoredOffset, ...]


def stored_offsets(nodes: GroupNodes) -> dict[TopicPartition, bytes]:
    """The content of each partition's offset node, by partition in order; nodes that are no partition's left out."""
    found = {}
    for path, node in nodes.offsets.items():
        try:
            found[paths.partition_of(path)] = node.data
        except ValueError:
            continue  # `groups doctor` tells of it
    return dict(sorted(found.items()))


def show(nodes: GroupNodes) -> GroupOffsets:
    return GroupOffsets(nodes.group, tuple(_stored(nodes, each, data) for each, data in stored_offsets(nodes).items()))


def _stored(nodes: GroupNodes, partition: TopicPartition, data: bytes) -> StoredOffset:
    group = GroupPaths(nodes.group)
    claim = nodes.claims.get(group.claim_record(partition))
    try:
        record = znodes.decode_claim_record(claim.data) if claim is not None else None
    except ValueError:
        record = None
    written = datetime.fromtimestamp(nodes.offsets[group.offset(partition)].stat.mtime / 1000, UTC)
    return StoredOffset(
        topic=partition.topic,
        partition=partition.partition,
        stored=offset_in(data),
        written=written.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        epoch=record.epoch if record is not None else None,
        plan=(record.plan.first, record.plan.until) if record is not None and record.plan is not None else None,
    )
