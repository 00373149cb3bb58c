"""Reading groups from outside, without joining: all nodes, valid or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from kzconsumer.errors import NoNodeError, NotFoundError
from kzconsumer.registry import paths
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.tables import nearest
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import Node, ZooKeeperSession
from kzconsumer_tools.groups.nodes import GroupNodes, topics_in
from kzconsumer_tools.groups.topics import NodeReads, Topics
from kzconsumer_tools.paths import BROKERS

# If members join or leave while the nodes are read, owners look unregistered: the nodes are read again.
_READINGS = 5

NO_CLUSTER: Final = f"no Kafka cluster is registered there (neither {BROKERS} nor {paths.CONSUMERS} exists)"


async def require_group(session: ZooKeeperSession, connect: str, group: str) -> None:
    """Raises NotFoundError if the group, or the cluster, does not exist."""
    groups = await group_names(session, connect)
    if group not in groups:
        meant = nearest(group, groups)
        hint = f"did you mean {meant}?" if meant else "`kzconsumer groups list` lists the groups"
        raise NotFoundError(f"{connect}: there is no group {group}; {hint}")


async def nodes_of(session: NodeReads, topics: Topics, group: str) -> GroupNodes:
    """All nodes of the group, and its topics; no nodes if it does not exist."""
    for _ in range(_READINGS):
        nodes = await _nodes(session, topics, group)
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


async def group_names(session: ZooKeeperSession, connect: str) -> list[str]:
    """All groups, sorted. Raises NotFoundError if there is no cluster."""
    try:
        return await session.children(paths.CONSUMERS)
    except NoNodeError:
        if await session.exists(BROKERS) is None:
            raise NotFoundError(f"{connect}: {NO_CLUSTER}") from None
        return []


async def _nodes(session: NodeReads, topics: Topics, group: str) -> GroupNodes:
    at = GroupPaths(group)
    nodes = GroupNodes(
        group=group,
        registrations=await _registrations(session, at),
        owners=await _found(session, await _leaves(session, at.owners)),
        offsets=await _found(session, await _leaves(session, at.offsets)),
        claims=await _found(session, await _leaves(session, at.claims)),
        all_topics=tuple(await topics.names()),
        topics={},
        run=await session.find(at.run),
        foreign=tuple(name for name in await _children(session, at.root) if f"{at.root}/{name}" not in at.known),
        from_brokers=topics.from_brokers,
        topics_known=await topics.known(),
    )
    return msgspec.structs.replace(nodes, topics=await topics.found(sorted(topics_in(nodes)), group))


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
