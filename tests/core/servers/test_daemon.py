"""The daemon as a process: its output, how it stops, and what it reports about problems."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import anyio
import pytest

from kzconsumer.errors import CorruptRecordError
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.broker_logs import damage, log_directory, segments
from tests.support.extent import extent
from tests.support.members import daemon, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import make_chroot, session, until


async def send(cluster: Cluster, topic: str, number: int, partitions: int = 1) -> None:
    records = [Sent(n % partitions, b"%d" % n, b"value %d" % n) for n in range(number)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def test_json_lines_out_and_a_clean_stop(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [
        Sent(0, b"key", "grüße".encode(), (("trace", b"1"), ("none", None)), 1_700_000_000_000),
        Sent(0, None, b"\xff\x00", (), 1_700_000_000_001),
        Sent(1, b"", None, (), 1_700_000_000_002),
    ]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}) as member:
        await until(lambda: len(member.records()) == 3 and member.events("progress"), 30)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    assert sorted(member.records(), key=lambda record: (record["partition"], record["offset"])) == [
        {
            "topic": unique,
            "partition": 0,
            "offset": 0,
            "timestamp": 1_700_000_000_000,
            "key": "key",
            "value": "grüße",
            "headers": [["trace", "1"], ["none", None]],
        },
        {
            "topic": unique,
            "partition": 0,
            "offset": 1,
            "timestamp": 1_700_000_000_001,
            "key": None,
            "value": {"base64": "/wA="},
            "headers": [],
        },
        {
            "topic": unique,
            "partition": 1,
            "offset": 0,
            "timestamp": 1_700_000_000_002,
            "key": "",
            "value": None,
            "headers": [],
        },
    ]
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [2, 1]
    async with session(cluster.connect) as zookeeper:
        assert await zookeeper.children(f"/consumers/{unique}/ids") == []
        assert await zookeeper.children(f"/consumers/{unique}/owners/{unique}") == []
    output = member.err.read_text()
    assert "Traceback" not in output
    for content in ("gr\u00fc\u00dfe", "/wA=", "trace", "\\xff"):
        assert content not in output, "records are not for the log, at debug neither"
    (registered,) = member.events("registered")
    whose = {"group": unique, "member": registered["consumer"]}
    for event in (member.events("progress")[-1], member.events("rebalanced")[0], member.events("stopped")[0]):
        assert {key: event[key] for key in whose} == whose
        assert event["generation"] >= 1


async def test_a_second_signal_stops_at_once(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """A hanging sink delays the first SIGTERM until the deadline, and the second one not at all."""
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 10)
    sink = '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:hang" }\n'
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink) as member:
        await until(lambda: member.events("positions") and member.events("positions")[-1]["partitions"], 30)
        await until(lambda: member.events("positions")[-1]["partitions"][0]["consumed"] == 10, 30)
        member.signal(signal.SIGTERM)
        await anyio.sleep(1.0)
        assert member.process is not None
        assert member.process.poll() is None
        began = time.monotonic()
        member.signal(signal.SIGTERM)
        await member.ended(5)
        assert time.monotonic() - began < 4.0
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [0]


async def test_a_failing_sink_stops_the_member_and_commits_nothing(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 10)
    sink = '[sink]\nplugin = "callable"\noptions = { function = "tests.support.sinks:refuse" }\n'
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, sink) as member:
        assert await member.ended() == 1
    (stopped,) = member.events("stopped by a failure")
    # a session for the checks at the start; the member's own
    assert [event["level"] for event in member.events("connected")] == ["debug", "info"]
    assert "refuse" in stopped["reason"]
    assert "the disk is full" in stopped["reason"]
    # At level debug the cause follows, for the author of the function; otherwise there is no traceback.
    (cause,) = member.events("caused by")
    assert "tests/support/sinks.py" in cause["exception"]
    assert [
        line for line in member.err.read_text().splitlines() if "Traceback" in line and "caused by" not in line
    ] == []
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [0]


async def test_the_start_waits_for_zookeeper(servers: Servers, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 1)
    await send(cluster, unique, 10)
    host, port = servers.zookeeper.host, servers.zookeeper.port
    chroot = cluster.connect.partition("/")[2]
    proxy = FaultProxy(host, port, listen=free_port())
    with daemon(tmp_path, f"{proxy.connect}/{chroot}", unique, {unique: 1}) as member:
        await until(lambda: b"ZooKeeper" in member.err.read_bytes(), 30)
        await anyio.sleep(2.0)
        assert member.process is not None
        assert member.process.poll() is None
        warnings = [line for line in member.err.read_text().splitlines() if '"warning"' in line]
        assert len(warnings) == 1, warnings
        async with proxy:
            await until(lambda: len(member.records()) == 10, 30)
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0


async def test_zookeeper_down_at_the_start_does_not_delay_a_stop(unique: str, tmp_path: Path) -> None:
    with daemon(tmp_path, f"127.0.0.1:{free_port()}", unique, {unique: 1}) as member:
        await until(lambda: b"ZooKeeper" in member.err.read_bytes(), 30)
        member.signal(signal.SIGTERM)
        assert await member.ended(5) == 0


async def test_no_broker_is_not_an_error(zookeeper: ZooKeeperServer, cluster: Cluster, unique: str) -> None:
    """The member registers, logs it once, watches, and starts when a broker registers: a running one, in a chroot that
    has its topic.
    """
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 100, 2)
    connect = f"{zookeeper.connect}/{unique}"
    await make_chroot(connect)
    async with session(cluster.connect) as of_the_broker, session(connect) as operator:
        for parent in ("/brokers/ids", "/brokers/topics"):
            await operator.ensure(parent)
        topic = f"/brokers/topics/{unique}"
        await operator.create(topic, (await of_the_broker.get(topic)).data)
        async with reader(settings(connect, unique), {unique: 1}) as member:
            assert await operator.children(f"/consumers/{unique}/ids") == [member.consumer.consumer]
            assert member.owned == set()
            await operator.create("/brokers/ids/1", (await of_the_broker.get("/brokers/ids/1")).data, ephemeral=True)
            await until(lambda: len(member.messages) == 100, 30)


async def test_an_unknown_topic_is_reported_once_until_it_exists(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}) as member:
        await until(lambda: member.events("topic does not exist"), 30)
        await create_topic(cluster.connect, unique, 1)
        await send(cluster, unique, 10)
        await until(lambda: len(member.records()) == 10, 30)
        assert len(member.events("topic does not exist")) == 1


# What a stream raises: tests/core/plain/test_kafka_stream.py.
@pytest.mark.parametrize("how", extent(["daemon"], ["daemon", "stream"]))
async def test_a_corrupt_batch_stops_the_member_with_everything_before_it_committed(
    cluster: Cluster, unique: str, tmp_path: Path, how: str
) -> None:
    await create_topic(cluster.connect, unique, 1)
    for first in (0, 10, 20):  # three batches of the log
        records = [Sent(0, None, b"record %d" % n) for n in range(first, first + 10)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    (segment,) = segments(log_directory(cluster, unique))
    damage(segment, b"record 15")
    if how == "daemon":
        with daemon(tmp_path, cluster.connect, unique, {unique: 1}) as member:
            assert await member.ended(30) == 1
        (stopped,) = member.events("stopped by a failure")
        assert stopped["error"] == "CorruptRecordError"
        assert f"{unique}-0 at offset 10" in stopped["reason"]
        assert "Traceback" not in member.err.read_text()
        assert [record["offset"] for record in member.records()] == list(range(10))
    else:
        seen = []

        async def read() -> None:
            async with reader(settings(cluster.connect, unique), {unique: 1}) as member:
                seen.append(member)
                await anyio.sleep(20)

        with pytest.raises(CorruptRecordError) as raised:
            await read()
        assert (raised.value.topic_partition, raised.value.offset) == ((unique, 0), 10)
        assert [message.offset for message in seen[0].messages] == list(range(10))
    assert await stored_offsets(cluster.connect, unique, unique, 1) == [10]
