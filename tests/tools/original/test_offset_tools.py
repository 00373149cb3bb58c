"""Kafka's own tools and ours report the same about one group, and read each other's files.

The tools are those of the last releases that have them; each is a Java process, and those that only read run together.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import extent
from tests.support.members import reader, sessions_of, settings
from tests.support.original import offset_checker, tools_verdict
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

PARTITIONS, EACH = 4, 10


@pytest.fixture
async def offsets_stored(cluster_of: Callable[[str], Cluster], unique: str) -> Cluster:
    """A group's topic with 10 records in each of 4 partitions; the offsets 1, 4, 7 and 10 are stored."""
    cluster = cluster_of("1.1.1")
    await create_topic(cluster.connect, unique, PARTITIONS)
    records = [Sent(partition, None, b"x") for partition in range(PARTITIONS) for _ in range(EACH)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    async with session(cluster.connect) as zookeeper:
        for number in range(PARTITIONS):
            path = f"/consumers/{unique}/offsets/{unique}/{number}"
            await zookeeper.ensure(path)
            await zookeeper.set(path, b"%d" % (3 * number + 1), -1)
    return cluster


async def test_both_describe_a_running_group_alike(
    servers: Servers, offsets_stored: Cluster, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Owner, stored offset, end and lag of each partition; and whether each has an owner that is registered."""
    cluster = offsets_stored
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    where = ["--zookeeper", cluster.connect, "--group", unique]

    async def describe(version: str) -> str:
        return await servers.tool(version, "kafka.admin.ConsumerGroupCommand", "--describe", *where)

    async with reader(settings(cluster.connect, unique), {unique: 2}) as member:
        await until(lambda: len(member.messages) == sum(EACH - 3 * n - 1 for n in range(PARTITIONS)))
        await member.consumer.commit()
        sessions_of(member.consumer).stop_fetching()
        # Records that are not consumed, so that there is a lag.
        more = [Sent(partition, None, b"x") for partition in range(PARTITIONS) for _ in range(partition)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, more)
        lag = await kzconsumer.json("lag", unique)
        ours = {
            each["partition"]: (each["stored"], each["log_end"], each["lag"], each["owner"])
            for each in lag["partitions"]
        }
        consumer = member.consumer.consumer
        assert ours == {n: (EACH, EACH + n, n, f"{consumer}-{n // 2}") for n in range(PARTITIONS)}
        checked, verdict, *by_version = await asyncio.gather(
            offset_checker(servers, cluster, unique, "--topic", unique),
            tools_verdict(servers, cluster, unique),
            *map(describe, extent(("1.1.1",), ("0.10.2.2", "1.1.1"))),
        )
        rows = re.findall(rf"^{unique}\s+{unique}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\S+)", checked, re.MULTILINE)
        assert {int(n): (int(at), int(end), int(lag), owner) for n, at, end, lag, owner in rows} == ours, checked
        for described in by_version:
            rows = re.findall(rf"^{unique}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+(\S+)", described, re.MULTILINE)
            theirs = {int(n): (int(at), int(end), int(lag), owner) for n, at, end, lag, owner in rows}
            assert theirs == {n: (*row[:3], row[3].rpartition("-")[0]) for n, row in ours.items()}, described
        assert "Rebalance operation successful" in verdict
        assert (await kzconsumer("groups", "verify", unique)).status == 0

    async with session(cluster.connect) as zookeeper:  # a member that owns nothing
        registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static"}' % unique.encode()
        await zookeeper.create(f"/consumers/{unique}/ids/m", registration, ephemeral=True)
        unowned = await kzconsumer("groups", "verify", unique)
        assert unowned.status == 3
        assert f"/consumers/{unique}/owners/{unique}/0-{PARTITIONS - 1}" in unowned.out
        assert "Rebalance operation failed" in await tools_verdict(servers, cluster, unique)


async def test_both_describe_a_group_with_offsets_in_the_brokers_alike(
    servers: Servers, offsets_stored: Cluster, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Offsets in the brokers alone, beside old ones in ZooKeeper: all read the brokers', including the newer tool."""
    cluster = offsets_stored
    offsets = {"storage": "kafka", "dual_commit": False, "commit_interval": "1h"}
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    async with reader(settings(cluster.connect, unique, offsets=offsets), {unique: 1}) as member:
        await until(lambda: len(member.messages) == EACH * PARTITIONS)
        sessions_of(member.consumer).stop_fetching()
        await member.consumer.commit()
        more = [Sent(partition, None, b"x") for partition in range(PARTITIONS) for _ in range(partition)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, more)
        describe = "kafka.admin.ConsumerGroupCommand", "--describe", "--group", unique
        checked, old, new = await asyncio.gather(
            offset_checker(servers, cluster, unique, "--topic", unique),
            servers.tool("1.1.1", *describe, "--zookeeper", cluster.connect),
            servers.tool("1.1.1", *describe, "--bootstrap-server", cluster.bootstrap),
        )
        lag = await kzconsumer.json("lag", unique, "--storage", "kafka")
        offsets_shown = await kzconsumer.json("offsets", "show", unique, "--storage", "kafka")
        described = await kzconsumer.json("groups", "describe", unique, "--storage", "kafka")
        ours = {each["partition"]: (each["stored"], each["log_end"], each["lag"]) for each in lag["partitions"]}
        assert ours == {n: (EACH, EACH + n, n) for n in range(PARTITIONS)}
        for shown in (offsets_shown, described):
            assert {each["stored"] for each in shown["partitions"]} == {EACH}
        assert {each["partition"]: each["zookeeper"] for each in offsets_shown["partitions"]} == {
            0: 1,
            1: 4,
            2: 7,
            3: 10,
        }
        for answer, columns in ((checked, rf"^{unique}\s+{unique}"), (old, f"^{unique}"), (new, f"^{unique}")):
            rows = re.findall(rf"{columns}\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s", answer, re.MULTILINE)
            assert {int(n): (int(at), int(end), int(lag)) for n, at, end, lag in rows} == ours, answer


async def test_offset_files_are_interchangeable(
    servers: Servers, offsets_stored: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ExportZkOffsets and ours write the same lines, but for the topic; each reads what the other has written."""
    cluster = offsets_stored
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    connect = ["--zkconnect", cluster.connect]
    exporting = ["kafka.tools.ExportZkOffsets", *connect, "--group", unique, "--output-file", str(theirs)]
    await servers.tool("1.1.1", *exporting)
    exported = await kzconsumer("offsets", "export", unique, "--output-file", str(ours))
    assert exported.status == 0, exported
    lines = [line.split(":") for line in ours.read_text().splitlines()]
    assert sorted(theirs.read_text().splitlines()) == [f"{path}:{offset}" for path, offset, _ in lines]
    assert len(lines) == PARTITIONS

    undo = str(tmp_path / "undo")
    reset = await kzconsumer("offsets", "reset", unique, "--to-latest", "--all-topics", "--execute", "--undo", undo)
    assert reset.status == 0, reset
    importing = ["kafka.tools.ImportZkOffsets", *connect, "--input-file", str(ours)]
    await servers.tool("1.1.1", *importing)
    assert (await kzconsumer("offsets", "export", unique)).out == ours.read_text()

    shifted = await kzconsumer(
        "offsets", "reset", unique, "--to-earliest", "--all-topics", "--execute", "--undo", undo + "2"
    )
    assert shifted.status == 0, shifted
    imported = await kzconsumer("offsets", "import", str(theirs), "--execute", "--undo", undo + "3")
    assert imported.status == 0, imported
    assert (await kzconsumer("offsets", "export", unique)).out == ours.read_text()


async def test_a_deleted_and_restored_group(
    servers: Servers, offsets_stored: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After ours, Kafka's tool does not find the group; after a restore it finds and deletes it."""
    cluster = offsets_stored
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    command = ["kafka.admin.ConsumerGroupCommand", "--zookeeper", cluster.connect]
    undo = str(tmp_path / "undo")
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/ids")  # to Kafka's tool there is no group without
    deleted = await kzconsumer("groups", "delete", unique, "--execute", "--undo", undo)
    assert deleted.status == 0, deleted
    assert unique not in (await servers.tool("1.1.1", *command, "--list")).split()
    restored = await kzconsumer("groups", "restore", undo, "--execute")
    assert restored.status == 0, restored
    theirs = await servers.tool("1.1.1", *command, "--delete", "--group", unique)
    assert "Deleted all consumer group information" in theirs
    gone = await kzconsumer("groups", "verify", unique)
    assert (gone.status, f"there is no group {unique}" in gone.err) == (1, True)
