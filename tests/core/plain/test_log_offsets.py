"""Offsets of logs, asked of the leaders: every partition has its leader's answer, or the reason why there is none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

import anyio
import pytest

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import Leaders, LogOffsets, local_start, why_unknown
from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.cluster_state import (
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.log_reads import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_LOCAL_VERSION,
    LATEST,
    READ_COMMITTED,
    ListedOffset,
    ListOffsetsRequest,
)
from kzconsumer.brokers.protocol.versions import LIST_OFFSETS, Versions
from kzconsumer.errors import BrokerError, ConnectionLostError, ProtocolError, UnsupportedVersionError
from kzconsumer.model import Broker, TopicPartition
from tests.support.extent import seeds
from tests.support.simulated.virtual_time import in_virtual_time

BROKERS = {number: Broker(number, f"kafka{number}", 9092) for number in (1, 2, 3)}
PARTITIONS = [TopicPartition("t", number) for number in range(6)]
NEWEST = (0, EARLIEST_LOCAL_VERSION)


class Cluster:
    """Three brokers: how each of them answers about the logs that it leads, which begin at 3 and end at 9."""

    def __init__(self, leaders: Mapping[TopicPartition, int], ways: Mapping[int, str]) -> None:
        self.leaders = leaders
        self.ways = dict(ways)
        self.versions = dict.fromkeys(BROKERS, NEWEST)
        self.rounds = 0
        self.unusable: dict[int, str] = {}

    async def brokers(self) -> list[Broker]:
        return list(BROKERS.values())

    async def connection(self, broker: Broker, purpose: str) -> Connection:
        return Connection(self, broker)

    def offsets(self, isolation: int = READ_COMMITTED) -> LogOffsets:
        brokers = cast("Brokers", self)
        return LogOffsets(Leaders(self, brokers, 5.0), brokers, 5.0, isolation)

    def answer(self, broker: Broker, request: ListOffsetsRequest) -> dict[TopicPartition, ListedOffset]:
        assert request.isolation == READ_COMMITTED
        assert {self.leaders[each] for each in request.partitions} == {broker.id}
        assert all(request.leader_epochs[each] == each.partition + 10 for each in request.partitions)
        offsets = {EARLIEST: 3, LATEST: 9, 500: -1, 100: 5}
        found = {each: ListedOffset(0, offsets[time], -1) for each, time in request.partitions.items()}
        first = min(found)
        match self.ways[broker.id]:
            case "leaves one out":
                del found[first]
            case "refuses one":
                found[first] = ListedOffset(error_codes.NOT_LEADER_OR_FOLLOWER, -1, -1)
            case "hangs up":
                raise ConnectionLostError(f"{broker}: closed")
            case "sends rubbish":
                raise ProtocolError(f"{broker}: no response")
        return found


class Connection:
    def __init__(self, cluster: Cluster, broker: Broker) -> None:
        self.broker, self._cluster = broker, cluster
        self.versions = Versions({LIST_OFFSETS: cluster.versions[broker.id]})

    async def call(self, request: object, *, timeout: float) -> Any:
        if isinstance(request, MetadataRequest):
            self._cluster.rounds += 1
            about = {
                each.partition: PartitionMetadata(
                    error_codes.LEADER_NOT_AVAILABLE if leader < 0 else 0, leader, each.partition + 10
                )
                for each, leader in self._cluster.leaders.items()
            }
            return MetadataResponse(BROKERS, {"t": TopicMetadata(0, about)})
        assert isinstance(request, ListOffsetsRequest)
        if self._cluster.ways[self.broker.id] == "is silent":
            await anyio.sleep_forever()
        return self._cluster.answer(self.broker, request)


def expected(cluster: Cluster, within: str) -> dict[TopicPartition, object]:
    found: dict[TopicPartition, object] = {}
    for each, number in cluster.leaders.items():
        leader = BROKERS.get(number)
        is_first = each == min(p for p, other in cluster.leaders.items() if other == number)
        match cluster.ways.get(number, "none"):
            case "none":
                found[each] = f"{each} has no leader: LEADER_NOT_AVAILABLE"
            case "leaves one out" if is_first:
                found[each] = f"{leader} left {each} out of its answer"
            case "refuses one" if is_first:
                found[each] = f"{leader}: {each}: NOT_LEADER_OR_FOLLOWER (6)"
            case "hangs up":
                found[each] = f"{leader}: closed"
            case "sends rubbish":
                found[each] = f"{leader}: no response"
            case "is silent":
                found[each] = f"{leader}: no answer within {within}"
            case _:
                found[each] = 9
    return found


WAYS = ["answers", "leaves one out", "refuses one", "hangs up", "sends rubbish", "is silent"]


@pytest.mark.parametrize("seed", seeds(12, 200))
def test_one_leader_that_fails_keeps_no_answer_of_the_others_back(seed: int) -> None:
    chance = random.Random(seed)
    leaders = {each: chance.choice((-1, 1, 1, 2, 2, 3)) for each in PARTITIONS}
    cluster = Cluster(leaders, {number: chance.choice(WAYS) for number in BROKERS})

    @in_virtual_time
    async def ask() -> None:
        found = await cluster.offsets().once(dict.fromkeys(PARTITIONS, LATEST), within=3.0)
        answers = {each: at.offset if isinstance(at, ListedOffset) else str(at) for each, at in found.items()}
        assert answers == expected(cluster, "3 s")
        assert list(found) == PARTITIONS
        no_use = (isinstance(at, BrokerError) or "left" in str(at) or "no response" in str(at) for at in found.values())
        answered = {each for each, other in zip(found, no_use, strict=True) if other}
        reasons = {each: why_unknown(at).reason for each, at in found.items() if not isinstance(at, ListedOffset)}
        assert {each for each, reason in reasons.items() if reason == "broker error"} == answered

    ask()


@in_virtual_time
async def test_leaders_are_asked_again_until_all_have_answered() -> None:
    left = ["hangs up", "leaves one out", "refuses one", "sends rubbish", "answers"]
    cluster = Cluster({each: 1 + each.partition % 2 for each in PARTITIONS}, dict.fromkeys(BROKERS, "answers"))
    answer = cluster.answer

    def worse_at_first(broker: Broker, request: ListOffsetsRequest) -> dict[TopicPartition, ListedOffset]:
        cluster.ways[1] = left.pop(0) if broker.id == 1 else cluster.ways[1]
        return answer(broker, request)

    cluster.answer = worse_at_first  # type: ignore[method-assign]
    found = await cluster.offsets().look_up(dict.fromkeys(PARTITIONS, EARLIEST))
    assert {each: at.offset for each, at in found.items()} == dict.fromkeys(PARTITIONS, 3)
    assert (left, cluster.rounds) == ([], 5)


@pytest.mark.parametrize("way", ["hangs up", "is silent", "none"])
def test_who_has_not_answered_in_time_is_named(way: str) -> None:
    leaders = {each: 1 if each.partition else -1 if way == "none" else 2 for each in PARTITIONS[:3]}
    cluster = Cluster(leaders, {1: "answers", 2: way})
    reasons = {"hangs up": "closed", "is silent": "no answer within", "none": "t-0 has no leader"}

    @in_virtual_time
    async def ask() -> None:
        with pytest.raises(ConnectionLostError, match=f"no leader of t-0 has answered: .*{reasons[way]}"):
            await cluster.offsets().look_up(dict.fromkeys(leaders, LATEST))

    ask()


async def test_an_error_that_does_not_pass_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(dict.fromkeys(PARTITIONS, 1), dict.fromkeys(BROKERS, "answers"))
    forbidden = ListedOffset(error_codes.TOPIC_AUTHORIZATION_FAILED, -1, -1)
    monkeypatch.setattr(cluster, "answer", lambda broker, request: dict.fromkeys(request.partitions, forbidden))
    with pytest.raises(BrokerError, match="TOPIC_AUTHORIZATION_FAILED"):
        await cluster.offsets().look_up(dict.fromkeys(PARTITIONS, LATEST))
    assert cluster.rounds == 1


@pytest.mark.parametrize(("time", "offset"), [(100, 5), (500, 9), (LATEST, 9)])
async def test_without_a_record_of_that_time_the_log_ends_there(time: int, offset: int) -> None:
    cluster = Cluster({each: 1 + each.partition % 3 for each in PARTITIONS}, dict.fromkeys(BROKERS, "answers"))
    assert await cluster.offsets().at_time(PARTITIONS, time) == dict.fromkeys(PARTITIONS, offset)


async def test_the_oldest_brokers_look_up_no_record_by_its_time() -> None:
    """Those before 0.10.1 would name the base offset of a segment."""
    cluster = Cluster({each: 1 + each.partition % 2 for each in PARTITIONS}, dict.fromkeys(BROKERS, "answers"))
    cluster.versions[2] = (0, 0)
    with pytest.raises(UnsupportedVersionError, match=r"kafka2.*before 0\.10\.1"):
        await cluster.offsets().at_time(PARTITIONS, 100)
    assert await cluster.offsets().at_time(PARTITIONS, LATEST) == dict.fromkeys(PARTITIONS, 9)


@pytest.mark.parametrize("way", ["answers", "leaves one out", "refuses one", "does not know"])
async def test_where_the_log_begins_on_the_disks_of_its_leader(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, asked = Cluster({PARTITIONS[0]: 1}, {1: way}), list[ListOffsetsRequest]()
    refused = ListedOffset(error_codes.NOT_LEADER_OR_FOLLOWER, -1, -1)
    answers = {"answers": {PARTITIONS[0]: ListedOffset(0, 7, -1)}, "refuses one": {PARTITIONS[0]: refused}}

    def answer(broker: Broker, request: ListOffsetsRequest) -> dict[TopicPartition, ListedOffset]:
        asked.append(request)
        return answers.get(way, {})

    monkeypatch.setattr(cluster, "answer", answer)
    if way == "does not know":
        cluster.versions[1] = (0, EARLIEST_LOCAL_VERSION - 1)
    connection = cast("BrokerConnection", Connection(cluster, BROKERS[1]))
    errors: dict[str, type[Exception]] = {"leaves one out": ConnectionLostError, "refuses one": BrokerError}
    if way in errors:
        with pytest.raises(errors[way]):
            await local_start(connection, PARTITIONS[0], READ_COMMITTED, 5.0)
    else:
        found = await local_start(connection, PARTITIONS[0], READ_COMMITTED, 5.0)
        assert found == (7 if way == "answers" else None)
    request = ListOffsetsRequest({PARTITIONS[0]: EARLIEST_LOCAL}, READ_COMMITTED)
    assert asked == ([] if way == "does not know" else [request])
