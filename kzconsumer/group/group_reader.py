"""The group from outside: members, topics and owners, read once by somebody who is no member and changes nothing.

Owns no state. The command line calls it. It arms watches as every reader of the registries does, and ends them with its
session.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import msgspec
import structlog

from kzconsumer.config import Settings
from kzconsumer.errors import ZooKeeperError, ZooKeeperUnreachable
from kzconsumer.group.snapshot import GroupSnapshot, needs_all_topics, subscribed_topics
from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper import znodes
from kzconsumer.zookeeper.consumer_registry import ConsumerRegistry
from kzconsumer.zookeeper.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ConnectString, Node, ZooKeeperSession
from kzconsumer.zookeeper.topic_registry import TopicRegistry
from kzconsumer.zookeeper.watches import Watches
from kzconsumer.zookeeper.znodes import Registration

log = structlog.get_logger("kzconsumer.group")

LIMIT = 15.0


class LiveGroup(msgspec.Struct, frozen=True):
    """The group of today, the same with those who would join, and partition -> owner node's text where there is one."""

    present: GroupSnapshot
    joined: GroupSnapshot
    owners: Mapping[TopicPartition, str]


async def read_group(settings: Settings, joining: Mapping[str, Registration]) -> LiveGroup:
    """Read the settings' group and all that the members of `joining` would subscribe to.

    A group that nobody ever joined has no members. Raises ZooKeeperUnreachable after 15 s, ZooKeeperError for a
    registration that cannot be read, unless the group ignores such members: no member can compute anything then.
    """
    zookeeper = settings.zookeeper
    with anyio.move_on_after(LIMIT):
        async with ZooKeeperSession(ConnectString.parse(zookeeper.connect), zookeeper.session_timeout) as session:
            return await _read(session, settings, joining)
    raise ZooKeeperUnreachable(f"{zookeeper.connect}: the group could not be read within {LIMIT:.0f} s")


async def _read(session: ZooKeeperSession, settings: Settings, joining: Mapping[str, Registration]) -> LiveGroup:
    paths = GroupPaths(settings.group.id)
    watches = Watches(session, _ignore)
    registry = TopicRegistry(session, watches)
    nodes = await ConsumerRegistry(session, watches, paths).members()
    present = _registrations(paths, nodes, ignore=settings.group.unreadable_members == "ignore")
    joined = {**present, **joining}
    all_topics = tuple(await registry.all_topics()) if needs_all_topics(joined) else ()
    try:
        names = subscribed_topics(joined, all_topics)
    except ValueError as error:
        raise ZooKeeperError(paths.ids, str(error)) from error
    topics = await registry.topics(names)
    return LiveGroup(
        present=GroupSnapshot(present, all_topics, topics),
        joined=GroupSnapshot(joined, all_topics, topics),
        owners=await _owners(session, paths, [TopicPartition(n, p) for n in topics for p in topics[n].partitions]),
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


def _registrations(paths: GroupPaths, nodes: Mapping[str, Node], *, ignore: bool) -> dict[str, Registration]:
    registrations = {}
    for consumer, node in nodes.items():
        try:
            registrations[consumer] = znodes.decode_registration(node.data)
        except ValueError as error:
            if not ignore:
                raise ZooKeeperError(paths.member(consumer), str(error)) from error
            log.warning("a member's registration is unreadable and ignored", path=paths.member(consumer))
    return registrations


def _ignore(reason: str) -> None:
    """Read once: what changes meanwhile is not our business."""
