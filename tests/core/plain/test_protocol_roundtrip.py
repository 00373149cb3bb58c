"""Our requests against kio's, byte for byte, and our reading of responses that kio wrote, at every version we speak."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_LOCAL_VERSION,
    LATEST,
    AskedEpoch,
    Diverging,
    EpochEnd,
    FetchedPartition,
    FetchPosition,
    FetchRequest,
    ListedOffset,
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
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    is_flexible,
)
from kzconsumer.model import TopicPartition
from tests.support.extent import extent

ZERO = datetime.timedelta(0)

int8s = st.integers(0, 1)
int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
millis = st.integers(0, 2**31 - 1)
FEW = settings(max_examples=extent(15, 1000))
"""Of each version, since messages take long to make: a field that is read as another differs in nearly all of them."""
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
errors = st.sampled_from(sorted(int(code) for code in ErrorCode))
partitions = st.builds(TopicPartition, names, int32s)
POSITIONS = st.builds(FetchPosition, int64s, int32s, int32s, int32s)
byte_strings = st.one_of(st.binary(max_size=40), st.binary(min_size=120, max_size=140))


APIS = [
    ("fetch", FETCH),
    ("metadata", METADATA),
    ("list_offsets", LIST_OFFSETS),
    ("offset_for_leader_epoch", OFFSET_FOR_LEADER_EPOCH),
    ("find_coordinator", FIND_COORDINATOR),
    ("offset_commit", OFFSET_COMMIT),
    ("offset_fetch", OFFSET_FETCH),
    ("describe_groups", DESCRIBE_GROUPS),
    ("list_groups", LIST_GROUPS),
    ("describe_configs", DESCRIBE_CONFIGS),
    ("list_partition_reassignments", LIST_PARTITION_REASSIGNMENTS),
    ("describe_quorum", DESCRIBE_QUORUM),
    ("consumer_group_describe", CONSUMER_GROUP_DESCRIBE),
    ("sasl_handshake", SASL_HANDSHAKE),
    ("sasl_authenticate", SASL_AUTHENTICATE),
]


def versions_of(api_key: int) -> list[int]:
    return list(range(SPOKEN[api_key].oldest, SPOKEN[api_key].newest + 1))


def schema(api: str, version: int, side: str) -> Any:
    return importlib.import_module(f"kio.schema.{api}.v{version}.{side}")


def make(kind: Any, **values: object) -> Any:
    """A kio entity from those of `values` that exist at its version."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known})


