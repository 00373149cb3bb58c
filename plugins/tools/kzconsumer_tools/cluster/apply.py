"""Submitting requests to the controller and the brokers, and waiting until the controller has removed them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import anyio

from kzconsumer.errors import MultiFailedError, NotDoneError
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
from kzconsumer_tools.paths import DELETE_TOPICS, topic_config

T = TypeVar("T")

# Seconds between two reads: a controller takes about 100 ms if it has no data to move.
PAUSE = 0.2

Pending = Callable[[ZooKeeperSession, set[str]], Awaitable[set[str]]]
"""Of the names that were requested, those that are still pending."""


async def read_cluster_and_topics(
    session: ZooKeeperSession, connect: str, names: Sequence[str] | None
) -> tuple[ClusterDescription, list[TopicDescription]]:
    """The cluster and the named topics (None: all). Raises NotFoundError."""
    await require_cluster(session, connect)
    return await cluster_of(session), await topics_of(session, names)


async def submit(session: ZooKeeperSession, requests: Sequence[Create]) -> None:
    """Write all requests or none. Raises NotDoneError if there is such a request already."""
    try:
        await session.ensure(DELETE_TOPICS)  # and /admin with it
        await session.multi(requests)
    except MultiFailedError as error:
        raise NotDoneError(f"there is such a request already; nothing was changed ({error})") from None


async def moving(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    """The controller removes each partition from the request when it is done."""
    return (await reassigning_of(session) or set()) & asked


async def electing(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    return asked if await electing_of(session) is not None else set()


async def deleting(session: ZooKeeperSession, asked: set[str]) -> set[str]:
    return await deleting_of(session) & asked


async def wait_until_done(
    zookeeper: ZooKeeperSettings,
    pending: Pending,
    asked: set[str],
    limit: float,
    progress: Callable[[int], None],
) -> set[str]:
    """What is still pending after `limit` seconds. `progress` is called with the number that is pending."""
    left = asked
    with anyio.move_on_after(limit):
        async with short_session(zookeeper, limit) as session:
            while left := await repeated(lambda: pending(session, asked)):
                progress(len(left))
                await anyio.sleep(PAUSE)
    return left


async def set_config(
    session: ZooKeeperSession, topic: str, seen: Mapping[str, str], config: Mapping[str, str], notify: Create
) -> None:
    """Write the topic's settings, and the notification that makes brokers read them, in one transaction.

    Raises NotDoneError if the settings are no longer as `seen`.
    """
    path = topic_config(topic)
    node = await session.find(path)
    if node is None:
        await session.ensure(path.rpartition("/")[0])
    await session.ensure(notify.path.rpartition("/")[0])
    (now,) = await topics_of(session, [topic])
    if now.config != seen:
        raise NotDoneError(f"the settings of {topic} have been changed meanwhile; nothing was changed")
    content = encode_config(config)
    write = Create(path, content) if node is None else SetData(path, content, node.stat.version)
    try:
        await session.multi([write, notify])
    except MultiFailedError:
        raise NotDoneError(f"the settings of {topic} have been changed meanwhile; nothing was changed") from None
