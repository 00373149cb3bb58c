"""The requests about groups and stored offsets against kio's, byte for byte, and our reading of kio's responses."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from kzconsumer.brokers.protocol.groups import (
    Coordinator,
    CoordinatorOffset,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.versions import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from kzconsumer.errors import ProtocolError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.coordinator import ALL_FROM
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


def by_topic(wanted: list[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for each in wanted:
        topics.setdefault(each.topic, []).append(each)
    return topics


@pytest.mark.parametrize("version", versions_of(FIND_COORDINATOR))
@FEW
@given(group=names)
def test_find_coordinator_request(version: int, group: str) -> None:
    kio = schema("find_coordinator", version, "request")
    expected = make(kio.FindCoordinatorRequest, key=group, key_type=0, coordinator_keys=(group,))
    assert FindCoordinatorRequest(group).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(FIND_COORDINATOR))
@FEW
@given(group=names, broker=st.builds(Broker, int32s, names, int32s), error=errors, message=st.none() | names)
def test_find_coordinator_response(version: int, group: str, broker: Broker, error: int, message: str | None) -> None:
    kio = schema("find_coordinator", version, "response")
    values = {
        "key": group,
        "node_id": broker.id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode(error),
        "error_message": message,
    }
    coordinators = (make(kio.Coordinator, **values),) if version >= 4 else ()
    body = written(make(kio.FindCoordinatorResponse, throttle_time=ZERO, coordinators=coordinators, **values))
    read = FindCoordinatorRequest(group).decode(version, memoryview(body))
    assert read == Coordinator(error, broker, message if version >= 1 else None)
    if version >= 4:
        with pytest.raises(ProtocolError, match="no coordinator of group"):
            FindCoordinatorRequest(group + "-other").decode(version, memoryview(body))


@pytest.mark.parametrize("version", versions_of(OFFSET_COMMIT))
@FEW
@given(group=names, committed=st.dictionaries(partitions, st.tuples(int64s, names, st.none() | int32s), max_size=10))
def test_offset_commit_request(
    version: int, group: str, committed: dict[TopicPartition, tuple[int, str, int | None]]
) -> None:
    kio = schema("offset_commit", version, "request")
    expected = make(
        kio.OffsetCommitRequest,
        group_id=group,
        generation_id_or_member_epoch=-1,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        retention_time=datetime.timedelta(milliseconds=-1),
        topics=tuple(
            make(
                kio.OffsetCommitRequestTopic,
                name=topic,
                partitions=tuple(
                    make(
                        kio.OffsetCommitRequestPartition,
                        partition_index=each.partition,
                        committed_offset=committed[each][0],
                        committed_leader_epoch=-1 if (epoch := committed[each][2]) is None else epoch,
                        commit_timestamp=-1,
                        committed_metadata=committed[each][1],
                    )
                    for each in run
                ),
            )
            for topic, run in by_topic(list(committed)).items()
        ),
    )
    offsets = {where: offset for where, (offset, *_) in committed.items()}
    metadata = {where: text for where, (_, text, _) in committed.items() if text}
    epochs = {where: epoch for where, (*_, epoch) in committed.items() if epoch is not None}
    assert OffsetCommitRequest(group, offsets, metadata, epochs).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(OFFSET_COMMIT))
@FEW
@given(answers=st.dictionaries(partitions, errors, max_size=10))
def test_offset_commit_response(version: int, answers: dict[TopicPartition, int]) -> None:
    kio = schema("offset_commit", version, "response")
    response = make(
        kio.OffsetCommitResponse,
        throttle_time=ZERO,
        topics=tuple(
            kio.OffsetCommitResponseTopic(
                name=topic,
                partitions=tuple(
                    kio.OffsetCommitResponsePartition(
                        partition_index=each.partition, error_code=ErrorCode(answers[each])
                    )
                    for each in run
                ),
            )
            for topic, run in by_topic(list(answers)).items()
        ),
    )
    assert OffsetCommitRequest("g", {}).decode(version, memoryview(written(response))) == answers


@pytest.mark.parametrize("version", versions_of(OFFSET_FETCH))
@FEW
@given(group=names, wanted=st.lists(partitions, max_size=10, unique=True))
def test_offset_fetch_request(version: int, group: str, wanted: list[TopicPartition]) -> None:
    kio = schema("offset_fetch", version, "request")
    expected = make(
        kio.OffsetFetchRequest,
        group_id=group,
        topics=tuple(
            kio.OffsetFetchRequestTopic(name=topic, partition_indexes=tuple(each.partition for each in run))
            for topic, run in by_topic(wanted).items()
        ),
        require_stable=False,
    )
    assert OffsetFetchRequest(group, wanted).encode(version) == written(expected)


@pytest.mark.parametrize("version", [version for version in versions_of(OFFSET_FETCH) if version >= ALL_FROM])
def test_offset_fetch_request_for_all(version: int) -> None:
    kio = schema("offset_fetch", version, "request")
    expected = make(kio.OffsetFetchRequest, group_id="g", topics=None, require_stable=False)
    assert OffsetFetchRequest("g", None).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(OFFSET_FETCH))
@FEW
@given(
    error=errors,
    stored=st.dictionaries(partitions, st.tuples(errors, int64s, int32s, st.none() | names), max_size=10),
)
def test_offset_fetch_response(
    version: int, error: int, stored: dict[TopicPartition, tuple[int, int, int, str | None]]
) -> None:
    kio = schema("offset_fetch", version, "response")
    response = make(
        kio.OffsetFetchResponse,
        throttle_time=ZERO,
        error_code=ErrorCode(error),
        topics=tuple(
            kio.OffsetFetchResponseTopic(
                name=topic,
                partitions=tuple(
                    make(
                        kio.OffsetFetchResponsePartition,
                        partition_index=each.partition,
                        committed_offset=stored[each][1],
                        committed_leader_epoch=stored[each][2],
                        metadata=stored[each][3],
                        error_code=ErrorCode(stored[each][0]),
                    )
                    for each in run
                ),
            )
            for topic, run in by_topic(list(stored)).items()
        ),
    )
    assert OffsetFetchRequest("g", ()).decode(version, memoryview(written(response))) == StoredOffsets(
        error if version >= 2 else 0,
        {
            where: CoordinatorOffset(code, offset, text or "", epoch if version >= 5 else -1)
            for where, (code, offset, epoch, text) in stored.items()
        },
    )
