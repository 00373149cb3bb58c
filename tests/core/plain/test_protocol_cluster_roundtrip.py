"""The requests about settings, reassignments and controllers against kio's, and our reading of what kio wrote."""

from __future__ import annotations

import datetime

from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol.cluster_state import (
    ActiveController,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    Moving,
    Reassignments,
    TopicConfig,
)
from kzconsumer.model import TopicPartition
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
