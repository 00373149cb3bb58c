"""A cluster and its topics from what brokers report: what they refuse or do not know is unknown, and never 0."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kzconsumer.brokers.protocol.cluster_state import (
    ActiveController,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    MetadataResponse,
    Moving,
    PartitionMetadata,
    Reassignments,
    TopicConfig,
    TopicMetadata,
)
from kzconsumer.brokers.protocol.error_codes import NOT_CONTROLLER
from kzconsumer.errors import BrokerError, BrokersUnreachableError, NotFoundError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry.broker_topics import ClusterMetadata
from kzconsumer_tools.cluster import cluster_reader
from kzconsumer_tools.cluster.cluster_reader import cluster_from_brokers, topics_from_brokers
from kzconsumer_tools.cluster.description import ClusterDescription, ControllerNode, TopicDescription
from kzconsumer_tools.tables.cluster_tables import cluster_table, describe_table, topics_table

REFUSED, TOPIC_REFUSED = 31, 29
BROKERS = {1: Broker(1, "kafka1", 9092), 2: Broker(2, "kafka2", 9092)}
PARTITIONS = {0: PartitionMetadata(0, 1, 3, (1, 2), (1,)), 1: PartitionMetadata(5, -1, 0, (2,), ())}


def without_replicas(topic: TopicMetadata) -> TopicMetadata:
    """As it is decoded for those who do not ask for them."""
    parts = {number: replace(part, replicas=(), isr=()) for number, part in topic.partitions.items()}
    return replace(topic, partitions=parts)


class Reports:
    """`quorum` None: the brokers do not know the request."""

    def __init__(self, quorum: ActiveController | None = None) -> None:
        self.topics = {name: TopicMetadata(0, PARTITIONS, f"id of {name}") for name in ("orders", "bills")}
        self.quorum = quorum
        self.moving = Reassignments(0, {TopicPartition("orders", 0): Moving((2,), (3,))})
        self.configs: dict[str, TopicConfig] = {name: TopicConfig(0, {"retention.ms": "5"}) for name in self.topics}
        self.known = BROKERS
        self.controllers: tuple[int, ...] = (1, 2)  # who answers ListPartitionReassignments
        self.asked: list[tuple[str, ...]] = []

    async def ask(self, topics: tuple[str, ...] | None, *, replicas: bool = False) -> MetadataResponse:
        found = {name: about for name, about in self.topics.items() if topics is None or name in topics}
        if not replicas:
            found = {name: without_replicas(about) for name, about in found.items()}
        return MetadataResponse(BROKERS, found, "cluster", {1: "rack"})

    async def described(self, names: Collection[str], *, replicas: bool = False) -> dict[str, TopicMetadata]:
        assert replicas
        return {name: self.topics[name] for name in names if name in self.topics and not self.topics[name].error}

    async def request(self, request: object, of: Broker | None = None) -> object:
        if isinstance(request, DescribeConfigsRequest):
            self.asked.append(request.topics)
            return {name: self.configs[name] for name in request.topics}
        if isinstance(request, DescribeQuorumRequest):
            if self.quorum is None:
                raise BrokersUnreachableError("the broker does not know DescribeQuorum")
            return self.quorum
        if (of.id if of is not None else 1) not in self.controllers:
            return Reassignments(NOT_CONTROLLER, {})
        return self.moving

    async def cluster(self, controller: ControllerNode | None = None) -> ClusterDescription:
        return await cluster_from_brokers(cast("ClusterMetadata", self), "SASL_SSL", controller)

    async def described_as(self, *names: str) -> list[TopicDescription]:
        return await topics_from_brokers(cast("ClusterMetadata", self), names or None)


@pytest.mark.parametrize(
    ("quorum", "node", "found", "line"),
    [
        (ActiveController(0, 3000, 7), ControllerNode(1, None), (3000, 7, True), "controller: node 3000; epoch 7"),
        (ActiveController(0, -1, 7), None, (None, None, True), "controller: unknown; epoch -"),
        (ActiveController(REFUSED, -1, -1), None, (None, None, True), "controller: unknown; epoch -"),
        (None, ControllerNode(2, None), (2, None, False), "controller: broker 2; epoch -"),
        (None, ControllerNode(3000, None, True), (3000, None, True), "controller: node 3000; epoch -"),
        (None, None, (None, None, None), "controller: unknown; epoch -"),
    ],
)
async def test_the_controller_is_that_of_the_quorum_or_of_zookeeper_or_unknown(
    quorum: ActiveController | None, node: ControllerNode | None, found: tuple[Any, ...], line: str
) -> None:
    cluster = await Reports(quorum).cluster(node)
    assert (cluster.controller, cluster.controller_epoch, cluster.kraft_controller) == found
    assert line in cluster_table(cluster).splitlines()
    refused = quorum is not None and quorum.error == REFUSED
    assert ("controller: CLUSTER_AUTHORIZATION_FAILED (31)" in cluster_table(cluster)) == refused


async def test_a_cluster() -> None:
    cluster = await Reports().cluster()
    assert (cluster.cluster_id, cluster.topics, cluster.reassigning) == ("cluster", 2, ("orders-0",))
    assert [(each.id, each.version, each.since, each.rack) for each in cluster.brokers] == [
        (1, None, None, "rack"),
        (2, None, None, None),
    ]
    assert (cluster.deleting, cluster.electing) == (None, None)
    rows = [" ".join(line.split()) for line in cluster_table(cluster, wide=True).splitlines()]
    assert "1 - rack - kafka1:9092 SASL_SSL" in rows


async def test_topics() -> None:
    reports = Reports()
    bills, orders = await reports.described_as()
    assert [each.topic for each in (bills, orders)] == ["bills", "orders"]
    assert (orders.leaderless, orders.under_replicated, orders.config) == (1, 2, {"retention.ms": "5"})
    assert [(each.leader, each.leader_epoch, each.adding, each.removing) for each in orders.partitions] == [
        (1, 3, (2,), (3,)),
        (None, 0, (), ()),
    ]
    assert [each.adding for each in bills.partitions] == [(), ()]
    assert [each.topic for each in await reports.described_as("orders", "bills", "orders")] == ["orders", "bills"]


@pytest.mark.parametrize(("controllers", "found"), [((1,), ("orders-0",)), ((2,), ("orders-0",)), ((), None)])
async def test_in_zookeeper_mode_only_the_controller_knows_reassignments(
    controllers: tuple[int, ...], found: tuple[str, ...] | None
) -> None:
    reports = Reports()
    reports.controllers = controllers
    cluster = await reports.cluster()
    assert cluster.reassigning == found
    assert bool(cluster.unreadable) == (found is None)


async def test_what_brokers_refuse_is_unknown_and_named() -> None:
    reports = Reports()
    reports.moving = Reassignments(REFUSED, {})
    reports.configs["orders"] = TopicConfig(TOPIC_REFUSED, {})
    bills, orders = await reports.described_as()
    assert (orders.config, bills.config) == (None, {"retention.ms": "5"})
    assert [(each.adding, each.removing) for each in orders.partitions] == [(None, None)] * 2
    assert (await reports.cluster()).reassigning is None
    faults = [
        "  reassignments: CLUSTER_AUTHORIZATION_FAILED (31)",
        "  settings of topic orders: TOPIC_AUTHORIZATION_FAILED (29)",
    ]
    table = topics_table([bills, orders]).splitlines()
    assert table[-3:] == ["Cannot be read:", *faults]
    assert [line.split()[4] for line in table[1:3]] == ["1", "-"]
    assert describe_table([orders]).splitlines()[-2:] == faults


async def test_topics_that_are_missing_or_may_not_be_described() -> None:
    reports = Reports()
    with pytest.raises(NotFoundError, match=r"there is no topic order; did you mean orders\?"):
        await reports.described_as("order", "bills")
    reports.topics["secret"] = TopicMetadata(TOPIC_REFUSED, {})
    with pytest.raises(BrokerError, match=r"secret: TOPIC_AUTHORIZATION_FAILED"):
        await reports.described_as("secret")


async def test_settings_are_asked_for_in_requests_of_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_reader, "TOPICS_PER_REQUEST", 1)
    reports = Reports()
    assert [each.config for each in await reports.described_as()] == [{"retention.ms": "5"}] * 2
    assert reports.asked == [("bills",), ("orders",)]
