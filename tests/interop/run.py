"""One group under its faults, from an empty cluster to the evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

import anyio

from kzconsumer_sandbox.servers.jars import cache_folder
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.interop.evidence import Evidence, Kind
from tests.interop.history import history
from tests.interop.judge import Verdict, judge
from tests.interop.members import Member
from tests.interop.programs import KafkaNode, OriginalConsumer, Ours, Program, find_kafka_node
from tests.interop.schedule import OF_MEMBERS, Fault, faults, members
from tests.interop.servers import BROKERS, CHROOT, InteropServers, interop_servers
from tests.support.flow import Flow, flow
from tests.support.members import stored_offsets
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

GROUP = TOPIC = "interop"
PARTITIONS = 8
RATE = 200.0
"""Records a second."""
JOIN_LIMIT = 60.0
STILL = 60.0
"""Seconds after which a record that nobody delivers is lost: an original member that gave up is nudged before that."""


@dataclass
class Setup:
    """Everything that a run follows from."""

    seed: int
    seconds: float
    count: int
    kinds: Sequence[Kind]
    plant: str | None = None

    def draw(self) -> tuple[dict[str, Kind], list[Fault]]:
        chance = Random(self.seed)
        kinds = members(chance, self.count, self.kinds)
        return kinds, faults(chance, self.seconds, list(kinds), range(1, BROKERS + 1))


@dataclass
class Result:
    setup: Setup
    members: dict[str, Kind]
    faults: list[Fault]
    evidence: Evidence
    verdict: Verdict


async def run(setup: Setup, folder: Path) -> Result:
    """Raises AssertionError if the group does not form, or if the log is not what ZooKeeper serves."""
    kinds, planned = setup.draw()
    (folder / "faults").write_text("".join(f"{fault}\n" for fault in planned))
    async with interop_servers(folder) as servers:
        connect = servers.cluster.connect
        await create_topic(connect, TOPIC, PARTITIONS, replicas=BROKERS)
        await _store_start(connect)
        with ExitStack() as stack:
            sent = stack.enter_context(flow(servers.cluster, TOPIC, PARTITIONS, RATE, **_PRODUCER))
            group = {name: Member(name, _program(kind, connect, setup, folder), folder) for name, kind in kinds.items()}
            for member in group.values():
                stack.callback(member.kill)
                member.start()
            await _joined(connect, group)
            await _suffer(servers, group, planned)
            await asyncio.to_thread(sent.end)
            await _drained(sent, group)
            async with anyio.create_task_group() as tasks:
                for member in group.values():
                    tasks.start_soon(member.stop)
            served = await stored_offsets(connect, GROUP, TOPIC, PARTITIONS)
        found = history(servers.end(), GROUP, TOPIC, CHROOT)
    assert served == [found.offsets()[partition] for partition in range(PARTITIONS)], "not what the log says"
    lives = [life for member in group.values() for life in member.lives]
    for life in lives:
        lines = (f"{each.at:.6f} {each.partition} {each.offset}\n" for each in life.delivered)
        (folder / f"{life.consumer}-{life.began:.3f}.delivered").write_text("".join(lines))
    evidence = Evidence({n: sent.sent[n] for n in range(PARTITIONS)}, found, lives, tuple(servers.disturbed))
    return Result(setup, kinds, planned, evidence, judge(evidence))


_PRODUCER = {
    # The offset of a record is known before it is sent, also when a broker ends without an answer.
    "enable_idempotence": True,
    # Fetch requests of the originals' age need batches that fit into a response.
    "batch_num_messages": 50,
}


def _program(kind: Kind, connect: str, setup: Setup, folder: Path) -> Program:
    if kind is Kind.OURS:
        return Ours(connect, GROUP, TOPIC, setup.plant)
    if kind is Kind.KAFKA_NODE:
        return KafkaNode(connect, GROUP, TOPIC, *find_kafka_node())
    return OriginalConsumer(connect, GROUP, TOPIC, Servers(folder, cache_folder() / "class-archives"))


async def _store_start(connect: str) -> None:
    """Offset 0 of all partitions: the kinds differ in where they begin without one."""
    async with session(connect) as zookeeper:
        for partition in range(PARTITIONS):
            path = f"/consumers/{GROUP}/offsets/{TOPIC}"
            await zookeeper.ensure(path)
            await zookeeper.create(f"{path}/{partition}", b"0")


async def _joined(connect: str, group: dict[str, Member]) -> None:
    """Wait until all have registered."""
    async with session(connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{GROUP}/ids")
        with anyio.fail_after(JOIN_LIMIT):
            while len(await zookeeper.children(f"/consumers/{GROUP}/ids")) < len(group):
                await anyio.sleep(0.1)
                for member in group.values():
                    member.look()


async def _suffer(servers: InteropServers, group: dict[str, Member], planned: Sequence[Fault]) -> None:
    began = time.monotonic()

    async def happen(fault: Fault) -> None:
        await anyio.sleep(fault.at - (time.monotonic() - began))
        await (group[fault.target] if fault.what in OF_MEMBERS else servers).suffer(fault)

    async def look_after() -> None:
        while True:
            for member in group.values():
                member.look()
            await anyio.sleep(0.2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look_after)
        async with anyio.create_task_group() as all_faults:
            for fault in planned:
                all_faults.start_soon(happen, fault)
        tasks.cancel_scope.cancel()


async def _drained(sent: Flow, group: dict[str, Member]) -> None:
    """Wait until everything is delivered, or nothing new has been for `STILL`: the judge says what is lost."""
    wanted, before, changed = sum(sent.sent.values()), 0, time.monotonic()
    while before < wanted and time.monotonic() - changed < STILL:
        await anyio.sleep(0.5)
        for member in group.values():
            member.look()
        lives = [life for member in group.values() for life in member.lives]
        delivered = len({(each.partition, each.offset) for life in lives for each in life.delivered})
        if delivered > before:
            before, changed = delivered, time.monotonic()
