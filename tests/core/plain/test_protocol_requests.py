"""Our requests against kio's, byte for byte, at every version we speak. `tests/fuzz/responses.py` has the responses."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from kzconsumer.brokers.protocol.cluster_state import (
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_LOCAL_VERSION,
    LATEST,
    AskedEpoch,
    FetchPosition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.primitives import request_frame, response_body
from kzconsumer.brokers.protocol.versions import (
    API_VERSIONS,
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_QUORUM,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    SPOKEN,
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    is_flexible,
)
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.coordinator import ALL_FROM
from tests.support.extent import extent

int8s = st.integers(0, 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
millis = st.integers(0, 2**31 - 1)
FEW = settings(max_examples=extent(15, 1000))
"""Of each version: a field that is written as another differs in nearly all of them."""
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
partitions = st.builds(TopicPartition, names, int32s)
POSITIONS = st.builds(FetchPosition, int64s, int32s, int32s, int32s)
byte_strings = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=140))


APIS = {
    API_VERSIONS: "api_versions",
    FETCH: "fetch",
    METADATA: "metadata",
    LIST_OFFSETS: "list_offsets",
    OFFSET_FOR_LEADER_EPOCH: "offset_for_leader_epoch",
    FIND_COORDINATOR: "find_coordinator",
    OFFSET_COMMIT: "offset_commit",
    OFFSET_FETCH: "offset_fetch",
    DESCRIBE_GROUPS: "describe_groups",
    LIST_GROUPS: "list_groups",
    DESCRIBE_CONFIGS: "describe_configs",
    LIST_PARTITION_REASSIGNMENTS: "list_partition_reassignments",
    DESCRIBE_QUORUM: "describe_quorum",
    CONSUMER_GROUP_DESCRIBE: "consumer_group_describe",
    SASL_HANDSHAKE: "sasl_handshake",
    SASL_AUTHENTICATE: "sasl_authenticate",
}


def versions_of(api_key: int) -> list[int]:
    return list(range(SPOKEN[api_key].oldest, SPOKEN[api_key].newest + 1))


def schema(api_key: int, version: int, side: str = "request") -> Any:
    return importlib.import_module(f"kio.schema.{APIS[api_key]}.v{version}.{side}")


def make(kind: Any, **values: object) -> Any:
    """A kio entity from those of `values` that exist at its version."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def by_kio(api_key: int, version: int, **values: object) -> bytes:
    """The request as kio writes it."""
    return written(make(getattr(schema(api_key, version), f"{SPOKEN[api_key].name}Request"), **values))


def by_topic(
    wanted: Iterable[TopicPartition], of_topic: Callable[[str, tuple[Any, ...]], Any], of_one: Callable[..., Any]
) -> tuple[Any, ...]:
    """What `of_topic` makes of each topic and of what `of_one` makes of its partitions, in the order of `wanted`."""
    topics: dict[str, list[TopicPartition]] = {}
    for each in wanted:
        topics.setdefault(each.topic, []).append(each)
    return tuple(of_topic(topic, tuple(map(of_one, parts))) for topic, parts in topics.items())


@pytest.mark.parametrize("version", versions_of(FETCH))
@FEW
@given(data=st.data())
def test_fetch_request(version: int, data: st.DataObject) -> None:
    positions = data.draw(st.dictionaries(partitions, POSITIONS, max_size=20))
    wait, least, most, isolation = (data.draw(kind) for kind in (millis, int32s, int32s, int8s))
    rack = data.draw(names)
    session = (data.draw(int32s), data.draw(int32s))
    forgotten = data.draw(st.lists(partitions, unique=True, max_size=6).map(sorted))
    kio = schema(FETCH, version)
    forgets = getattr(kio, "ForgottenTopic", None)

    def fetched(each: TopicPartition) -> Any:
        return make(
            kio.FetchPartition,
            partition=each.partition,
            fetch_offset=positions[each].offset,
            partition_max_bytes=positions[each].max_bytes,
            current_leader_epoch=positions[each].leader_epoch,
            last_fetched_epoch=positions[each].fetched_epoch,
        )

    expected = by_kio(
        FETCH,
        version,
        replica_id=-1,
        max_wait=datetime.timedelta(milliseconds=wait),
        min_bytes=least,
        max_bytes=most,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=tuple(
            kio.FetchTopic(topic=topic, partitions=tuple(map(fetched, run)))
            for topic, run in groupby(positions, key=lambda each: each.topic)
        ),
        forgotten_topics_data=tuple(
            forgets and forgets(topic=topic, partitions=tuple(each.partition for each in run))
            for topic, run in groupby(forgotten, key=lambda each: each.topic)
        ),
        rack_id=rack,
    )
    request = FetchRequest(wait, least, most, positions, isolation, rack, *session, forgotten)
    assert request.encode(version) == expected


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS))
@FEW
@given(times=st.dictionaries(partitions, int64s, max_size=10), isolation=int8s, data=st.data())
def test_list_offsets_request(
    version: int, times: dict[TopicPartition, int], isolation: int, data: st.DataObject
) -> None:
    epochs = {where: epoch for where in times if (epoch := data.draw(st.none() | int32s)) is not None}
    kio = schema(LIST_OFFSETS, version)
    topics = by_topic(
        times,
        lambda topic, parts: kio.ListOffsetsTopic(name=topic, partitions=parts),
        lambda each: make(
            kio.ListOffsetsPartition,
            partition_index=each.partition,
            timestamp=times[each],
            current_leader_epoch=epochs.get(each, -1),
        ),
    )
    expected = by_kio(LIST_OFFSETS, version, replica_id=-1, isolation_level=isolation, topics=topics)
    assert ListOffsetsRequest(times, isolation, epochs).encode(version) == expected


