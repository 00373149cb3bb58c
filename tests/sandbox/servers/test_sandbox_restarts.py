"""Servers of a sandbox can be stopped, killed and started again on their old port and data, under a running client."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from kzconsumer_sandbox.servers.readiness import ephemeral_nodes, known_brokers, led_partitions, zookeeper_serves
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.processes import exists
from tests.support.producing import Sent, produce


async def a_killed_broker_comes_back(sandbox: Sandbox, topic: str) -> None:
    await create_topic(sandbox.zookeeper_connect, topic, 2, replicas=2)
    first, second = sandbox.brokers[1], sandbox.brokers[2]
    before = first.pid
    await sandbox.stop_broker(1, signal.SIGKILL)
    assert known_brokers(first.host, first.port) is None
    assert first.registered()  # what start_broker has to wait for
    await sandbox.start_broker(1)
    assert first.pid != before
    assert known_brokers(first.host, first.port) is not None
    assert known_brokers(second.host, second.port) is not None
    sent = [Sent(partition, None, b"again") for partition in (0, 1)]
    assert await asyncio.to_thread(produce, sandbox.bootstrap, "1.1.1", topic, sent) == [0, 0]


async def zookeeper_comes_back_with_its_data(sandbox: Sandbox, topic: str) -> None:
    zookeeper = sandbox.zookeeper
    await sandbox.stop_zookeeper(signal.SIGKILL)
    assert not zookeeper_serves(zookeeper.host, zookeeper.port)
    await sandbox.start_zookeeper()
    assert "/brokers/ids/1" in ephemeral_nodes(zookeeper.host, zookeeper.port)
    led = [led_partitions(broker.host, broker.port, topic) for broker in sandbox.brokers.values()]
    assert led == [{0, 1}, {0, 1}]
    await create_topic(sandbox.zookeeper_connect, topic + "-2", 1)


@only_nightly  # tests/sandbox/plain/test_server_process.py; restarted servers: core/servers/test_zookeeper_returns.py
async def test_what_was_killed_comes_back_and_everything_is_removed_after_an_exception(
    tmp_path: Path, unique: str
) -> None:
    """A short session, so that a killed broker is soon forgotten."""
    config = {"zookeeper.session.timeout.ms": 3000}
    pids: list[int] = []
    try:
        async with Sandbox(tmp_path, "1.1.1", 2, heap="192m", config=config) as sandbox:
            await a_killed_broker_comes_back(sandbox, unique)
            await zookeeper_comes_back_with_its_data(sandbox, unique)
            pids = [sandbox.zookeeper.pid, *(broker.pid for broker in sandbox.brokers.values())]
            raise LookupError
    except LookupError:
        pass
    assert len(pids) == 3
    assert not any(map(exists, pids))
