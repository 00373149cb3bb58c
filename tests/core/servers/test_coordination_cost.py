"""What a group costs ZooKeeper, in requests as the server counts them: no cost is quadratic in the group size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

import kzconsumer
from kzconsumer.consumer import ConsumerConnector
from kzconsumer.group.rebalance_listener import RebalanceListener
from kzconsumer.model import TopicPartition
from kzconsumer.registry.group_records import encode_registration
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import sessions_of, settings
from tests.support.zookeeper_sessions import received_by_session, session, until

MEMBERS, TOPICS, PARTITIONS = 12, 8, 12
COMERS = 6

LOOK = 3
"""Requests: the list and the new member's registration, and one to spare."""


class Counting(RebalanceListener):
    """A member, and how many partitions it has."""

    consumer: ConsumerConnector

    def __init__(self) -> None:
        self.holds = 0

    @property
    def session_id(self) -> int:
        zookeeper = sessions_of(self.consumer).lease.session
        assert zookeeper is not None
        return zookeeper.id

    async def on_assigned(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.holds += len(partitions)

    async def on_revoked(self, generation: int, partitions: frozenset[TopicPartition]) -> None:
        self.holds -= len(partitions)

    on_lost = on_revoked


@asynccontextmanager
async def group_of(members: int, cluster: Cluster, name: str, topics: list[str]) -> AsyncIterator[list[Counting]]:
    """Members that start together, once every partition is owned; without events they make no requests."""
    configured = settings(
        cluster.connect,
        name,
        zookeeper={"connect": cluster.connect, "session_timeout": "60s"},
        group={"id": name, "reconcile_interval": "1h"},
        offsets={"commit_interval": "1h"},
    )
    counted = [Counting() for _ in range(members)]

    async def be(member: Counting) -> None:
        async with kzconsumer.connect(configured, listener=member) as member.consumer:
            await member.consumer.create_message_streams(dict.fromkeys(topics, 1))
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        for member in counted:
            tasks.start_soon(be, member)
        share = len(topics) * PARTITIONS // members
        await until(lambda: all(member.holds == share for member in counted), 30)
        yield counted
        tasks.cancel_scope.cancel()


async def requests(zookeeper: ZooKeeperServer, members: list[Counting]) -> list[int]:
    """How many the server has received from each, once it receives no more."""
    before: list[int] = []
    while True:
        received = await received_by_session(zookeeper.host, zookeeper.port)
        now = [received[member.session_id] for member in members]
        if now == before:
            return now
        before = now
        await anyio.sleep(0.3)


async def made_topics(cluster: Cluster, unique: str) -> list[str]:
    topics = [f"{unique}-{number}" for number in range(TOPICS)]
    for topic in topics:
        await create_topic(cluster.connect, topic, PARTITIONS)
    return topics


@only_nightly  # requests of a simulated group, which grows and shrinks: plain/test_scale.py
async def test_a_joining_or_leaving_member_costs_the_others_one_read_of_the_list(
    cluster: Cluster, zookeeper: ZooKeeperServer, unique: str
) -> None:
    """They own what they owned before; other members and topics are not read again."""
    topics = await made_topics(cluster, unique)
    async with group_of(MEMBERS, cluster, unique, topics) as members, session(cluster.connect, 60) as other:
        before = await requests(zookeeper, members)
        for number in range(COMERS):
            path = f"/consumers/{unique}/ids/{unique}_comer-{number}"
            await other.create(path, encode_registration({}, 0, "0"), ephemeral=True)
            await requests(zookeeper, members)
        made = [after - earlier for after, earlier in zip(await requests(zookeeper, members), before, strict=True)]
    assert all(COMERS <= number <= LOOK * COMERS for number in made), made
