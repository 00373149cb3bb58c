"""Mutated responses of every version of every request, read by the product's decoders and by the oracle.

Each lies directly before inaccessible memory. The decoders raise ProtocolError or agree with the oracle.
"""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from kzconsumer.brokers.protocol.describe_groups import DescribedGroup, DescribeGroupsRequest
from kzconsumer.brokers.protocol.fetch import FetchedPartition, FetchRequest, FetchResponse
from kzconsumer.brokers.protocol.frames import response_body
from kzconsumer.brokers.protocol.group_offsets import (
    Coordinator,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    StoredOffset,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.list_offsets import ListedOffset, ListOffsetsRequest
from kzconsumer.brokers.protocol.metadata import MetadataRequest, MetadataResponse, PartitionMetadata, TopicMetadata
from kzconsumer.brokers.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kzconsumer.brokers.protocol.versions import SPOKEN, ApiVersionsRequest, ApiVersionsResponse, Versions, is_flexible
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
        )
        for topic in tree["responses"]
        for part in topic["partitions"]
    ]
    return FetchResponse(tree.get("error_code", 0), tree.get("throttle_time", 0), parts)


def listed(tree: Tree) -> dict[TopicPartition, ListedOffset]:
    answer = {}
    for topic in tree["topics"]:
        for part in topic["partitions"]:
            offset, timestamp = part.get("offset"), part.get("timestamp", -1)
            if offset is None:
                offset = (*part["old_style_offsets"], -1)[0]
            where = TopicPartition(topic["name"], part["partition_index"])
            answer[where] = ListedOffset(part["error_code"], offset, timestamp)
    return answer


def as_text(topic_id: int | None) -> str:
    """As Kafka writes an id; zero is none."""
    return base64.urlsafe_b64encode(topic_id.to_bytes(16, "big", signed=True)).decode()[:22] if topic_id else ""


def metadata(tree: Tree) -> MetadataResponse:
    return MetadataResponse(
        {each["node_id"]: Broker(each["node_id"], each["host"], each["port"]) for each in tree["brokers"]},
        {
            topic["name"]: TopicMetadata(
                topic["error_code"],
                {
                    part["partition_index"]: PartitionMetadata(
                        part["error_code"], part["leader_id"], part.get("leader_epoch", -1)
                    )
                    for part in topic["partitions"]
                },
                as_text(topic.get("topic_id")),
            )
            for topic in tree["topics"]
        },
        tree.get("cluster_id"),
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


def described(tree: Tree) -> DescribedGroup:
    found = {each["group_id"]: each for each in tree["groups"]}
    if "g" not in found:
        raise Bad
    return DescribedGroup(found["g"]["error_code"], tuple(each["member_id"] for each in found["g"]["members"]))


def committed(tree: Tree) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic["name"], part["partition_index"]): part["error_code"]
        for topic in tree["topics"]
        for part in topic["partitions"]
    }


def stored(tree: Tree) -> StoredOffsets:
    offsets = {
        TopicPartition(topic["name"], part["partition_index"]): StoredOffset(
            part["error_code"], part["committed_offset"], part["metadata"] or ""
        )
        for topic in tree["topics"]
        for part in topic["partitions"]
    }
    return StoredOffsets(tree.get("error_code", 0), offsets)


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
    Api("metadata", MetadataRequest(None), metadata),
    Api("api_versions", ApiVersionsRequest(), api_versions),
    Api("find_coordinator", FindCoordinatorRequest("g"), coordinator),
    Api("describe_groups", DescribeGroupsRequest("g"), described),
    Api("offset_commit", OffsetCommitRequest("g", {}), committed),
    Api("offset_fetch", OffsetFetchRequest("g", ()), stored),
    Api("sasl_handshake", SaslHandshakeRequest("PLAIN"), handshaken),
    Api("sasl_authenticate", SaslAuthenticateRequest(b""), authenticated),
)


class Seed(NamedTuple):
    api: Api
    version: int
    flexible: bool
    data: bytes


def seeds() -> list[Seed]:
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
    return made


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