def written(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def ms(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


@pytest.mark.parametrize("version", versions_of(FETCH))
@FEW
@given(data=st.data())
def test_fetch_request(version: int, data: st.DataObject) -> None:
    positions = data.draw(st.dictionaries(partitions, POSITIONS, max_size=20))
    wait, least, most, isolation = (data.draw(kind) for kind in (millis, int32s, int32s, int8s))
    rack = data.draw(names)
    session = (data.draw(int32s), data.draw(int32s))
    forgotten = data.draw(st.lists(partitions, unique=True, max_size=6).map(sorted))
    kio = schema("fetch", version, "request")
    forgets = getattr(kio, "ForgottenTopic", None)
    topics = tuple(
        make(
            kio.FetchTopic,
            topic=topic,
            partitions=tuple(
                make(
                    kio.FetchPartition,
                    partition=each.partition,
                    fetch_offset=positions[each].offset,
                    partition_max_bytes=positions[each].max_bytes,
                    current_leader_epoch=positions[each].leader_epoch,
                    last_fetched_epoch=positions[each].fetched_epoch,
                )
                for each in run
            ),
        )
        for topic, run in groupby(positions, key=lambda each: each.topic)
    )
    expected = make(
        kio.FetchRequest,
        replica_id=-1,
        max_wait=ms(wait),
        min_bytes=least,
        max_bytes=most,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=tuple(
            forgets and forgets(topic=topic, partitions=tuple(each.partition for each in run))
            for topic, run in groupby(forgotten, key=lambda each: each.topic)
        ),
        rack_id=rack,
    )
    request = FetchRequest(wait, least, most, positions, isolation, rack, *session, forgotten)
    assert request.encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(FETCH))
@FEW
@given(data=st.data())
def test_fetch_response(version: int, data: st.DataObject) -> None:
    error, throttle, session = data.draw(errors), data.draw(millis), data.draw(int32s)
    aborted = st.lists(st.tuples(int64s, int64s), max_size=3)
    parts = data.draw(
        st.lists(
            st.tuples(
                partitions, errors, int64s, int64s, int64s, st.none() | aborted, int32s, st.none() | byte_strings
            ),
            max_size=8,
        )
    )
    kio = schema("fetch", version, "response")
    transaction = getattr(kio, "AbortedTransaction", None)
    tagged = {}
    if version >= 12 and data.draw(st.booleans()):
        tagged = {"current_leader": kio.LeaderIdAndEpoch(leader_id=3, leader_epoch=data.draw(int32s))}
    diverging = None
    if version >= 12 and data.draw(st.booleans()):
        diverging = Diverging(data.draw(int32s), data.draw(int64s))
        tagged["diverging_epoch"] = kio.EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
        if diverging.end_offset < 0:
            diverging = None
    response = make(
        kio.FetchResponse,
        throttle_time=ms(throttle),
        error_code=ErrorCode(error),
        session_id=session,
        responses=tuple(
            make(
                kio.FetchableTopicResponse,
                topic=where.topic,
                partitions=(
                    make(
                        kio.PartitionData,
                        partition_index=where.partition,
                        error_code=ErrorCode(code),
                        high_watermark=high,
                        last_stable_offset=stable,
                        log_start_offset=start,
                        aborted_transactions=None
                        if gone is None
                        else tuple(transaction and transaction(producer_id=p, first_offset=f) for p, f in gone),
                        preferred_read_replica=replica,
                        records=records,
                        **tagged,
                    ),
                ),
            )
            for where, code, high, stable, start, gone, replica, records in parts
        ),
    )
    body = written(response)
    read = FetchRequest(0, 0, 0, {}).decode(version, memoryview(body))
    assert read.error == (error if version >= 7 else 0)
    assert read.throttle_ms == (throttle if version >= 1 else 0)
    assert read.session_id == (session if version >= 7 else 0)
    assert read.partitions == [
        FetchedPartition(
            where,
            code,
            high,
            stable if version >= 4 else -1,
            start if version >= 5 else -1,
            tuple(gone or ()) if version >= 4 else (),
            memoryview(records or b""),
            replica if version >= 11 else -1,
            diverging,
        )
        for where, code, high, stable, start, gone, replica, records in parts
    ]
    assert all(part.records.obj is body for part in read.partitions)


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS))
@FEW
@given(wanted=st.dictionaries(partitions, st.tuples(int64s, st.none() | int32s), max_size=10), isolation=int8s)
def test_list_offsets_request(
    version: int, wanted: dict[TopicPartition, tuple[int, int | None]], isolation: int
) -> None:
    kio = schema("list_offsets", version, "request")
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    for (topic, partition), (timestamp, epoch) in wanted.items():
        by_topic.setdefault(topic, []).append((partition, timestamp, -1 if epoch is None else epoch))
    expected = make(
        kio.ListOffsetsRequest,
        replica_id=-1,
        isolation_level=isolation,
        topics=tuple(
            kio.ListOffsetsTopic(
                name=topic,
                partitions=tuple(
                    make(kio.ListOffsetsPartition, partition_index=p, timestamp=t, current_leader_epoch=epoch)
                    for p, t, epoch in parts
                ),
            )
            for topic, parts in by_topic.items()
        ),
    )
    times = {partition: timestamp for partition, (timestamp, _) in wanted.items()}
    epochs = {partition: epoch for partition, (_, epoch) in wanted.items() if epoch is not None}
    assert ListOffsetsRequest(times, isolation, epochs).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(LIST_OFFSETS))
