"""Our range and round-robin assignors compared with the original classes, on the same generated groups in ZooKeeper.

The classes run in a JVM of their own and read ZooKeeper as a member would; no member joins and no broker is used.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import pytest

from kzconsumer.assignors import Assignor, assign_legacy, assign_range, assign_roundrobin
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.registry.group_records import STATIC, Registration, encode_registration
from kzconsumer.registry.nodes import Topic
from kzconsumer.settings.value_readers import WHITE_LIST
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.jars import classpath, kafka_version, resolve_jars
from tests.support.extent import only_nightly
from tests.support.py4j_gateway import java_gateway
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

GROUPS = 25
TOPICS = {"t1": 4, "my.topic-2": 2, "a": 12, "events": 7, "order-1": 1, "wide": 120, "none": 0}
_GIVEN = re.compile(r"(?:\[([^,\]]+),(\d+)\]|([^ (]+)-(\d+)) -> ([^ ,)]+)")


class Original(NamedTuple):
    """The assignors of one Kafka version, and the session they read through."""

    jvm: Any
    zookeeper: Any

    def assign(self, assignor: str, group: str, consumers: list[str]) -> dict[tuple[str, int], str]:
        """Each member computes the assignment itself; the results must be equal, else this raises."""
        found = {}
        for consumer in consumers:
            context = self.jvm.kafka.consumer.AssignmentContext(group, consumer, True, self.zookeeper)
            assignment = getattr(self.jvm.kafka.consumer, assignor)().assign(context)
            mine = assignment.get(consumer)
            for topic, number, newer, its_number, thread in _GIVEN.findall(mine.toString()):
                place = (topic or newer, int(number or its_number))
                assert place not in found, f"two members have {place}"
                found[place] = thread
        return found


@contextmanager
def original(servers: Servers, version: str, connect: str) -> Iterator[Original]:
    folder = resolve_jars(kafka_version(version).jars)
    with java_gateway(servers.java, classpath(folder)) as gateway:
        zookeeper = gateway.jvm.kafka.utils.ZkUtils.apply(connect, 30_000, 30_000, False)
        yield Original(gateway.jvm, zookeeper)
        zookeeper.close()


def made_up(chance: random.Random) -> dict[str, Registration]:
    """One to six members, some with a white list, some idle, with consumer ids in any order."""
    members = {}
    for _ in range(chance.randint(1, 6)):
        consumer = f"g_{chance.choice('aAzZ_-09')}{chance.randrange(10**6)}"
        if chance.random() < 0.25:
            pattern = chance.choice(["t1|a", ".*", "ev.*,my.*", "nothing"])
            members[consumer] = Registration(WHITE_LIST, {pattern: chance.randint(1, 3)}, ours=True)
        else:
            topics = chance.sample(sorted(TOPICS), chance.randint(1, 5))
            members[consumer] = Registration(
                STATIC, {topic: chance.choice([1, 2, 3, 12]) for topic in topics}, ours=True
            )
    return members


async def register(zookeeper: ZooKeeperSession, group: str, members: dict[str, Registration]) -> None:
    await zookeeper.ensure(f"/consumers/{group}/ids")
    for consumer, registration in members.items():
        data = encode_registration(registration.subscription, 0, "0", registration.pattern)
        await zookeeper.create(f"/consumers/{group}/ids/{consumer}", data)


async def make_topics(zookeeper: ZooKeeperSession, topics: dict[str, int]) -> None:
    await zookeeper.ensure("/brokers/topics")
    for topic, number in topics.items():
        partitions = {str(partition): [1] for partition in range(number)}
        await zookeeper.create(
            f"/brokers/topics/{topic}", msgspec.json.encode({"version": 1, "partitions": partitions})
        )


# What originals were seen to compute: plain/test_assignors.py; groups of both, which have to agree:
# test_join_and_leave.py, test_round_robin.py.
@only_nightly
@pytest.mark.parametrize(("version", "our_round_robin"), [("1.1.1", assign_roundrobin), ("0.10.2.2", assign_legacy)])
async def test_ours_compute_the_same_as_the_original(
    servers: Servers, unique: str, version: str, our_round_robin: Assignor
) -> None:
    connect = f"{servers.zookeeper.connect}/{unique}"
    async with session(servers.zookeeper.connect) as root:
        await root.ensure(f"/{unique}")
    chance = random.Random(20_240_613)
    topics = {topic: Topic(tuple(range(number)), 1) for topic, number in TOPICS.items()}
    pairs = {"RangeAssignor": assign_range, "RoundRobinAssignor": our_round_robin}
    compared = 0
    with original(servers, version, connect) as java:  # its start outlasts a session
        async with session(connect) as zookeeper:
            await make_topics(zookeeper, TOPICS)
            for number in range(GROUPS):
                members = made_up(chance)
                await register(zookeeper, f"g{number}", members)
                context = GroupSnapshot(members, tuple(sorted(TOPICS)), topics).context()
                for named, ours in pairs.items():
                    assignment = {tuple(each): str(thread) for each, thread in ours(context).items()}
                    theirs = await asyncio.to_thread(java.assign, named, f"g{number}", sorted(members))
                    assert theirs == assignment, members
                    compared += len(assignment)
    assert compared > 80 * GROUPS
