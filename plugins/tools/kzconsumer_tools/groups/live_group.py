"""A group as its members read it, for previews. Raises where a member waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.group.snapshot_reader import SnapshotReader
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.members import ConsumerRegistry
from kzconsumer.registry.nodes import Topic
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import Registration, needs_all_topics, subscribed_topics
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_tools.groups.cluster_access import cluster_access
from kzconsumer_tools.groups.nodes import owner_of
from kzconsumer_tools.groups.topics import Topics

log = get_logger("kzconsumer.cli")


class LiveGroup(msgspec.Struct, frozen=True):
    """The present group, the group with the joining members, and partition -> owner node's text."""

    present: GroupSnapshot
    joined: GroupSnapshot
    owners: Mapping[TopicPartition, str]


Joining = Callable[[Mapping[str, Registration]], Mapping[str, Registration]]
"""The members that would join those that are present."""


async def read_group(settings: Settings, joining: Joining) -> LiveGroup:
    """Read the settings' group and the topics that the joining members would subscribe to.

    A group that does not exist has no members. Raises ZooKeeperUnreachableError after 15 s, BrokersUnreachableError,
    GroupUnreadableError for an unreadable registration unless the group ignores such members.
    """
    group = GroupPaths(settings.group.id)
    async with cluster_access(settings.zookeeper, settings.brokers, settings.source, settings.group.id) as access:
        session = access.session
        watches = Watches(session)
        reader = SnapshotReader(
            ConsumerRegistry(session, watches, group),
            TopicRegistry(session, watches),
            watches,
            group,
            ignore_unreadable=settings.group.unreadable_members == "ignore",
        )
        present = await reader.members()
        joined = await _with_topics({**present, **joining(present)}, await access.topics(), settings.group.id)
        partitions = [TopicPartition(name, n) for name, topic in joined.topics.items() for n in topic.partitions]
        nodes = await together([session.find(group.owner(partition)) for partition in partitions])
    return LiveGroup(
        present=GroupSnapshot(present, joined.all_topics, joined.topics),
        joined=joined,
        owners={each: owner_of(node) for each, node in zip(partitions, nodes, strict=True) if node is not None},
    )


async def _with_topics(members: Mapping[str, Registration], topics: Topics, group: str) -> GroupSnapshot:
    all_topics = tuple(await topics.names()) if needs_all_topics(members) else ()
    found = await topics.found(subscribed_topics(members, all_topics), group)
    for name, topic in found.items():
        if topic.fault:
            log.error("topic node unreadable", path=paths.topic(name), reason=topic.fault)
    usable = {name: Topic(topic.partitions, topic.incarnation or 0) for name, topic in found.items() if not topic.fault}
    return GroupSnapshot(members, all_topics, usable)