@FEW
@given(listed=st.dictionaries(partitions, st.tuples(errors, int64s, int64s, int32s), max_size=6), more=st.booleans())
def test_list_offsets_response(
    version: int, listed: dict[TopicPartition, tuple[int, int, int, int]], more: bool
) -> None:
    kio = schema("list_offsets", version, "response")
    response = make(
        kio.ListOffsetsResponse,
        throttle_time=ZERO,
        topics=tuple(
            kio.ListOffsetsTopicResponse(
                name=where.topic,
                partitions=(
                    make(
                        kio.ListOffsetsPartitionResponse,
                        partition_index=where.partition,
                        error_code=ErrorCode(code),
                        old_style_offsets=(offset, 0) if more else (),
                        timestamp=timestamp,
                        offset=offset,
                        leader_epoch=epoch,
                    ),
                ),
            )
            for where, (code, offset, timestamp, epoch) in listed.items()
        ),
    )
    read = ListOffsetsRequest({}).decode(version, memoryview(written(response)))
    if version == 0:
        assert read == {w: ListedOffset(code, offset if more else -1, -1) for w, (code, offset, *_) in listed.items()}
    else:
        assert read == {
            where: ListedOffset(code, offset, timestamp, epoch if version >= 4 else -1)
            for where, (code, offset, timestamp, epoch) in listed.items()
        }


def test_places_of_a_log_have_kafkas_timestamps() -> None:
    """`ListOffsetsRequest` of Kafka 3.9; kio has no names for them."""
    assert (LATEST, EARLIEST, EARLIEST_LOCAL, EARLIEST_LOCAL_VERSION) == (-1, -2, -4, 8)


@pytest.mark.parametrize("version", versions_of(OFFSET_FOR_LEADER_EPOCH))
@FEW
@given(wanted=st.dictionaries(partitions, st.builds(AskedEpoch, int32s, int32s), max_size=10))
def test_offset_for_leader_epoch_request(version: int, wanted: dict[TopicPartition, AskedEpoch]) -> None:
    kio = schema("offset_for_leader_epoch", version, "request")
    topics: dict[str, list[TopicPartition]] = {}
    for where in wanted:
        topics.setdefault(where.topic, []).append(where)
    expected = make(
        kio.OffsetForLeaderEpochRequest,
        replica_id=-1,
        topics=tuple(
            kio.OffsetForLeaderTopic(
                topic=topic,
                partitions=tuple(
                    make(
                        kio.OffsetForLeaderPartition,
                        partition=each.partition,
                        current_leader_epoch=wanted[each].leader_epoch,
                        leader_epoch=wanted[each].epoch,
                    )
                    for each in parts
                ),
            )
            for topic, parts in topics.items()
        ),
    )
    assert OffsetForLeaderEpochRequest(wanted).encode(version) == written(expected)


@pytest.mark.parametrize("version", versions_of(OFFSET_FOR_LEADER_EPOCH))
@FEW
@given(ends=st.dictionaries(partitions, st.builds(EpochEnd, errors, int32s, int64s), max_size=6))
def test_offset_for_leader_epoch_response(version: int, ends: dict[TopicPartition, EpochEnd]) -> None:
    kio = schema("offset_for_leader_epoch", version, "response")
    response = make(
        kio.OffsetForLeaderEpochResponse,
        throttle_time=ZERO,
        topics=tuple(
            kio.OffsetForLeaderTopicResult(
                topic=where.topic,
                partitions=(
                    make(
                        kio.EpochEndOffset,
                        error_code=ErrorCode(end.error),
                        partition=where.partition,
                        leader_epoch=end.epoch,
                        end_offset=end.end_offset,
                    ),
                ),
            )
            for where, end in ends.items()
        ),
    )
    read = OffsetForLeaderEpochRequest({}).decode(version, memoryview(written(response)))
    assert read == {
        where: EpochEnd(end.error, end.epoch if version >= 1 else -1, end.end_offset) for where, end in ends.items()
    }


@FEW
@given(error=errors, ranges=st.dictionaries(int16s, st.tuples(int16s, int16s), max_size=10))
def test_api_versions(error: int, ranges: dict[int, tuple[int, int]]) -> None:
    assert ApiVersionsRequest().encode(0) == written(schema("api_versions", 0, "request").ApiVersionsRequest())
    kio = schema("api_versions", 0, "response")
    response = kio.ApiVersionsResponse(
        error_code=ErrorCode(error),
        api_keys=tuple(
            kio.ApiVersion(api_key=key, min_version=low, max_version=high) for key, (low, high) in ranges.items()
        ),
    )
    read = ApiVersionsRequest().decode(0, memoryview(written(response)))
    assert (read.error, read.versions.ranges) == (error, ranges)


