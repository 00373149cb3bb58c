"""Reads the cluster's nodes: brokers, controller, pending requests, topics. Results include unreadable nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kzconsumer.errors import NoNodeError, NotFoundError
from kzconsumer.registry import paths
from kzconsumer.registry.nodes import decode_cluster_id
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.tables import nearest
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.cluster.description import (
    ClusterDescription,
    TopicDescription,
    Unreadable,
    cluster_description,
    topic_description,
)
from kzconsumer_tools.cluster.nodes import (
    ControllerNode,
    decode_assignment,
    decode_broker,
    decode_config,
    decode_controller,
    decode_epoch,
    decode_partition_counts,
    decode_requested,
    decode_state,
)
from kzconsumer_tools.paths import (
    BROKERS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    DELETE_TOPICS,
    PREFERRED_ELECTION,
    REASSIGN_PARTITIONS,
    partition_state,
    topic_config,
)

T = TypeVar("T")


class _Reader:
    """Reads on one session, and collects unreadable nodes."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self._session = session
        self.unreadable: list[Unreadable] = []

    async def value(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """None if the node does not exist, is empty or cannot be read."""
        node = await self._session.find(path)
        if node is None or not node.data:
            return None
        try:
            return decode(node.data)
        except ValueError as error:
            self.unreadable.append(Unreadable(path, str(error)))
            return None

    async def values(self, wanted: Iterable[tuple[str, str]], decode: Callable[[bytes], T]) -> dict[str, T]:
        """name -> value of the (name, path) pairs that can be read."""
        pairs = list(wanted)
        found = await together([self.value(path, decode) for _, path in pairs])
        return {name: value for (name, _), value in zip(pairs, found, strict=True) if value is not None}

    async def children(self, path: str) -> list[str]:
        try:
            return await self._session.children(path)
        except NoNodeError:
            return []

    async def numbers(self, path: str) -> list[str]:
        return [name for name in await self.children(path) if paths.is_number(name)]


async def cluster_of(session: ZooKeeperSession) -> ClusterDescription:
    reader = _Reader(session)
    ids = await reader.numbers(paths.BROKER_IDS)
    topics = await reader.children(paths.BROKER_TOPICS)
    brokers = await reader.values(((each, paths.broker(each)) for each in ids), decode_broker)
    return cluster_description(
        cluster_id=await reader.value(paths.CLUSTER_ID, decode_cluster_id),
        controller=await reader.value(CONTROLLER, decode_controller),
        epoch=await reader.value(CONTROLLER_EPOCH, decode_epoch),
        brokers={int(number): node for number, node in brokers.items()},
        topics=len(topics),
        deleting=await reader.children(DELETE_TOPICS),
        reassigning=list(await reader.value(REASSIGN_PARTITIONS, decode_requested) or ()),
        electing=list(await reader.value(PREFERRED_ELECTION, decode_requested) or ()),
        unreadable=reader.unreadable,
    )


async def controller_of(session: ZooKeeperSession) -> ControllerNode | None:
    return await _Reader(session).value(CONTROLLER, decode_controller)


def no_topic(name: str, there: Iterable[str]) -> NotFoundError:
    close = nearest(name, there)
    hint = f"did you mean {close}?" if close else "`kzconsumer topics list` lists the topics"
    return NotFoundError(f"there is no topic {name}; {hint}")


async def topics_of(session: ZooKeeperSession, wanted: Iterable[str] | None) -> list[TopicDescription]:
    """The named topics, each once (None: all). Raises NotFoundError for a topic that does not exist."""
    there = await _Reader(session).children(paths.BROKER_TOPICS)
    names = there if wanted is None else list(dict.fromkeys(wanted))
    for name in names:
        if name not in there:
            raise no_topic(name, there)
    deleting = set(await _Reader(session).children(DELETE_TOPICS))
    return await together([_topic(session, name, name in deleting) for name in names])


async def owning_groups(session: ZooKeeperSession, topics: Iterable[str]) -> dict[str, list[str]]:
    """Topic -> groups with owner nodes of it."""
    reader = _Reader(session)
    pairs = [(topic, group) for group in await reader.children(paths.CONSUMERS) for topic in topics]
    owners = await together([reader.children(f"{GroupPaths(group).owners}/{topic}") for topic, group in pairs])
    found: dict[str, list[str]] = {}
    for (topic, group), partitions in zip(pairs, owners, strict=True):
        if partitions:
            found.setdefault(topic, []).append(group)
    return found


async def reassigning_of(session: ZooKeeperSession) -> set[str] | None:
    """The partitions of the pending request (None: no request); the controller removes those that are done."""
    return await _asked(session, REASSIGN_PARTITIONS)


async def electing_of(session: ZooKeeperSession) -> set[str] | None:
    return await _asked(session, PREFERRED_ELECTION)


async def deleting_of(session: ZooKeeperSession) -> set[str]:
    return set(await _Reader(session).children(DELETE_TOPICS))


async def _asked(session: ZooKeeperSession, path: str) -> set[str] | None:
    found = await _Reader(session).value(path, decode_requested)
    return {f"{topic}-{number}" for topic, number in found} if found is not None else None


async def _topic(session: ZooKeeperSession, name: str, deleting: bool) -> TopicDescription:
    reader = _Reader(session)
    path = paths.topic(name)
    assignment = await reader.value(path, decode_assignment)
    config = await reader.value(topic_config(name), decode_config) or {}
    states = {}
    counts: dict[int, int] = {}
    if assignment is not None:
        wanted = ((str(n), partition_state(name, n)) for n in assignment.replicas)
        states = {int(n): state for n, state in (await reader.values(wanted, decode_state)).items()}
    elif not reader.unreadable:
        counts = await _counts_of_0_7(reader, path)
    return topic_description(name, assignment, states, config, deleting, counts, reader.unreadable)


async def _counts_of_0_7(reader: _Reader, path: str) -> dict[int, int]:
    brokers = await reader.numbers(path)
    data = await reader.values(((each, f"{path}/{each}") for each in brokers), bytes)
    try:
        return decode_partition_counts(data)
    except ValueError as error:
        reader.unreadable.append(Unreadable(path, str(error)))
        return {}


async def require_cluster(session: ZooKeeperSession, connect: str) -> None:
    """Raises NotFoundError if there is no cluster."""
    if await session.exists(BROKERS) is None:
        raise NotFoundError(
            f"{connect}: there is no Kafka cluster; is the chroot right? "
            "For one that has left ZooKeeper add --bootstrap kafka1:9092"
        )
