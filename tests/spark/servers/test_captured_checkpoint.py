"""An upgrade of kzconsumer during a batch: the checkpoint and the group's nodes of an earlier version.

`captured_checkpoint.json` has what a query of 0.1.0 left in the middle of its second batch: the lines of Spark's files
`offsets/0` and `offsets/1`, and each partition's claim record and stored offset with its node's version. It stays as it
is: a version that cannot continue from it needs a new checkpoint, which is a change for users. A test with
KZCONSUMER_CAPTURE=1 writes it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import anyio

from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.spark.servers.test_source_changes import LIMIT, query, send
from tests.support.members import stored_offsets
from tests.support.plans import planned
from tests.support.zookeeper_sessions import session

PLACE = Path(__file__).with_name("captured_checkpoint.json")
NAME, INCARNATION = "captured", 0x2A
"""What the file has in place of the topic, the group and the topic's czxid."""
BATCH = 5
VALUES = [b"%d" % n for n in range(3 * BATCH)]


async def incarnation_of(cluster: Cluster, topic: str) -> int:
    async with session(cluster.connect) as zookeeper:
        return (await zookeeper.get(paths.topic(topic))).stat.czxid


def renamed(text: str, names: tuple[str, str], incarnations: tuple[int, int]) -> str:
    """The same of another topic: `names` and `incarnations` before and after."""
    text = re.sub(rf'"{names[0]}(?=["-])', f'"{names[1]}', text)
    before, after = incarnations
    return re.sub(rf"\b{before}\b", f"{after}", text.replace(f'"{before:#x}"', f'"{after:#x}"'))


async def capture(cluster: Cluster, topic: str, folder: Path) -> None:
    async with query(cluster, topic, folder, "smallest", 2 * BATCH) as running:
        await send_batch(cluster, topic, 0)
        first = await running.after(running.reader.initialOffset())
        await send_batch(cluster, topic, 1)
        second = await running.after(first)
    own = (await incarnation_of(cluster, topic), INCARNATION)
    nodes = []
    async with session(cluster.connect) as zookeeper:
        for partition in (TopicPartition(topic, 0), TopicPartition(topic, 1)):
            record = await zookeeper.get(paths.GroupPaths(topic).claim_record(partition))
            offset = await zookeeper.get(paths.GroupPaths(topic).offset(partition))
            content = renamed(record.data.decode(), (topic, NAME), own)
            nodes.append({"claim": content, "offset": offset.data.decode(), "version": offset.stat.version})
    offsets = [renamed(json.dumps(offset), (topic, NAME), own) for offset in (first, second)]
    PLACE.write_text(json.dumps({"offsets": offsets, "partitions": nodes}, indent=2) + "\n")


async def send_batch(cluster: Cluster, topic: str, number: int) -> None:
    for partition in (0, 1):
        await send(cluster, topic, VALUES[number * BATCH : (number + 1) * BATCH], partition)


async def test_a_query_continues_from_the_checkpoint_and_the_plans_of_an_earlier_version(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """The batch that was begun has the same records, then follow those after it, and each is committed."""
    await create_topic(cluster.connect, unique, 2)
    if os.environ.get("KZCONSUMER_CAPTURE"):
        await create_topic(cluster.connect, f"{unique}-c", 2)
        await capture(cluster, f"{unique}-c", tmp_path)
    captured = json.loads(PLACE.read_text())
    own = (INCARNATION, await incarnation_of(cluster, unique))
    start, end = (json.loads(renamed(text, (NAME, unique), own)) for text in captured["offsets"])
    for number in range(3):
        await send_batch(cluster, unique, number)
    group = paths.GroupPaths(unique)
    async with session(cluster.connect) as zookeeper:
        for number, nodes in enumerate(captured["partitions"]):
            partition = TopicPartition(unique, number)
            for path, content in (
                (group.offset(partition), nodes["offset"]),
                (group.claim_record(partition), renamed(nodes["claim"], (NAME, unique), own)),
            ):
                await zookeeper.ensure(path.rpartition("/")[0])
                await zookeeper.create(path, content.encode())
            for _ in range(nodes["version"]):  # a plan counts with the version of the offset that it begins at
                await zookeeper.set(group.offset(partition), nodes["offset"].encode(), -1)
    assert {(part.partition, part.first, part.until) for part in await planned(cluster, unique)} == {
        (partition, BATCH, 2 * BATCH) for partition in (0, 1)
    }

    async with query(cluster, unique, tmp_path, "smallest", 2 * BATCH) as running:
        assert sorted(await running.values(await running.tasks(start, end))) == sorted(VALUES[BATCH : 2 * BATCH] * 2)
        following = await running.after(end)
        assert sorted(await running.values(await running.tasks(end, following))) == sorted(VALUES[2 * BATCH :] * 2)
        with anyio.fail_after(LIMIT):
            while await running.asked(following) != following:
                pass
        assert await stored_offsets(cluster.connect, unique, unique, 2) == [3 * BATCH] * 2
