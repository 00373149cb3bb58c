"""Metadata, and requests about settings, reassignments, controllers, against kio, and our reading of what kio wrote."""

from __future__ import annotations

import base64
import datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol.cluster_state import (
    ActiveController,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    Moving,
    PartitionMetadata,
    Reassignments,
    TopicConfig,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.versions import (
    METADATA,
)
from kzconsumer.model import Broker, TopicPartition
from tests.core.plain.test_protocol_roundtrip import (
    FEW,
    ZERO,
    errors,
    int32s,
    int64s,
    make,
    names,
    partitions,
    schema,
    versions_of,
    written,
)

SECOND = datetime.timedelta(seconds=1)

nodes = st.lists(int32s, max_size=4).map(tuple)
settings = st.dictionaries(names, st.tuples(st.none() | names, st.integers(0, 6)), max_size=4)


@FEW
@given(topics=st.lists(names, max_size=5).map(tuple))
def test_describe_configs_request(topics: tuple[str, ...]) -> None:
    kio = schema("describe_configs", 4, "request")
    resources = tuple(
        make(kio.DescribeConfigsResource, resource_type=2, resource_name=topic, configuration_keys=None)
        for topic in topics
    )
    assert DescribeConfigsRequest(topics).encode(4) == written(make(kio.DescribeConfigsRequest, resources=resources))


@FEW
@given(found=st.dictionaries(names, st.tuples(errors, settings), max_size=4), message=st.none() | names)
def test_describe_configs_response(
    found: dict[str, tuple[int, dict[str, tuple[str | None, int]]]], message: str | None
) -> None:
    """Only what is set for the topic itself is its own."""
    kio = schema("describe_configs", 4, "response")
    synonym = make(kio.DescribeConfigsSynonym, name="s", value=message, source=5)
    results = tuple(
        make(
            kio.DescribeConfigsResult,
            error_code=ErrorCode(error),
            error_message=message,
            resource_type=2,
            resource_name=topic,
            configs=tuple(
                make(
                    kio.DescribeConfigsResourceResult,
                    name=name,
                    value=value,
                    read_only=False,
                    config_source=source,
                    is_sensitive=value is None,
                    synonyms=(synonym,) * source,
                    config_type=1,
                    documentation=message,
                )
                for name, (value, source) in entries.items()
            ),
        )
        for topic, (error, entries) in found.items()
    )
    body = written(make(kio.DescribeConfigsResponse, throttle_time=ZERO, results=results))
    assert DescribeConfigsRequest(()).decode(4, memoryview(body)) == {
        topic: TopicConfig(error, {name: value or "" for name, (value, source) in entries.items() if source == 1})
        for topic, (error, entries) in found.items()
    }


def test_list_partition_reassignments_request() -> None:
    kio = schema("list_partition_reassignments", 0, "request")
    expected = make(kio.ListPartitionReassignmentsRequest, topics=None, timeout=5 * SECOND)
    assert ListPartitionReassignmentsRequest().encode(0) == written(expected)


@FEW
@given(
    error=errors,
    message=st.none() | names,
    moving=st.dictionaries(partitions, st.tuples(nodes, nodes, nodes), max_size=5),
)
def test_list_partition_reassignments_response(
    error: int, message: str | None, moving: dict[TopicPartition, tuple[tuple[int, ...], ...]]
) -> None:
    kio = schema("list_partition_reassignments", 0, "response")
    topics = tuple(
        make(
            kio.OngoingTopicReassignment,
            name=at.topic,
            partitions=(
                make(
                    kio.OngoingPartitionReassignment,
                    partition_index=at.partition,
                    replicas=replicas,
                    adding_replicas=adding,
                    removing_replicas=removing,
                ),
            ),
        )
        for at, (replicas, adding, removing) in moving.items()
    )
    response = make(
        kio.ListPartitionReassignmentsResponse,
        throttle_time=ZERO,
        error_code=ErrorCode(error),
        error_message=message,
        topics=topics,
    )
    assert ListPartitionReassignmentsRequest().decode(0, memoryview(written(response))) == Reassignments(
        error, {at: Moving(adding, removing) for at, (_, adding, removing) in moving.items()}
    )


def test_describe_quorum_request() -> None:
    kio = schema("describe_quorum", 0, "request")
    parts = (make(kio.PartitionData, partition_index=0),)
    topics = (make(kio.TopicData, topic_name="__cluster_metadata", partitions=parts),)
    assert DescribeQuorumRequest().encode(0) == written(make(kio.DescribeQuorumRequest, topics=topics))


@FEW
@given(error=errors, of_partition=errors, node=int32s, epoch=int32s, end=int64s, voters=nodes, others=st.booleans())
def test_describe_quorum_response(
    error: int, of_partition: int, node: int, epoch: int, end: int, voters: tuple[int, ...], others: bool
) -> None:
    """A response about other partitions alone names no controller."""
    kio = schema("describe_quorum", 0, "response")
    states = tuple(make(kio.ReplicaState, replica_id=voter, log_end_offset=end) for voter in voters)
    part = make(
        kio.PartitionData,
        partition_index=0,
        error_code=ErrorCode(of_partition),
        leader_id=node,
        leader_epoch=epoch,
        high_watermark=end,
        current_voters=states,
        observers=states[:1],
    )
    topics = (make(kio.TopicData, topic_name="other" if others else "__cluster_metadata", partitions=(part,)),)
    body = written(make(kio.DescribeQuorumResponse, error_code=ErrorCode(error), topics=topics))
    expected = ActiveController(error, -1, -1) if others else ActiveController(error or of_partition, node, epoch)
    assert DescribeQuorumRequest().decode(0, memoryview(body)) == expected


@pytest.mark.parametrize("version", versions_of(METADATA))
@FEW
@given(topics=st.none() | st.lists(names, max_size=5))
def test_metadata_request(version: int, topics: list[str] | None) -> None:
    kio = schema("metadata", version, "request")
    wanted = (
        None if topics is None else tuple(make(kio.MetadataRequestTopic, name=name, topic_id=None) for name in topics)
    )
    expected = make(
        kio.MetadataRequest,
        topics=() if wanted is None and version == 0 else wanted,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert MetadataRequest(None if topics is None else tuple(topics)).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(METADATA))
@FEW
@given(data=st.data())
def test_metadata_response(version: int, data: st.DataObject) -> None:
    brokers = data.draw(st.lists(st.builds(Broker, int32s, names, int32s), max_size=4, unique_by=lambda each: each.id))
    replicas = st.lists(int32s, max_size=3).map(tuple)
    part = st.tuples(errors, int32s, int32s, replicas, replicas, replicas)
    topic = st.tuples(errors, st.none() | st.uuids(), st.dictionaries(int32s, part, max_size=4))
    topics = data.draw(st.dictionaries(names, topic, max_size=4))
    racks = {broker.id: rack for broker in brokers if (rack := data.draw(st.none() | names)) is not None}
    wanted = data.draw(st.booleans())
    cluster = data.draw(st.none() | names)
    kio = schema("metadata", version, "response")
    response = make(
        kio.MetadataResponse,
        throttle_time=ZERO,
        brokers=tuple(
            make(kio.MetadataResponseBroker, node_id=b.id, host=b.host, port=b.port, rack=racks.get(b.id))
            for b in brokers
        ),
        cluster_id=cluster,
        controller_id=data.draw(int32s),
        topics=tuple(
            make(
                kio.MetadataResponseTopic,
                error_code=ErrorCode(error),
                name=name,
                topic_id=identity,
                is_internal=data.draw(st.booleans()),
                partitions=tuple(
                    make(
                        kio.MetadataResponsePartition,
                        error_code=ErrorCode(code),
                        partition_index=index,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=nodes,
                        isr_nodes=isr,
                        offline_replicas=offline,
                    )
                    for index, (code, leader, epoch, nodes, isr, offline) in parts.items()
                ),
            )
            for name, (error, identity, parts) in topics.items()
        ),
    )
    read = MetadataRequest(None, wanted).decode(version, memoryview(written(response)))
    known = (cluster or "") if version >= 2 else ""
    assert read.brokers == {broker.id: Broker(broker.id, broker.host, broker.port, known) for broker in brokers}
    assert read.racks == (racks if version >= 1 else {})
    assert read.topics == {
        name: TopicMetadata(
            error,
            {
                index: PartitionMetadata(
                    code, leader, epoch if version >= 7 else -1, nodes if wanted else (), isr if wanted else ()
                )
                for index, (code, leader, epoch, nodes, isr, _) in parts.items()
            },
            as_kafka_writes(identity) if version >= 10 else "",
        )
        for name, (error, identity, parts) in topics.items()
    }
    assert read.cluster_id == (cluster if version >= 2 else None)
    no_topic = MetadataRequest(()).decode(version, memoryview(written(response)))
    assert (no_topic.topics, no_topic.brokers) == ({}, read.brokers), "also where a broker can only return all"


def as_kafka_writes(topic_id: UUID | None) -> str:
    return (
        base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=") if topic_id is not None and topic_id.int else ""
    )
