"""Mutated responses of every version of every request, read by the product's decoders and by the oracle.

Each lies directly before inaccessible memory. The decoders raise ProtocolError or agree with the oracle.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from kzconsumer.brokers.protocol.cluster_state import (
    ActiveController,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    MetadataResponse,
    Moving,
    PartitionMetadata,
    Reassignments,
    TopicConfig,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    CoordinatedMember,
    Coordinator,
    CoordinatorOffset,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupListing,
    GroupState,
    ListedGroup,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.log_reads import (
    Diverging,
    EpochEnd,
    FetchedPartition,
    FetchRequest,
    FetchResponse,
    ListedOffset,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kzconsumer.brokers.protocol.primitives import response_body
from kzconsumer.brokers.protocol.versions import (
    SPOKEN,
    ApiVersionsRequest,
    ApiVersionsResponse,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
    Versions,
    is_flexible,
)
from kzconsumer.errors import ProtocolError
from kzconsumer.model import Broker, TopicPartition
from tests.fuzz.guarded_memory import GuardedMemory
from tests.fuzz.mutations import mutate
from tests.fuzz.response_oracle import Bad, Reader, Tree, frame, response, write

CORRELATION = 7
SEEDS_EACH = 12

Decode = Callable[[Any, int, memoryview], Any]


def fetched(tree: Tree) -> FetchResponse:
    parts = [
        FetchedPartition(
            TopicPartition(topic["topic"], part["partition_index"]),
            part["error_code"],
            part["high_watermark"],
            part.get("last_stable_offset", -1),
            part.get("log_start_offset", -1),
            tuple((each["producer_id"], each["first_offset"]) for each in part.get("aborted_transactions", ())),
            part["records"],
            part.get("preferred_read_replica", -1),
            diverging(part.get("diverging_epoch")),
        )
        for topic in tree["responses"]
        for part in topic["partitions"]
    ]
    return FetchResponse(tree.get("error_code", 0), tree.get("throttle_time", 0), parts, tree.get("session_id", 0))


def diverging(tree: Tree | None) -> Diverging | None:
    return Diverging(tree["epoch"], tree["end_offset"]) if tree is not None and tree["end_offset"] >= 0 else None


def listed(tree: Tree) -> dict[TopicPartition, ListedOffset]:
    answer = {}
    for topic in tree["topics"]:
        for part in topic["partitions"]:
            offset, timestamp = part.get("offset"), part.get("timestamp", -1)
            if offset is None:
                offset = (*part["old_style_offsets"], -1)[0]
            where = TopicPartition(topic["name"], part["partition_index"])
            answer[where] = ListedOffset(part["error_code"], offset, timestamp, part.get("leader_epoch", -1))
    return answer


def epoch_ends(tree: Tree) -> dict[TopicPartition, EpochEnd]:
    return {
        TopicPartition(topic["topic"], part["partition"]): EpochEnd(
            part["error_code"], part.get("leader_epoch", -1), part["end_offset"]
        )
        for topic in tree["topics"]
        for part in topic["partitions"]
    }


def as_text(topic_id: int | None) -> str:
    """As Kafka writes an id; zero is none."""
    return base64.urlsafe_b64encode(topic_id.to_bytes(16, "big", signed=True)).decode()[:22] if topic_id else ""


def metadata(tree: Tree) -> MetadataResponse:
    cluster = tree.get("cluster_id") or ""
    return MetadataResponse(
        {each["node_id"]: Broker(each["node_id"], each["host"], each["port"], cluster) for each in tree["brokers"]},
        {
            topic["name"]: TopicMetadata(
                topic["error_code"],
                {
                    part["partition_index"]: PartitionMetadata(
                        part["error_code"],
                        part["leader_id"],
                        part.get("leader_epoch", -1),
                        tuple(part["replica_nodes"]),
                        tuple(part["isr_nodes"]),
                    )
                    for part in topic["partitions"]
                },
                as_text(topic.get("topic_id")),
            )
            for topic in tree["topics"]
        },
        tree.get("cluster_id"),
        {each["node_id"]: each["rack"] for each in tree["brokers"] if each.get("rack") is not None},
    )


def api_versions(tree: Tree) -> ApiVersionsResponse:
    ranges = {each["api_key"]: (each["min_version"], each["max_version"]) for each in tree["api_keys"]}
    return ApiVersionsResponse(tree["error_code"], Versions(ranges))


def coordinator(tree: Tree) -> Coordinator:
    if "coordinators" in tree:
        found = {each["key"]: each for each in tree["coordinators"]}
        if "g" not in found:
            raise Bad
        tree = found["g"]
    broker = Broker(tree["node_id"], tree["host"], tree["port"])
    return Coordinator(tree["error_code"], broker, tree.get("error_message"))


def committed(tree: Tree) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic["name"], part["partition_index"]): part["error_code"]
        for topic in tree["topics"]
        for part in topic["partitions"]
    }


def stored(tree: Tree) -> StoredOffsets:
    offsets = {
        TopicPartition(topic["name"], part["partition_index"]): CoordinatorOffset(
            part["error_code"], part["committed_offset"], part["metadata"] or "", part.get("committed_leader_epoch", -1)
        )
        for topic in tree["topics"]
        for part in topic["partitions"]
    }
    return StoredOffsets(tree.get("error_code", 0), offsets)


def groups_listed(tree: Tree) -> GroupListing:
    groups = [
        ListedGroup(each["group_id"], each["protocol_type"], each.get("group_type", "")) for each in tree["groups"]
    ]
    return GroupListing(tree["error_code"], tuple(groups))


def groups_described(tree: Tree) -> dict[str, GroupState]:
    return {
        each["group_id"]: GroupState(each["error_code"], each["group_state"], tuple(map(member, each["members"])))
        for each in tree["groups"]
    }


def member(tree: Tree) -> CoordinatedMember:
    topics, owned = topics_in(tree["member_metadata"]), partitions_in(tree["member_assignment"])
    return CoordinatedMember(tree["member_id"], tree["client_id"], tree["client_host"], topics, owned)


def topics_in(data: bytes) -> tuple[str, ...]:
    """Nothing if it is malformed."""
    reader = Reader(data, flexible=False)
    try:
        reader.number(2)
        names = [reader.one("string") for _ in range(reader.length(4))]
    except Bad:
        return ()
    return () if None in names else tuple(names)


def partitions_in(data: bytes) -> tuple[TopicPartition, ...]:
    reader = Reader(data, flexible=False)
    found: list[TopicPartition] = []
    try:
        reader.number(2)
        for _ in range(reader.length(4)):
            topic = reader.one("string")
            if topic is None:
                raise Bad
            found += [TopicPartition(topic, reader.number(4)) for _ in range(reader.length(4))]
    except Bad:
        return ()
    return tuple(found)


def newer_groups(tree: Tree) -> dict[str, GroupState]:
    return {
        each["group_id"]: GroupState(each["error_code"], each["group_state"], tuple(map(newer_member, each["members"])))
        for each in tree["groups"]
    }


def newer_member(tree: Tree) -> CoordinatedMember:
    owned = [
        TopicPartition(each["topic_name"], number)
        for each in tree["assignment"]["topic_partitions"]
        for number in each["partitions"]
    ]
    topics = tuple(tree["subscribed_topic_names"])
    return CoordinatedMember(tree["member_id"], tree["client_id"], tree["client_host"], topics, tuple(owned))


def configured(tree: Tree) -> dict[str, TopicConfig]:
    return {
        each["resource_name"]: TopicConfig(
            each["error_code"],
            {entry["name"]: entry["value"] or "" for entry in each["configs"] if entry["config_source"] == 1},
        )
        for each in tree["results"]
    }


def reassigned(tree: Tree) -> Reassignments:
    found = {
        TopicPartition(topic["name"], part["partition_index"]): Moving(
            tuple(part["adding_replicas"]), tuple(part["removing_replicas"])
        )
        for topic in tree["topics"]
        for part in topic["partitions"]
    }
    return Reassignments(tree["error_code"], found)


def quorum(tree: Tree) -> ActiveController:
    found = ActiveController(tree["error_code"], -1, -1)
    for topic in tree["topics"]:
        for part in topic["partitions"]:
            if (topic["topic_name"], part["partition_index"]) == ("__cluster_metadata", 0):
                error = tree["error_code"] or part["error_code"]
                found = ActiveController(error, part["leader_id"], part["leader_epoch"])
    return found


def handshaken(tree: Tree) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(tree["error_code"], tuple(tree["mechanisms"]))


def authenticated(tree: Tree) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        tree["error_code"], tree["error_message"] or "", tree["auth_bytes"], tree.get("session_lifetime", 0)
    )


class Api(NamedTuple):
    name: str
    request: Any
    meaning: Callable[[Tree], Any]
    """The expected result of the decoder for what the oracle read."""


APIS = (
    Api("fetch", FetchRequest(0, 0, 0, {}), fetched),
    Api("list_offsets", ListOffsetsRequest({}), listed),
    Api("offset_for_leader_epoch", OffsetForLeaderEpochRequest({}), epoch_ends),
    Api("metadata", MetadataRequest(None, replicas=True), metadata),
    Api("api_versions", ApiVersionsRequest(), api_versions),
    Api("find_coordinator", FindCoordinatorRequest("g"), coordinator),
    Api("offset_commit", OffsetCommitRequest("g", {}), committed),
    Api("offset_fetch", OffsetFetchRequest("g", ()), stored),
    Api("list_groups", ListGroupsRequest(), groups_listed),
    Api("describe_groups", DescribeGroupsRequest(()), groups_described),
    Api("consumer_group_describe", ConsumerGroupDescribeRequest(()), newer_groups),
    Api("describe_configs", DescribeConfigsRequest(()), configured),
    Api("list_partition_reassignments", ListPartitionReassignmentsRequest(), reassigned),
    Api("describe_quorum", DescribeQuorumRequest(), quorum),
    Api("sasl_handshake", SaslHandshakeRequest("PLAIN"), handshaken),
    Api("sasl_authenticate", SaslAuthenticateRequest(b""), authenticated),
)


class Seed(NamedTuple):
    api: Api
    version: int
    flexible: bool
    data: bytes


@cache
def seeds() -> tuple[Seed, ...]:
    """Valid responses: a few random ones for each version of each request."""
    rng = random.Random(1)
    made = []
    for api in APIS:
        spoken = SPOKEN[api.request.api_key]
        for version in range(spoken.oldest, spoken.newest + 1):
            flexible = is_flexible(api.request.api_key, version)
            for _ in range(SEEDS_EACH):
                body = write(response(api.name, version), rng, flexible=flexible)
                made.append(Seed(api, version, flexible, frame(body, CORRELATION, flexible=flexible)))
    return tuple(made)


def decode(request: Any, version: int, data: memoryview) -> Any:
    """As a connection decodes it."""
    flexible = is_flexible(request.api_key, version)
    return request.decode(version, response_body(data, CORRELATION, flexible=flexible))


def reference(seed: Seed, data: bytes) -> tuple[Any, bool]:
    """The expected result of the decoder, and whether it may reject the bytes nevertheless. Raises Bad if it must."""
    reader = Reader(data, flexible=seed.flexible)
    if reader.number(4) != CORRELATION:
        raise Bad
    reader.tags()
    tree = reader.structure(response(seed.api.name, seed.version))
    if reader.data:
        raise Bad
    return seed.api.meaning(tree), reader.odd


def difference(decoder: Decode, seed: Seed, data: bytes, placed: memoryview, kinds: Counter[str]) -> str | None:
    """The fault in the decoder's result."""
    wanted: Any = None
    may_refuse = bad = False
    try:
        wanted, may_refuse = reference(seed, data)
    except Bad:
        bad = True
    kinds["refused" if bad else "read"] += 1
    try:
        got = decoder(seed.api.request, seed.version, placed)
    except ProtocolError as error:
        return None if bad or may_refuse else f"refused: {error}"
    except Exception as error:
        return f"raised {error!r}"
    if bad:
        return f"read what is none: {got}"
    return None if got == wanted else f"{got} instead of {wanted}"


def differences(decoder: Decode, cases: int, seed: int) -> tuple[list[str], Counter[str]]:
    """Cases in which the decoder differs from the oracle, and how many cases were of which kind."""
    rng = random.Random(seed)
    known = seeds()
    area = GuardedMemory(1 << 16)
    found = []
    kinds: Counter[str] = Counter()
    for case in range(cases):
        if case < len(known):
            good, data = known[case], known[case].data
        else:
            good, data = rng.choice(known), b""
            while len(data) < 4:  # no shorter frame is cut from the stream
                data = mutate(good.data, rng)
        placed = area.put(data, at_end=rng.random() < 0.75).toreadonly()
        wrong = difference(decoder, good, data, placed, kinds)
        if wrong is not None:
            found.append(f"{good.api.name} {good.version}, {data.hex()}: {wrong}")
    return found, kinds