def test_places_of_a_log_have_kafkas_timestamps() -> None:
    """`ListOffsetsRequest` of Kafka 3.9; kio has no names for them."""
    assert (LATEST, EARLIEST, EARLIEST_LOCAL, EARLIEST_LOCAL_VERSION) == (-1, -2, -4, 8)


@pytest.mark.parametrize("version", versions_of(OFFSET_FOR_LEADER_EPOCH))
@FEW
@given(wanted=st.dictionaries(partitions, st.builds(AskedEpoch, int32s, int32s), max_size=10))
def test_offset_for_leader_epoch_request(version: int, wanted: dict[TopicPartition, AskedEpoch]) -> None:
    kio = schema(OFFSET_FOR_LEADER_EPOCH, version)
    topics = by_topic(
        wanted,
        lambda topic, parts: kio.OffsetForLeaderTopic(topic=topic, partitions=parts),
        lambda each: make(
            kio.OffsetForLeaderPartition,
            partition=each.partition,
            current_leader_epoch=wanted[each].leader_epoch,
            leader_epoch=wanted[each].epoch,
        ),
    )
    expected = by_kio(OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)
    assert OffsetForLeaderEpochRequest(wanted).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(METADATA))
@FEW
@given(topics=st.none() | st.lists(names, max_size=5).map(tuple))
def test_metadata_request(version: int, topics: tuple[str, ...] | None) -> None:
    """Version 0 has no null: an empty list means all topics."""
    kind = schema(METADATA, version).MetadataRequestTopic
    wanted = None if topics is None else tuple(make(kind, name=name, topic_id=None) for name in topics)
    expected = by_kio(
        METADATA,
        version,
        topics=() if wanted is None and version == 0 else wanted,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    assert MetadataRequest(topics).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(DESCRIBE_CONFIGS))
@FEW
@given(topics=st.lists(names, max_size=5).map(tuple))
def test_describe_configs_request(version: int, topics: tuple[str, ...]) -> None:
    kind = schema(DESCRIBE_CONFIGS, version).DescribeConfigsResource
    resources = tuple(kind(resource_type=2, resource_name=topic, configuration_keys=None) for topic in topics)
    assert DescribeConfigsRequest(topics).encode(version) == by_kio(DESCRIBE_CONFIGS, version, resources=resources)


@pytest.mark.parametrize("version", versions_of(LIST_PARTITION_REASSIGNMENTS))
def test_list_partition_reassignments_request(version: int) -> None:
    expected = by_kio(LIST_PARTITION_REASSIGNMENTS, version, topics=None, timeout=datetime.timedelta(seconds=5))
    assert ListPartitionReassignmentsRequest().encode(version) == expected


@pytest.mark.parametrize("version", versions_of(DESCRIBE_QUORUM))
def test_describe_quorum_request(version: int) -> None:
    kio = schema(DESCRIBE_QUORUM, version)
    topic = kio.TopicData(topic_name="__cluster_metadata", partitions=(kio.PartitionData(partition_index=0),))
    assert DescribeQuorumRequest().encode(version) == by_kio(DESCRIBE_QUORUM, version, topics=(topic,))


@pytest.mark.parametrize("version", versions_of(FIND_COORDINATOR))
@FEW
@given(group=names)
def test_find_coordinator_request(version: int, group: str) -> None:
    expected = by_kio(FIND_COORDINATOR, version, key=group, key_type=0, coordinator_keys=(group,))
    assert FindCoordinatorRequest(group).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(OFFSET_COMMIT))
