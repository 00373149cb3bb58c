"""The group from outside: members, topics and owners, read once by somebody who is no member and changes nothing.

Owns no state. The command line calls it. It arms watches as every reader of the registries does, and ends them with its
session.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import msgspec

from kzconsumer.config import Settings
from kzconsumer.errors import ZooKeeperUnreachable
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.group.snapshot_reader import SnapshotReader
from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.consumer_registry import ConsumerRegistry
from kzconsumer.zookeeper.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer.zookeeper.topic_registry import TopicRegistry
from kzconsumer.zookeeper.watches import Watches
from kzconsumer.zookeeper.znodes import Registration

LIMIT = 15.0


class LiveGroup(msgspec.Struct, frozen=True):
    """The group of today, the same with those who would join, and partition -> owner node's text where there is one."""

    present: GroupSnapshot
    joined: GroupSnapshot
    owners: Mapping[TopicPartition, str]


async def read_group(settings: Settings, joining: Mapping[str, Registration]) -> LiveGroup:
    """Read the settings' group and all that the members of `joining` would subscribe to.

    A group that nobody ever joined has no members. Raises ZooKeeperUnreachable after 15 s, GroupUnreadable for
    a registration that says nothing, unless the group ignores such members: no member can compute anything then.
    """
    zookeeper = settings.zookeeper
    with anyio.move_on_after(LIMIT):
        async with ZooKeeperSession(ConnectString.parse(zookeeper.connect), zookeeper.session_timeout) as session:
            return await _read(session, settings, joining)
    raise ZooKeeperUnreachable(f"{zookeeper.connect}: the group could not be read within {LIMIT:.0f} s")


async def _read(session: ZooKeeperSession, settings: Settings, joining: Mapping[str, Registration]) -> LiveGroup:
    paths = GroupPaths(settings.group.id)
    watches = Watches(session, _ignore)
    reader = SnapshotReader(
        ConsumerRegistry(session, watches, paths),
        TopicRegistry(session, watches),
        watches,
        paths,
        ignore_unreadable=settings.group.unreadable_members == "ignore",
    )
    present = await reader.members()
    joined = await reader.read({**present, **joining})
    partitions = [TopicPartition(name, n) for name, topic in joined.topics.items() for n in topic.partitions]
    return LiveGroup(
        present=GroupSnapshot(present, joined.all_topics, joined.topics),
        joined=joined,
        owners=await _owners(session, paths, partitions),
    )


async def _owners(
    session: ZooKeeperSession, paths: GroupPaths, partitions: list[TopicPartition]
) -> dict[TopicPartition, str]:
    nodes = await together([session.find(paths.owner(each)) for each in partitions])
    return {
        each: node.data.decode("utf-8", "replace")
        for each, node in zip(partitions, nodes, strict=True)
        if node is not None
    }


def _ignore(reason: str) -> None:
    """Read once: what changes meanwhile is not our business."""