@pytest.mark.parametrize("version", versions_of(SASL_HANDSHAKE))
@FEW
@given(mechanism=names, error=errors, mechanisms=st.lists(names, max_size=4).map(tuple))
def test_sasl_handshake(version: int, mechanism: str, error: int, mechanisms: tuple[str, ...]) -> None:
    kio = schema("sasl_handshake", version, "request")
    assert SaslHandshakeRequest(mechanism).encode(version) == written(kio.SaslHandshakeRequest(mechanism=mechanism))
    kio = schema("sasl_handshake", version, "response")
    response = kio.SaslHandshakeResponse(error_code=ErrorCode(error), mechanisms=mechanisms)
    read = SaslHandshakeRequest("PLAIN").decode(version, memoryview(written(response)))
    assert read == SaslHandshakeResponse(error, mechanisms)


@pytest.mark.parametrize("version", versions_of(SASL_AUTHENTICATE))
@FEW
@given(token=byte_strings, error=errors, message=st.none() | names, answer=byte_strings, lifetime=millis)
def test_sasl_authenticate(
    version: int, token: bytes, error: int, message: str | None, answer: bytes, lifetime: int
) -> None:
    kio = schema("sasl_authenticate", version, "request")
    assert SaslAuthenticateRequest(token).encode(version) == written(kio.SaslAuthenticateRequest(auth_bytes=token))
    kio = schema("sasl_authenticate", version, "response")
    response = make(
        kio.SaslAuthenticateResponse,
        error_code=ErrorCode(error),
        error_message=message,
        auth_bytes=answer,
        session_lifetime=ms(lifetime),
    )
    read = SaslAuthenticateRequest(b"").decode(version, memoryview(written(response)))
    assert read == SaslAuthenticateResponse(error, message or "", answer, lifetime if version >= 1 else 0)


@pytest.mark.parametrize(("api", "api_key"), APIS)
@FEW
@given(client=names, body=st.binary(max_size=20), correlation=st.integers(0, 2**31 - 1))
def test_headers(api: str, api_key: int, client: str, body: bytes, correlation: int) -> None:
    for version in versions_of(api_key):
        request = schema(api, version, "request")
        kind = getattr(request, f"{SPOKEN[api_key].name}Request").__header_schema__
        header = make(
            kind,
            request_api_key=api_key,
            request_api_version=version,
            correlation_id=correlation,
            client_id=client,
        )
        expected = written(header) + body
        flexible = is_flexible(api_key, version)
        frame = request_frame(api_key, version, correlation, client.encode(), body, flexible=flexible)
        assert frame == len(expected).to_bytes(4, "big") + expected

        response = schema(api, version, "response")
        kind = getattr(response, f"{SPOKEN[api_key].name}Response").__header_schema__
        answer = written(kind(correlation_id=correlation)) + body
        assert response_body(memoryview(answer), correlation, flexible=flexible) == body


def test_flexible_versions_are_those_of_the_schemas() -> None:
    for api, api_key in APIS:
        for version in versions_of(api_key):
            kind = getattr(schema(api, version, "request"), f"{SPOKEN[api_key].name}Request")
            assert kind.__flexible__ == is_flexible(api_key, version)
            assert kind.__api_key__ == api_key
    assert schema("api_versions", 0, "request").ApiVersionsRequest.__api_key__ == API_VERSIONS


@FEW
@given(positions=st.dictionaries(partitions, POSITIONS, max_size=6))
def test_kio_reads_what_we_write(positions: dict[TopicPartition, FetchPosition]) -> None:
    kio = schema("fetch", 12, "request")
    body = FetchRequest(100, 1, 1000, positions).encode(12)
    read = entity_reader(kio.FetchRequest)(body, 0)[0]
    assert [
        (
            TopicPartition(topic.topic, part.partition),
            FetchPosition(
                part.fetch_offset, part.partition_max_bytes, part.current_leader_epoch, part.last_fetched_epoch
            ),
        )
        for topic in read.topics
        for part in topic.partitions
    ] == list(positions.items())
