"""Reading groups from outside, without joining.

`read_group` reads as members do, and raises where a member waits; the other functions read all nodes, valid or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from kzconsumer.errors import NoNodeError, NotFoundError
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.group.snapshot_reader import SnapshotReader
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.members import ConsumerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import Registration
from kzconsumer.registry.sessions import short_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.tables import nearest
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import Node, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_tools.groups.description import GroupSummary, summarise
from kzconsumer_tools.groups.nodes import GroupNodes, owner_of, topics_in
from kzconsumer_tools.paths import BROKERS, partition_of

# If members join or leave while the nodes are read, owners look unregistered: the nodes are read again.
_READINGS = 5

NO_CLUSTER: Final = f"no Kafka cluster is registered there (neither {BROKERS} nor {paths.CONSUMERS} exists)"


class NodeReads(Protocol):
    """What a session is needed for here; `children` may return none for a node that does not exist."""

    async def find(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]: ...


class LiveGroup(msgspec.Struct, frozen=True):
    """The present group, the group with the joining members, and partition -> owner node's text."""

    present: GroupSnapshot
    joined: GroupSnapshot
    owners: Mapping[TopicPartition, str]


async def read_group(settings: Settings, joining: Mapping[str, Registration]) -> LiveGroup:
    """Read the settings' group and the topics that the members of `joining` would subscribe to.

    A group that does not exist has no members. Raises ZooKeeperUnreachableError after 15 s, GroupUnreadableError for an
    unreadable registration unless the group ignores such members.
    """
    group = GroupPaths(settings.group.id)
    async with short_session(settings.zookeeper) as session:
        watches = Watches(session)
        reader = SnapshotReader(
            ConsumerRegistry(session, watches, group),
            TopicRegistry(session, watches),
            watches,
            group,
            ignore_unreadable=settings.group.unreadable_members == "ignore",
        )
        present = await reader.members()
        joined = await reader.read({**present, **joining})
        partitions = [TopicPartition(name, n) for name, topic in joined.topics.items() for n in topic.partitions]
        nodes = await _found(session, map(group.owner, partitions))
    return LiveGroup(
        present=GroupSnapshot(present, joined.all_topics, joined.topics),
        joined=joined,
        owners={partition_of(path): owner_of(node) for path, node in nodes.items()},
    )


async def read_nodes(zookeeper: ZooKeeperSettings, group: str) -> GroupNodes:
    """All nodes of the group and of its topics.

    Raises NotFoundError if it does not exist, ZooKeeperUnreachableError.
    """
    async with short_session(zookeeper) as session:
        await require_group(session, zookeeper.connect, group)
        return await nodes_of(session, group)


async def require_group(session: ZooKeeperSession, connect: str, group: str) -> None:
    """Raises NotFoundError if the group, or the cluster, does not exist."""
    groups = await _groups(session, connect)
    if group not in groups:
        meant = nearest(group, groups)
        hint = f"did you mean {meant}?" if meant else "`kzconsumer groups list` lists the groups"
        raise NotFoundError(f"{connect}: there is no group {group}; {hint}")


async def nodes_of(session: NodeReads, group: str) -> GroupNodes:
    """All nodes of the group and of its topics; none if it does not exist."""
    for _ in range(_READINGS):
        nodes = await _nodes(session, group)
        if await _children(session, GroupPaths(group).ids) == list(nodes.registrations):
            break
    return nodes


async def tree_of(session: ZooKeeperSession, path: str) -> dict[str, Node]:
    """Path -> node, of that node and everything below; empty if it does not exist."""
    found = await _found(session, [path])
    below = await together([tree_of(session, f"{path}/{name}") for name in await _children(session, path)])
    for tree in below:
        found |= tree
    return found


async def read_summaries(zookeeper: ZooKeeperSettings) -> list[GroupSummary]:
    """All groups by name. Raises NotFoundError if there is no cluster, ZooKeeperUnreachableError."""
    async with short_session(zookeeper) as session:
        groups = await _groups(session, zookeeper.connect)
        return await together([_summary(session, group) for group in groups])


async def _groups(session: ZooKeeperSession, connect: str) -> list[str]:
    try:
        return await session.children(paths.CONSUMERS)
    except NoNodeError:
        if await session.exists(BROKERS) is None:
            raise NotFoundError(f"{connect}: {NO_CLUSTER}") from None
        return []


async def _summary(session: ZooKeeperSession, group: str) -> GroupSummary:
    at = GroupPaths(group)
    owners = await _leaves(session, at.owners)
    offset_topics = await _children(session, at.offsets)
    registrations = await _registrations(session, at)
    topics = {paths.topic_of(path) for path in owners}.union(offset_topics)
    return summarise(group, registrations, len(owners), topics)


async def _nodes(session: NodeReads, group: str) -> GroupNodes:
    at = GroupPaths(group)
    signs = await together([session.find(path) for path in (paths.MIGRATION, at.brokers, at.topics)])
    nodes = GroupNodes(
        group=group,
        registrations=await _registrations(session, at),
        owners=await _found(session, await _leaves(session, at.owners)),
        offsets=await _found(session, await _leaves(session, at.offsets)),
        claims=await _found(session, await _leaves(session, at.claims)),
        all_topics=tuple(await _children(session, paths.BROKER_TOPICS)),
        topics={},
        run=await session.find(at.run),
        from_brokers=any(signs),
    )
    topics = await _found(session, map(paths.topic, sorted(topics_in(nodes))))
    return msgspec.structs.replace(nodes, topics={path.rpartition("/")[2]: node for path, node in topics.items()})


async def _registrations(session: NodeReads, group: GroupPaths) -> dict[str, Node]:
    nodes = await _found(session, map(group.member, await _children(session, group.ids)))
    return {path.rpartition("/")[2]: node for path, node in nodes.items()}


async def _leaves(session: NodeReads, root: str) -> list[str]:
    """The existing paths `<root>/<topic>/<partition>`."""
    topics = [f"{root}/{topic}" for topic in await _children(session, root)]
    names = await together([_children(session, topic) for topic in topics])
    return [f"{topic}/{name}" for topic, leaves in zip(topics, names, strict=True) for name in leaves]


async def _found(session: NodeReads, wanted: Iterable[str]) -> dict[str, Node]:
    """Path -> node, of those that exist."""
    asked = list(wanted)
    nodes = await together([session.find(path) for path in asked])
    return {path: node for path, node in zip(asked, nodes, strict=True) if node is not None}


async def _children(session: NodeReads, path: str) -> list[str]:
    """The children, sorted; empty if the node does not exist."""
    try:
        return await session.children(path)
    except NoNodeError:
        return []
