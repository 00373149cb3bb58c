"""A tool copies the nodes of a cluster to another place: the topics there are new ones to members of ours.

docs/migration.md says so, and how the offsets are kept. The copy is below another chroot of the same ZooKeeper.
"""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread

from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.groups.group_reader import tree_of
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.members import reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

BEFORE, AFTER = 10, 5


async def copy(zookeeper: ZooKeeperSession, there: ZooKeeperSession, topic: str, group: str) -> None:
    """`/brokers` before `/consumers`. The brokers stay where they are."""
    for path in ("/cluster", "/brokers/ids", f"/brokers/topics/{topic}", f"/consumers/{group}"):
        for each, node in (await tree_of(zookeeper, path)).items():
            await there.ensure(each)
            await there.set(each, node.data, -1)


@only_nightly
async def test_offsets_are_taken_along_in_a_file(
    cluster: Cluster, zookeeper: ZooKeeperSession, unique: str, folder: Path, kzconsumer: CommandLine
) -> None:
    async def send(number: int) -> None:
        records = [Sent(0, None, b"x")] * number
        await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, records)

    await create_topic(cluster.connect, unique, 1)
    await send(BEFORE)
    smallest = {"commit_interval": "500ms", "reset": "smallest"}
    async with reader(settings(cluster.connect, unique, offsets=smallest), {unique: 1}) as member:
        await until(lambda: len(member.messages) == BEFORE)
    kept = folder / "kept.csv"
    kept.write_text((await kzconsumer("offsets", "export", unique, "--format", "csv")).out)
    await send(AFTER)

    connect = f"{cluster.connect.partition('/')[0]}/copied-{unique}"
    there = CommandLine(kzconsumer.capsys, "--zookeeper", connect)
    async with session(connect) as copied:
        await copy(zookeeper, copied, unique, unique)
    lag = await there.json("lag", unique, status=3)
    assert [each["why"] for each in lag["partitions"]] == ["offset of an earlier topic"]
    assert (await there("offsets", "import", str(kept), "--group", unique, "--execute")).status == 0
    largest = {"commit_interval": "500ms", "reset": "largest"}
    async with reader(settings(connect, unique, offsets=largest), {unique: 1}) as member:
        await until(lambda: len(member.messages) == AFTER)
        assert [message.offset for message in member.messages] == list(range(BEFORE, BEFORE + AFTER))
