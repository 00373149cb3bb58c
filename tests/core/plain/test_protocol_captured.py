"""Recorded responses of brokers of each version, byte for byte, to every version of every request that both support.

`captured_responses.json` holds requests and responses, recorded once, of brokers with id 1 that listen on 127.0.0.1: a
topic `captured` with one partition (a record, and from 1.1.1 on an aborted transaction), and the offset 42 of `group`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.brokers.protocol.cluster_state import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.error_codes import NONE, UNKNOWN_TOPIC_OR_PARTITION
from kzconsumer.brokers.protocol.groups import (
    CoordinatorOffset,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.log_reads import (
    LATEST,
    READ_COMMITTED,
    FetchPosition,
    FetchRequest,
    ListedOffset,
    ListOffsetsRequest,
)
from kzconsumer.brokers.protocol.versions import SPOKEN, ApiVersionsRequest
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.records.decode import decode

CAPTURED: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("captured_responses.json").read_text(encoding="utf-8")
)
PARTITION = TopicPartition("captured", 0)
ABSENT = TopicPartition("captured", 7)
ABSENT_TOPIC = TopicPartition("absent", 0)
REQUESTS: dict[str, Any] = {
    "ApiVersions": ApiVersionsRequest(),
    "Fetch": FetchRequest(0, 0, 1 << 20, {PARTITION: FetchPosition(0, 1 << 20)}, READ_COMMITTED),
    "ListOffsets": ListOffsetsRequest({PARTITION: LATEST}, READ_COMMITTED),
    "Metadata": MetadataRequest(("captured",)),
    "FindCoordinator": FindCoordinatorRequest("group"),
    "OffsetCommit": OffsetCommitRequest("group", {PARTITION: 42, ABSENT: 1}),
    "OffsetFetch": OffsetFetchRequest("group", (PARTITION, ABSENT_TOPIC)),
}
WITHOUT_TRANSACTIONS = {"0.8.2.2", "0.10.2.2"}


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("broker", CAPTURED)
def test_recorded_responses_are_decoded(broker: str, api: str) -> None:
    versions = [
        (int(version), bytes.fromhex(request), bytes.fromhex(response))
        for name, (request, response) in CAPTURED[broker]["answers"].items()
        for kind, version in [name.split()]
        if kind == api
    ]
    assert versions or (broker, api) == ("0.8.2.2", "ApiVersions")
    for version, request, response in versions:
        assert REQUESTS[api].encode(version) == request, version
        check(broker, api, version, REQUESTS[api].decode(version, memoryview(response)))


def check(broker: str, api: str, version: int, answer: Any) -> None:
    where = Broker(1, "127.0.0.1", CAPTURED[broker]["port"])
    end = 1 if broker in WITHOUT_TRANSACTIONS else 3
    if api == "Fetch":
        check_fetched(broker, version, answer)
    elif api == "ApiVersions":
        for name in REQUESTS:
            spoken = [int(each.split()[1]) for each in CAPTURED[broker]["answers"] if each.split()[0] == name]
            key = REQUESTS[name].api_key
            assert max(spoken) == min(answer.versions.ranges[key][1], SPOKEN[key].newest)
    elif api == "ListOffsets":
        assert answer == {PARTITION: ListedOffset(NONE, end, -1, 0 if version >= 4 else -1)}
    elif api == "Metadata":
        leader = PartitionMetadata(NONE, 1, 0 if version >= 7 else -1)
        captured = answer.topics["captured"]
        assert len(captured.id) == (22 if version >= 10 else 0)
        topics = {"captured": TopicMetadata(NONE, {0: leader}, captured.id)}
        known = Broker(1, where.host, where.port, answer.cluster_id or "")
        assert answer == MetadataResponse({1: known}, topics, answer.cluster_id)
        assert bool(answer.cluster_id) == (version >= 2)
    elif api == "FindCoordinator":
        assert (answer.error, answer.broker) == (NONE, where)
        assert answer.message in (None, "", "NONE")
    elif api == "OffsetCommit":
        # Older brokers do not check whether the partition exists.
        assert answer == {PARTITION: NONE, ABSENT: UNKNOWN_TOPIC_OR_PARTITION if broker in ("2.8.2", "3.9.1") else NONE}
    else:
        unknown = version == 0 or broker == "0.8.2.2"
        absent = CoordinatorOffset(UNKNOWN_TOPIC_OR_PARTITION if unknown else NONE, -1)
        assert answer == StoredOffsets(NONE, {PARTITION: CoordinatorOffset(NONE, 42), ABSENT_TOPIC: absent})


def check_fetched(broker: str, version: int, answer: Any) -> None:
    (part,) = answer.partitions
    end = 1 if broker in WITHOUT_TRANSACTIONS else 3
    assert (part.topic_partition, part.error, part.high_watermark) == (PARTITION, NONE, end)
    assert part.last_stable_offset == (end if version >= 4 else -1)
    assert part.log_start_offset == (0 if version >= 5 else -1)
    assert part.aborted == (((0, 1),) if version >= 4 else ())
    decoded = decode(part.records, topic="captured", partition=0, start=0, aborted=part.aborted)
    assert decoded.corrupt is None
    values = decoded.records.columns().column("value").to_pylist()
    # For requests before version 4 brokers send older formats, without markers, including aborted records.
    assert values == ([b"value", b"gone"] if version < 4 and end == 3 else [b"value"])
    assert decoded.epochs == ((0, 0 if version >= 4 and end == 3 else -1),)
    # The marker is in the log's next segment, since its time is years after the records'.
    assert decoded.next_offset == (1 if end == 1 else 2)
