"""What the exporter makes of groups that brokers coordinate, and of two groups with one name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest

from kzconsumer.brokers.protocol.cluster_state import MetadataResponse, PartitionMetadata, TopicMetadata
from kzconsumer.brokers.protocol.error_codes import GROUP_ID_NOT_FOUND, NOT_COORDINATOR
from kzconsumer.brokers.protocol.groups import (
    CoordinatedMember,
    CoordinatorOffset,
    GroupListing,
    GroupState,
    ListedGroup,
    ListGroupsRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FETCH, Versions
from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.status.partition_health import WINDOW
from kzconsumer_tools.exporter.kafka_groups import KafkaGroup, certain, merged, read_kafka_groups
from kzconsumer_tools.exporter.seen_groups import Histories, ReadGroup, SeenPartition, group_of_nodes
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import KnownTopic
from tests.support.readings import looked
from tests.tools.plain.test_exporter import INTERVAL, P, stored
from tests.tools.plain.test_group_description import group, node, ours

MEMBER = CoordinatedMember("m-1", "client", "/10.0.0.1", ("orders",), (P[0],))


def kafka(offsets: dict[TopicPartition, int], *members: CoordinatedMember, state: str = "Stable") -> ReadGroup:
    return KafkaGroup(GroupState(0, state, members), offsets).read({"orders": KnownTopic((0, 1, 2), None)})


def test_subscribed_assigned_and_committed_partitions() -> None:
    gone = TopicPartition("gone", 0)
    read = kafka({P[1]: 7, gone: 3}, MEMBER)
    assert [(each.place, each.owner, each.client, each.unowned, each.stored) for each in read.partitions] == [
        (gone, None, "", False, 3),
        (P[0], "m-1", "client", False, None),
        (P[1], None, "", True, 7),
        (P[2], None, "", True, None),
    ]
    assert read.members == 1
    rebalancing = kafka({}, MEMBER, state="PreparingRebalance")
    assert not any(each.unowned for each in rebalancing.partitions)
    assert [each.place for each in kafka({P[1]: 7}, state="Empty").partitions] == [P[1]]


@pytest.mark.parametrize(
    "topic", [None, KnownTopic((), None, hidden=True), KnownTopic((), 1, "unreadable"), KnownTopic((1,), 1)]
)
def test_an_offset_is_only_gone_if_the_topic_can_be_described(topic: KnownTopic | None) -> None:
    where = TopicPartition("closed", 0)
    there = {"closed": topic} if topic is not None else {}
    read = KafkaGroup(GroupState(0, "Empty", ()), {where: 3}).read(there)
    known = topic is None or topic.described
    assert [each.gone for each in read.partitions] == [known]
    assert (where in read.existing) == (not known)


def judged(*offsets: int, end: int = 100) -> SeenPartition:
    """After readings with these offsets, one an interval."""
    histories = Histories(INTERVAL)
    for number, offset in enumerate(offsets):
        read = {"g": kafka({P[0]: offset}, MEMBER)}
        seen = looked(histories, read, {P[0]: LogRange(0, end)}, {}, INTERVAL * number)
    return seen["g"].partitions[0]


def test_an_offset_that_changes_is_a_commit_of_the_reading_in_which_it_was_seen() -> None:
    advancing = judged(1, 2, 2, 4)
    assert [(commit.offset, commit.at) for commit in advancing.commits] == [(1, 0.0), (2, INTERVAL), (4, 3 * INTERVAL)]
    assert judged(*[5] * (WINDOW + 2)).judgement == "STOP"
    assert judged(5, 4, 4).judgement == "REWIND"
    assert judged(*[100] * (WINDOW + 2)).judgement == "OK"


def test_a_group_that_could_not_be_read_keeps_its_history() -> None:
    """However often that is; another one, which was deleted, does not."""
    for unread, commits in (({"g"}, 2), ({"h"}, 1)):
        histories = Histories(INTERVAL)
        looked(histories, {"g": kafka({P[0]: 1}, MEMBER)}, {}, {}, 0.0)
        for at in (1.0, 2.0):
            assert looked(histories, {}, {}, {}, at, unread=unread) == {}
        seen = looked(histories, {"g": kafka({P[0]: 2}, MEMBER)}, {}, {}, 3.0)
        assert len(seen["g"].partitions[0].commits) == commits


def test_of_two_groups_with_one_name() -> None:
    """That in ZooKeeper, completed by the offsets that it keeps in the brokers; but not while only the other lives."""
    empty = group_of_nodes(group({}, {}, stored(p0=(5, 0.0))))
    alive = group_of_nodes(group({"m": ours(orders=1)}, {"orders/0": node("m-0", 0x11)}, stored(p0=(5, 0.0))))
    copies, other = kafka({P[0]: 4, P[1]: 9}, state="Empty"), kafka({P[0]: 8}, MEMBER)
    assert merged({"g": empty}, {"g": other, "h": copies}) == {"g": other, "h": copies}
    (completed,) = merged({"g": alive}, {"g": copies}).values()
    rows = {each.place: each for each in completed.partitions}
    assert [(rows[each].stored, rows[each].owner) for each in P[:3]] == [(5, "m-0"), (9, None), (None, None)]
    assert (rows[P[0]].committed, rows[P[1]].committed, completed.members) == (0.0, None, 1)
    (both,) = merged({"g": alive}, {"g": other}).values()
    assert both.partitions[0].owner == "m-0"
    spout = msgspec.structs.replace(alive, foreign=("partition_0",))
    assert merged({"g": spout}, {"g": copies})["g"].foreign == ("partition_0",)
    (neither,) = merged({"g": empty}, {"g": copies}).values()
    assert [(each.place, each.stored) for each in neither.partitions] == [(P[0], 5), (P[1], 9)]


class Cluster:
    """Two brokers that coordinate a group each; as `ClusterMetadata`, `Topics`, `Brokers` and connections are used."""

    def __init__(self) -> None:
        self.brokers = {number: Broker(number, f"kafka{number}", 9092) for number in (1, 2)}
        self.leaders = {0: 1, 1: 2}
        self.away: set[int] = set()
        self.kind = "consumer"
        self.state = GroupState(0, "Stable", (MEMBER,))
        self.calls = self.lost = 0
        """How many requests and connections there were, and which of them fails."""

    def count(self) -> None:
        self.calls += 1
        if self.calls == self.lost:
            raise ConnectionLostError("reset")

    async def found(self, names: Collection[str], group: str | None) -> dict[str, object]:
        return dict.fromkeys(names)

    async def ask(self, topics: tuple[str, ...]) -> MetadataResponse:
        if self.away >= self.brokers.keys():
            raise BrokersUnreachableError("connection refused")
        partitions = {number: PartitionMetadata(0, leader, 0) for number, leader in self.leaders.items()}
        return MetadataResponse(self.brokers, {name: TopicMetadata(0, partitions, "") for name in topics})

    async def connection(self, broker: Broker, purpose: str) -> Coordinating:
        self.count()
        if broker.id in self.away:
            raise ConnectionLostError(f"{broker}: connection refused")
        return Coordinating(self, f"g{broker.id}")

    async def read(self) -> tuple[set[str], str]:
        cluster: Any = self
        groups, failure = await read_kafka_groups(cluster, cluster, cluster, 5.0)
        return set(groups), str(failure or "")


class Coordinating:
    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster, self._group = cluster, group
        self.versions = Versions({OFFSET_FETCH: (0, 7)})

    async def call(self, request: object, *, timeout: float) -> object:
        self._cluster.count()
        match request:
            case ListGroupsRequest():
                return GroupListing(0, (ListedGroup(self._group, "consumer", self._cluster.kind),))
            case OffsetFetchRequest():
                return StoredOffsets(0, {P[0]: CoordinatorOffset(0, 7)})
            case _:
                return {self._group: self._cluster.state}


def test_a_group_whose_offsets_may_be_with_a_coordinator_that_is_away_is_left_out() -> None:
    """It would be shown without lag, or with an old offset that it has in ZooKeeper."""
    groups = {
        "moved": kafka({P[0]: 7}),
        "in ZooKeeper": kafka({P[0]: 7}, MEMBER),
        "in the brokers": kafka({}, MEMBER),
        "answered": kafka({}, MEMBER),
    }
    assert certain(groups, {"answered"}, {"moved", "answered"}).keys() == {"in ZooKeeper", "answered"}


async def test_groups_whose_coordinator_is_away_are_not_taken_for_deleted() -> None:
    cluster = Cluster()
    assert await cluster.read() == ({"g1", "g2"}, "")
    cluster.away = {1, 2}  # those in ZooKeeper are reported all the same
    assert await cluster.read() == (set(), "connection refused")
    cluster.away = {2}
    del cluster.brokers[2]  # the others have noticed
    assert (await cluster.read())[0] == {"g1"}
    assert "__consumer_offsets-1 has no leader" in (await cluster.read())[1]
    cluster.leaders[1] = 1
    assert await cluster.read() == ({"g1"}, "")


async def test_whichever_answer_is_lost_the_reading_is_not_complete() -> None:
    cluster = Cluster()
    await cluster.read()
    for number in range(1, cluster.calls + 1):
        cluster.calls, cluster.lost = 0, number
        groups, failure = await cluster.read()
        assert (len(groups), failure) == (1, "reset")


@pytest.mark.parametrize("kind", ["classic", "consumer", ""])
async def test_a_group_that_is_deleted_between_two_requests(kind: str) -> None:
    cluster = Cluster()
    cluster.kind = kind
    for gone in (GroupState(0, "Dead", ()), GroupState(GROUP_ID_NOT_FOUND, "", ())):
        cluster.state = gone
        assert await cluster.read() == (set(), "")
    cluster.state = GroupState(NOT_COORDINATOR, "", ())  # it moves
    groups, failure = await cluster.read()
    assert (groups, "NOT_COORDINATOR" in failure) == (set(), True)


@pytest.mark.parametrize(("protocol", "kind"), [("share", "share"), ("streams", "streams"), ("connect", "classic")])
async def test_groups_of_other_kinds_are_left_out(protocol: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = GroupListing(0, (ListedGroup("other", protocol, kind), ListedGroup("g1", "consumer", "classic")))
    call = Coordinating.call

    async def listed(self: Coordinating, request: object, *, timeout: float) -> object:
        return listing if isinstance(request, ListGroupsRequest) else await call(self, request, timeout=timeout)

    monkeypatch.setattr(Coordinating, "call", listed)
    cluster = Cluster()
    del cluster.brokers[2], cluster.leaders[1]
    assert await cluster.read() == ({"g1"}, "")
