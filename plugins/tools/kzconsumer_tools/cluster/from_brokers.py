"""The cluster and its topics as brokers report them, where it has no ZooKeeper. What they do not report is None."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from kzconsumer.brokers.protocol.cluster_state import (
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    Reassignments,
    TopicConfig,
)
from kzconsumer.brokers.protocol.error_codes import NOT_CONTROLLER, UNKNOWN_TOPIC_OR_PARTITION, broker_error
from kzconsumer.brokers.protocol.metadata import PartitionMetadata, TopicMetadata
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.cluster_metadata import ClusterMetadata, existing
from kzconsumer_tools.cluster.description import (
    BrokerShown,
    ClusterDescription,
    ListenerShown,
    PartitionShown,
    TopicDescription,
    Unreadable,
)
from kzconsumer_tools.cluster.nodes import NO_LEADER, ControllerNode
from kzconsumer_tools.cluster.reader import no_topic

# The settings of a topic take some kilobytes.
TOPICS_PER_REQUEST = 200
REASSIGNMENTS = "reassignments"
CONTROLLER = "controller"


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
            unreadable = (*unreadable, Unreadable(CONTROLLER, str(broker_error(quorum.error))))
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
    return [_topic(name, described[name], configs.get(name), moving, unreadable) for name in names]


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


def _topic(
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
            leader_epoch=about.leader_epoch if about.leader_epoch >= 0 else None,
            controller_epoch=None,
            replicas=about.replicas,
            isr=about.isr,
            adding=None if moving is None else () if change is None else change.adding,
            removing=None if moving is None else () if change is None else change.removing,
        )
