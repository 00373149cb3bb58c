"""Requests to the controller and to the brokers, written and watched until they are carried out.

Owns no state. `cli/topics_admin` and `cli/topics_config` call it. What is asked for is composed by `admin_requests` and
`topic_settings`; whether it has been done is told by the nodes, which the controller takes away when it has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio

from kzconsumer.errors import MultiFailed, NotDone
from kzconsumer.registry import paths
from kzconsumer.registry.sessions import short_session
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.operations import Create, SetData
from kzconsumer.zookeeper.round_trips import repeated
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.cluster.description import ClusterDescription, TopicDescription
from kzconsumer_tools.cluster.reader import (
    cluster_of,
    deleting_of,
    electing_of,
    reassigning_of,
    require_cluster,
    topics_of,
)
from kzconsumer_tools.cluster.topic_settings import encode_config

T = TypeVar("T")

# Between two looks: controllers take some 100 ms for what has no data to move.
PAUSE = 0.2

Pending = Callable[[ZooKeeperSession], Awaitable[set[str]]]


async def looked_at(
    session: ZooKeeperSession, zookeeper: ZooKeeperSettings, names: Sequence[str] | None
) -> tuple[ClusterDescription, list[TopicDescription]]:
    """The cluster, and those topics or all. Raises NotThere."""
    await require_cluster(session, zookeeper)
    return await cluster_of(session), await topics_of(session, names)


async def ask(session: ZooKeeperSession, requests: Sequence[Create]) -> None:
    """Write the requests, all or none. Raises NotDone where somebody was quicker."""
    try:
        await session.ensure(paths.DELETE_TOPICS)  # and /admin with it
        await session.multi(requests)
    except MultiFailed as error:
        raise NotDone(f"somebody else has asked for it meanwhile; nothing was changed ({error})") from None


async def moving(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    """Those that are still to be reassigned: controllers take each out of the request when it is done."""
    return (await reassigning_of(session) or set()) & asked


async def electing(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    return asked if await electing_of(session) is not None else set()


async def deleting(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    return await deleting_of(session) & asked


async def wait_until_done(
    zookeeper: ZooKeeperSettings,
    pending: Callable[[ZooKeeperSession, set[str]], Awaitable[set[str]]],
    asked: set[str],
    limit: float,
    told: Callable[[int], None],
) -> set[str]:
    """What is still pending after `limit` s; nothing when all is done before. `told` gets how many are, each time."""
    left = asked
    with anyio.move_on_after(limit):
        async with short_session(zookeeper, limit) as session:
            while left := await repeated(lambda: pending(session, asked)):
                told(len(left))
                await anyio.sleep(PAUSE)
    return left


async def set_config(
    session: ZooKeeperSession, topic: str, seen: Mapping[str, str], config: Mapping[str, str], notify: Create
) -> None:
    """The topic's settings, and the notification that makes brokers read them, at once.

    Raises NotDone when the settings are not as seen any more.
    """
    path = paths.topic_config(topic)
    node = await session.find(path)
    if node is None:
        await session.ensure(path.rpartition("/")[0])
    await session.ensure(notify.path.rpartition("/")[0])
    (now,) = await topics_of(session, [topic])
    if now.config != seen:
        raise NotDone(f"the settings of {topic} have been changed meanwhile; nothing was changed")
    content = encode_config(config)
    write = Create(path, content) if node is None else SetData(path, content, node.stat.version)
    try:
        await session.multi([write, notify])
    except MultiFailed:
        raise NotDone(f"the settings of {topic} have been changed meanwhile; nothing was changed") from None
