"""A log that lost what a group had consumed, and has grown past its offset again: found between two runs.

The stored offset alone fits the new log. Real brokers: one restored from a copy of its directory, and two with an
unclean leader election.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Mapping, Sequence

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

import kzconsumer
from kzconsumer.errors import OffsetLostError
from kzconsumer.runs import is_over
from kzconsumer_sandbox.servers.kafka_servers import BrokerServer, Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import extent, only_nightly
from tests.support.members import settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

LIMIT = 60.0
EVENT = "log truncated below the consumed offset"


async def send(cluster: Cluster, topic: str, which: str, number: int, partition: int = 0) -> None:
    records = [Sent(partition, None, b"%s %d" % (which.encode(), n)) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def stop(broker: BrokerServer) -> None:
    """As a service manager does: it gives its partitions away, and its log is complete."""
    broker.send_signal(signal.SIGTERM)
    await asyncio.to_thread(broker.wait_ended)


async def start(broker: BrokerServer) -> None:
    broker.start()
    await asyncio.to_thread(broker.wait_ready)


def configured(cluster: Cluster, name: str, **offsets: str) -> kzconsumer.Settings:
    run = {"stop_at": "end"}
    return settings(cluster.connect, name, subscription=run, offsets={"commit_interval": "500ms", **offsets})


async def run(configured: kzconsumer.Settings, topic: str) -> list[bytes | None]:
    """What a member reads until the run is over."""
    with anyio.fail_after(LIMIT):
        async with kzconsumer.connect(configured) as consumer:
            (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
            return [message.value async for message in stream]


def said(logs: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    return [(line["first"], line["until"], line["replaced"]) for line in logs if line["event"] == EVENT]


async def check(cluster: Cluster, topic: str, partition: int = 0) -> None:
    """50 records are the same, 50 were replaced, and 50 came: the group has consumed 100."""
    found = r"\(leader epoch \d\); it has the same records up to 50( \(epoch 0\))?: 50 were replaced .* reset = .fail"
    with pytest.raises(OffsetLostError, match=found):
        await run(configured(cluster, topic, reset="fail"), topic)
    with capture_logs() as logs:
        read = await run(configured(cluster, topic), topic)
    assert said(logs) == [(50, 100, 50)]
    assert read == [b"new %d" % n for n in range(100)]
    assert (await stored_offsets(cluster.connect, topic, topic, partition + 1))[partition] == 150


@only_nightly  # the test below, and tests/core/plain/test_group_log_cut_off.py
async def test_a_broker_restored_from_a_copy(servers: Servers, unique: str) -> None:
    """The other broker is the controller: one that starts alone goes on in the epoch that ZooKeeper has."""
    cluster = servers.cluster(unique, brokers=2, config={"controlled.shutdown.enable": "false"})
    async with session(cluster.connect) as operator:
        controller = msgspec.json.decode((await operator.get("/controller")).data)["brokerid"]
    broker = cluster.brokers[3 - controller]
    await create_topic(cluster.connect, unique, 2)  # each leads one partition
    led = broker.id - 1
    data, copy = broker.folder / "data", broker.folder / "copy"
    await send(cluster, unique, "same", 50, led)
    await stop(broker)
    shutil.copytree(data, copy)
    await start(broker)
    await send(cluster, unique, "old", 50, led)
    assert len(await run(configured(cluster, unique), unique)) == 100
    await stop(broker)
    shutil.rmtree(data)
    copy.rename(data)
    await start(broker)
    await send(cluster, unique, "new", 100, led)
    await check(cluster, unique, led)
    # Control: an offset that another program has stored has no epoch, and is compared with the end only.
    async with session(cluster.connect) as operator:
        await operator.set(f"/consumers/{unique}/offsets/{unique}/{led}", b"120", -1)
    assert len(await run(configured(cluster, unique), unique)) == 30
    await asyncio.to_thread(cluster.kill)


@pytest.mark.parametrize("version", extent(("1.1.1",), ("1.1.1", "3.9.1")))
async def test_an_unclean_election_between_two_runs(servers: Servers, unique: str, version: str) -> None:
    cluster = servers.cluster(unique, version, brokers=2, config={"unclean.leader.election.enable": "true"})
    await create_topic(cluster.connect, unique, 1, replicas=2)
    leader, follower = cluster.brokers[1], cluster.brokers[2]
    await send(cluster, unique, "same", 50)
    await stop(follower)
    await send(cluster, unique, "old", 50)
    assert len(await run(configured(cluster, unique), unique)) == 100
    await stop(leader)
    await start(follower)
    await send(cluster, unique, "new", 100)
    await check(cluster, unique)
    await asyncio.to_thread(cluster.kill)


async def test_a_stored_offset_beyond_the_end_of_the_log(cluster: Cluster, unique: str) -> None:
    """Nobody fetches there, since the run ends before it: it is not finished for that reason."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, "new", 10)
    async with session(cluster.connect) as operator:
        await operator.ensure(f"/consumers/{unique}/offsets/{unique}")
        await operator.create(f"/consumers/{unique}/offsets/{unique}/0", b"25")
    subscribed = settings(cluster.connect, unique, subscription={"stop_at": "end", "topics": {unique: 1}})
    assert not await is_over(subscribed, lambda _: True, replayable=False)
    with pytest.raises(OffsetLostError, match=r"reset = .fail"):
        await run(configured(cluster, unique, reset="fail"), unique)
    assert await run(configured(cluster, unique), unique) == [b"new %d" % n for n in range(10)]