@FEW
@given(group=names, offsets=st.dictionaries(partitions, int64s, max_size=10), data=st.data())
def test_offset_commit_request(
    version: int, group: str, offsets: dict[TopicPartition, int], data: st.DataObject
) -> None:
    metadata = {where: text for where in offsets if (text := data.draw(st.just("") | names))}
    epochs = {where: epoch for where in offsets if (epoch := data.draw(st.none() | int32s)) is not None}
    kio = schema(OFFSET_COMMIT, version)
    expected = by_kio(
        OFFSET_COMMIT,
        version,
        group_id=group,
        generation_id_or_member_epoch=-1,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        retention_time=datetime.timedelta(milliseconds=-1),
        topics=by_topic(
            offsets,
            lambda topic, parts: kio.OffsetCommitRequestTopic(name=topic, partitions=parts),
            lambda each: make(
                kio.OffsetCommitRequestPartition,
                partition_index=each.partition,
                committed_offset=offsets[each],
                committed_leader_epoch=epochs.get(each, -1),
                commit_timestamp=-1,
                committed_metadata=metadata.get(each, ""),
            ),
        ),
    )
    assert OffsetCommitRequest(group, offsets, metadata, epochs).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(OFFSET_FETCH))
@FEW
@given(group=names, wanted=st.none() | st.lists(partitions, max_size=10, unique=True))
def test_offset_fetch_request(version: int, group: str, wanted: list[TopicPartition] | None) -> None:
    """Older versions have no null for all partitions."""
    assume(wanted is not None or version >= ALL_FROM)
    kio = schema(OFFSET_FETCH, version)
    topics = by_topic(
        wanted or (),
        lambda topic, parts: kio.OffsetFetchRequestTopic(name=topic, partition_indexes=parts),
        lambda each: each.partition,
    )
    expected = by_kio(
        OFFSET_FETCH, version, group_id=group, topics=None if wanted is None else topics, require_stable=False
    )
    assert OffsetFetchRequest(group, wanted).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(LIST_GROUPS))
def test_list_groups_request(version: int) -> None:
    assert ListGroupsRequest().encode(version) == by_kio(LIST_GROUPS, version)


@pytest.mark.parametrize("version", versions_of(DESCRIBE_GROUPS))
@FEW
@given(wanted=st.lists(names, max_size=5).map(tuple))
def test_describe_groups_request(version: int, wanted: tuple[str, ...]) -> None:
    expected = by_kio(DESCRIBE_GROUPS, version, groups=wanted, include_authorized_operations=False)
    assert DescribeGroupsRequest(wanted).encode(version) == expected


@pytest.mark.parametrize("version", versions_of(CONSUMER_GROUP_DESCRIBE))
@FEW
@given(wanted=st.lists(names, max_size=5).map(tuple))
def test_consumer_group_describe_request(version: int, wanted: tuple[str, ...]) -> None:
    expected = by_kio(CONSUMER_GROUP_DESCRIBE, version, group_ids=wanted, include_authorized_operations=False)
    assert ConsumerGroupDescribeRequest(wanted).encode(version) == expected


def test_api_versions_request() -> None:
    assert ApiVersionsRequest().encode(0) == by_kio(API_VERSIONS, 0)


@pytest.mark.parametrize("version", versions_of(SASL_HANDSHAKE))
@FEW
@given(mechanism=names)
def test_sasl_handshake_request(version: int, mechanism: str) -> None:
    assert SaslHandshakeRequest(mechanism).encode(version) == by_kio(SASL_HANDSHAKE, version, mechanism=mechanism)


@pytest.mark.parametrize("version", versions_of(SASL_AUTHENTICATE))
@FEW
@given(token=byte_strings)
def test_sasl_authenticate_request(version: int, token: bytes) -> None:
    assert SaslAuthenticateRequest(token).encode(version) == by_kio(SASL_AUTHENTICATE, version, auth_bytes=token)


@pytest.mark.parametrize("api_key", APIS)
@FEW
@given(client=names, body=st.binary(max_size=20), correlation=st.integers(0, 2**31 - 1))
def test_headers(api_key: int, client: str, body: bytes, correlation: int) -> None:
    for version in versions_of(api_key):
        name = SPOKEN[api_key].name
        kind = getattr(schema(api_key, version), f"{name}Request")
        assert kind.__api_key__ == api_key
        flexible = is_flexible(api_key, version)
        assert flexible == kind.__flexible__
        header = make(
            kind.__header_schema__,
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation,
            client_id=client,
        )
        expected = written(header) + body
        frame = request_frame(api_key, version, correlation, client.encode(), body, flexible=flexible)
        assert frame == len(expected).to_bytes(4, "big") + expected

        kind = getattr(schema(api_key, version, "response"), f"{name}Response").__header_schema__
        answer = written(kind(correlation_id=correlation)) + body
        assert response_body(memoryview(answer), correlation, flexible=flexible) == body
