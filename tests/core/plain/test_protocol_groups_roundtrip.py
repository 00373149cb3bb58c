"""The requests about groups that brokers coordinate against kio's, and our reading of responses that kio wrote."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    CoordinatedMember,
    DescribeGroupsRequest,
    GroupListing,
    GroupState,
    ListedGroup,
    ListGroupsRequest,
)
from kzconsumer.brokers.protocol.primitives import INT16, INT32, PLAIN
from kzconsumer.brokers.protocol.versions import CONSUMER_GROUP_DESCRIBE, DESCRIBE_GROUPS, LIST_GROUPS
from kzconsumer.model import TopicPartition
from tests.core.plain.test_protocol_offsets_roundtrip import by_topic
from tests.core.plain.test_protocol_roundtrip import (
    FEW,
    ZERO,
    errors,
    int32s,
    make,
    names,
    partitions,
    schema,
    versions_of,
    written,
)

members = st.builds(
    CoordinatedMember,
    names,
    names,
    names,
    st.lists(names, max_size=3).map(tuple),
    st.lists(partitions, max_size=6, unique=True).map(lambda found: tuple(sorted(found))),
)
states = st.dictionaries(
    names, st.builds(GroupState, errors, names, st.lists(members, max_size=3).map(tuple)), max_size=3
)


@pytest.mark.parametrize("version", versions_of(LIST_GROUPS))
def test_list_groups_request(version: int) -> None:
    kio = schema("list_groups", version, "request")
    assert ListGroupsRequest().encode(version) == written(make(kio.ListGroupsRequest))


@pytest.mark.parametrize("version", versions_of(LIST_GROUPS))
@FEW
@given(error=errors, groups=st.lists(st.builds(ListedGroup, names, names, names), max_size=5))
def test_list_groups_response(version: int, error: int, groups: list[ListedGroup]) -> None:
    kio = schema("list_groups", version, "response")
    listed = tuple(
        make(
            kio.ListedGroup,
            group_id=each.group,
            protocol_type=each.protocol,
            group_state="Stable",
            group_type=each.kind,
        )
        for each in groups
    )
    body = written(make(kio.ListGroupsResponse, throttle_time=ZERO, error_code=ErrorCode(error), groups=listed))
    expected = [each if version >= 5 else ListedGroup(each.group, each.protocol, "") for each in groups]
    assert ListGroupsRequest().decode(version, memoryview(body)) == GroupListing(error, tuple(expected))


@pytest.mark.parametrize("version", versions_of(DESCRIBE_GROUPS))
@FEW
@given(wanted=st.lists(names, max_size=5))
def test_describe_groups_request(version: int, wanted: list[str]) -> None:
    kio = schema("describe_groups", version, "request")
    expected = make(kio.DescribeGroupsRequest, groups=tuple(wanted), include_authorized_operations=False)
    assert DescribeGroupsRequest(tuple(wanted)).encode(version) == written(expected)


def subscription(member: CoordinatedMember) -> bytes:
    """ConsumerProtocolSubscription of version 1, whose owned partitions we skip."""
    topics = b"".join(map(PLAIN.string, member.topics))
    return INT16.pack(1) + PLAIN.array(len(member.topics)) + topics + INT32.pack(-1) + PLAIN.array(0)


def assignment(member: CoordinatedMember) -> bytes:
    """ConsumerProtocolAssignment of version 0, with user data that we skip."""
    return INT16.pack(0) + PLAIN.by_topic((each, b"") for each in member.partitions) + INT32.pack(2) + b"xy"


def described(version: int, states: dict[str, GroupState], **texts: bytes) -> memoryview:
    kio = schema("describe_groups", version, "response")

    def member(each: CoordinatedMember) -> Any:
        return make(
            kio.DescribedGroupMember,
            member_id=each.id,
            group_instance_id=None,
            client_id=each.client,
            client_host=each.host,
            member_metadata=texts.get("metadata", subscription(each)),
            member_assignment=texts.get("assignment", assignment(each)),
        )

    groups = tuple(
        make(
            kio.DescribedGroup,
            error_code=ErrorCode(state.error),
            group_id=name,
            group_state=state.state,
            protocol_type="consumer",
            protocol_data="range",
            members=tuple(map(member, state.members)),
            authorized_operations=0,
        )
        for name, state in states.items()
    )
    return memoryview(written(make(kio.DescribeGroupsResponse, throttle_time=ZERO, groups=groups)))


@pytest.mark.parametrize("version", versions_of(DESCRIBE_GROUPS))
@FEW
@given(states=states)
def test_describe_groups_response(version: int, states: dict[str, GroupState]) -> None:
    assert DescribeGroupsRequest(()).decode(version, described(version, states)) == states


@pytest.mark.parametrize("version", versions_of(DESCRIBE_GROUPS))
@FEW
@given(metadata=st.binary(max_size=30), owned=st.binary(max_size=30))
def test_what_a_member_says_of_itself_may_be_anything(version: int, metadata: bytes, owned: bytes) -> None:
    """The rest of the response is read all the same."""
    member = CoordinatedMember("m", "c", "/127.0.0.1", (), ())
    state = {"g": GroupState(0, "Stable", (member, member))}
    read = DescribeGroupsRequest(()).decode(version, described(version, state, metadata=metadata, assignment=owned))
    assert [(each.id, each.client, each.host) for each in read["g"].members] == [("m", "c", "/127.0.0.1")] * 2


@pytest.mark.parametrize("version", versions_of(CONSUMER_GROUP_DESCRIBE))
@FEW
@given(wanted=st.lists(names, max_size=5))
def test_consumer_group_describe_request(version: int, wanted: list[str]) -> None:
    kio = schema("consumer_group_describe", version, "request")
    expected = make(kio.ConsumerGroupDescribeRequest, group_ids=tuple(wanted), include_authorized_operations=False)
    assert ConsumerGroupDescribeRequest(tuple(wanted)).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(CONSUMER_GROUP_DESCRIBE))
@FEW
@given(states=states, epoch=int32s)
def test_consumer_group_describe_response(version: int, states: dict[str, GroupState], epoch: int) -> None:
    kio = schema("consumer_group_describe", version, "response")

    def assigned(wanted: tuple[TopicPartition, ...]) -> Any:
        return kio.Assignment(
            topic_partitions=tuple(
                kio.TopicPartitions(
                    topic_id=UUID(int=7), topic_name=topic, partitions=tuple(each.partition for each in run)
                )
                for topic, run in by_topic(list(wanted)).items()
            )
        )

    def member(each: CoordinatedMember) -> Any:
        return make(
            kio.Member,
            member_id=each.id,
            instance_id=None,
            rack_id="r",
            member_epoch=epoch,
            client_id=each.client,
            client_host=each.host,
            subscribed_topic_names=each.topics,
            subscribed_topic_regex=None,
            assignment=assigned(each.partitions),
            target_assignment=assigned((TopicPartition("target", 1),)),
        )

    groups = tuple(
        make(
            kio.DescribedGroup,
            error_code=ErrorCode(state.error),
            error_message=None,
            group_id=name,
            group_state=state.state,
            group_epoch=epoch,
            assignment_epoch=epoch,
            assignor_name="uniform",
            members=tuple(map(member, state.members)),
            authorized_operations=0,
        )
        for name, state in states.items()
    )
    body = written(make(kio.ConsumerGroupDescribeResponse, throttle_time=ZERO, groups=groups))
    assert ConsumerGroupDescribeRequest(()).decode(version, memoryview(body)) == states
