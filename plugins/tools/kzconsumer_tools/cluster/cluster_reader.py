"""Reads the cluster: brokers, controller, pending requests, topics, from its nodes or from brokers; submits requests.

Results include unreadable nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import anyio

from kzconsumer.brokers.protocol.cluster_state import (
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    PartitionMetadata,
    Reassignments,
    TopicConfig,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.error_codes import NOT_CONTROLLER, UNKNOWN_TOPIC_OR_PARTITION, broker_error
from kzconsumer.errors import (
    BrokersUnreachableError,
    KzConsumerError,
    MultiFailedError,
    NoNodeError,
    NotDoneError,
    NotFoundError,
)
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import ClusterMetadata, existing
from kzconsumer.registry.cluster import short_session
from kzconsumer.registry.nodes import decode_cluster_id
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.settings.table_reader import nearest
from kzconsumer.zookeeper.operations import Create, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import repeated, together
from kzconsumer_tools.cluster.description import (
    NO_LEADER,
    BrokerShown,
    ClusterDescription,
    ControllerNode,
    ListenerShown,
    PartitionShown,
    TopicDescription,
    Unreadable,
    cluster_description,
    decode_assignment,
    decode_broker,
    decode_config,
    decode_controller,
    decode_epoch,
    decode_partition_counts,
    decode_requested,
    decode_state,
    topic_description,
)
from kzconsumer_tools.cluster.requests import encode_config
from kzconsumer_tools.node_changes import (
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
    registered = set(map(int, await _Reader(session).numbers(paths.BROKER_IDS)))
    return await together([_topic(session, name, name in deleting, registered) for name in names])


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


async def _topic(session: ZooKeeperSession, name: str, deleting: bool, registered: Collection[int]) -> TopicDescription:
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
    return topic_description(name, assignment, states, config, deleting, counts, registered, reader.unreadable)


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


# Where the cluster has no ZooKeeper, brokers report it and its topics. What they do not report is None.

# The settings of a topic take some kilobytes.
TOPICS_PER_REQUEST = 200
REASSIGNMENTS = "reassignments"
QUORUM_CONTROLLER = "controller"


async def cluster_from_brokers(
    metadata: ClusterMetadata, protocol: str, controller: ControllerNode | None
) -> ClusterDescription:
    """`protocol` is that by which brokers are asked. `controller` in ZooKeeper counts if no broker is in KRaft mode."""
    answer = await metadata.ask(None)
    moving, unreadable = await _reassignments(metadata)
    node, epoch, kraft = None, None, None
    try:
        quorum = await metadata.request(DescribeQuorumRequest())
    except BrokersUnreachableError:  # none is in KRaft mode
        if controller is not None:
            node, kraft = controller.broker, controller.kraft
    else:
        kraft = True
        if quorum.error:
            unreadable = (*unreadable, Unreadable(QUORUM_CONTROLLER, str(broker_error(quorum.error))))
        elif quorum.node >= 0:
            node, epoch = quorum.node, quorum.epoch
    return ClusterDescription(
        from_brokers=True,
        cluster_id=answer.cluster_id,
        controller=node,
        controller_since=None,
        controller_epoch=epoch,
        kraft_controller=kraft,
        brokers=tuple(
            BrokerShown(
                number,
                None,
                (ListenerShown(None, protocol, broker.host, broker.port),),
                None,
                answer.racks.get(number),
            )
            for number, broker in sorted(answer.brokers.items())
        ),
        topics=len(existing(answer)),
        deleting=None,
        reassigning=tuple(map(str, sorted(moving.partitions))) if moving is not None else None,
        electing=None,
        unreadable=unreadable,
    )


async def topics_from_brokers(metadata: ClusterMetadata, wanted: Sequence[str] | None) -> list[TopicDescription]:
    """The named topics, each once (None: all).

    Raises NotFoundError for a topic that does not exist, BrokerError for one that brokers refuse to describe,
    BrokersUnreachableError.
    """
    if wanted is None:
        described = existing(await metadata.ask(None, replicas=True))
        names = sorted(described)
    else:
        names = list(dict.fromkeys(wanted))
        described = await metadata.described(names, replicas=True)
        await _require(metadata, [name for name in names if name not in described])
    moving, unreadable = await _reassignments(metadata)
    configs: dict[str, TopicConfig] = {}
    for first in range(0, len(names), TOPICS_PER_REQUEST):
        configs |= await metadata.request(DescribeConfigsRequest(tuple(names[first : first + TOPICS_PER_REQUEST])))
    return [_topic_of_brokers(name, described[name], configs.get(name), moving, unreadable) for name in names]


async def _require(metadata: ClusterMetadata, missing: Sequence[str]) -> None:
    if missing:
        answer = await metadata.ask(tuple(missing))
        for name in missing:
            if name in answer.topics and (error := answer.topics[name].error) not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                raise broker_error(error, name)
        raise no_topic(missing[0], existing(await metadata.ask(None)))


async def _reassignments(metadata: ClusterMetadata) -> tuple[Reassignments | None, tuple[Unreadable, ...]]:
    request = ListPartitionReassignmentsRequest()
    found = await metadata.request(request)
    for broker in metadata.known.values():
        if found.error != NOT_CONTROLLER:  # in KRaft mode every broker forwards the request
            break
        with suppress(KzConsumerError):
            found = await metadata.request(request, broker)
    if found.error:
        return None, (Unreadable(REASSIGNMENTS, str(broker_error(found.error))),)
    return found, ()


def _topic_of_brokers(
    name: str,
    topic: TopicMetadata,
    config: TopicConfig | None,
    moving: Reassignments | None,
    unreadable: tuple[Unreadable, ...],
) -> TopicDescription:
    if config is None or config.error:
        reason = str(broker_error(config.error)) if config is not None else "no answer"
        unreadable = (*unreadable, Unreadable(f"settings of topic {name}", reason))
    return TopicDescription(
        topic=name,
        topic_id=topic.id or None,
        deleting=None,
        config=dict(sorted(config.settings.items())) if config is not None and not config.error else None,
        partitions=tuple(_partitions(name, topic.partitions, moving)),
        brokers_of_0_7={},
        unreadable=unreadable,
    )


def _partitions(
    topic: str, partitions: Mapping[int, PartitionMetadata], moving: Reassignments | None
) -> Iterator[PartitionShown]:
    for number, about in sorted(partitions.items()):
        change = moving.partitions.get(TopicPartition(topic, number)) if moving is not None else None
        yield PartitionShown(
            partition=number,
            leader=about.leader if about.leader != NO_LEADER else None,
            leader_registered=about.leader != NO_LEADER,
            leader_epoch=about.leader_epoch if about.leader_epoch >= 0 else None,
            controller_epoch=None,
            replicas=about.replicas,
            isr=about.isr,
            adding=None if moving is None else () if change is None else change.adding,
            removing=None if moving is None else () if change is None else change.removing,
        )


# Requests to the controller and the brokers are submitted here, and it is waited until the controller has removed them.

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
        raise NotDoneError(f"there is such a request already ({error})") from None


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
