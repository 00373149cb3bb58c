"""`kzconsumer sink try` with a real broker and a real Spark; and reading without a group, on which it is based."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.errors import NotFoundError, OffsetLostError
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.commands.sink_commands import last_offsets
from tests.support.extent import extent, only_nightly
from tests.support.producing import Sent, produce

pytestmark = pytest.mark.timeout(300)


def settings(cluster: Cluster, topic: str, **fetch: object) -> Settings:
    tables = {"zookeeper": {"connect": cluster.connect}, "group": {"id": topic}, "fetch": fetch}
    return Settings.from_dict(tables | {"subscription": {"topics": {topic: 1}}}, source="test")


@pytest.mark.parametrize("version", extent(["3.9.1"], ["0.8.2.2", "3.9.1"]))  # the oldest: test_executors_fetch.py
async def test_records_are_read_without_a_group(cluster_of, version: str, unique: str) -> None:  # type: ignore[no-untyped-def]
    cluster: Cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 3)
    records = [Sent(n % 2, None, b"%d" % n + b"." * 3000) for n in range(40)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    # Less than a record at first: older brokers send nothing complete then.
    async with range_reader(settings(cluster, unique, max_bytes=1024)) as reader:
        logs = await reader.logs(await reader.partitions(settings(cluster, unique).subscription))
        assert logs == {TopicPartition(unique, n): (0, 20 if n < 2 else 0) for n in range(3)}
        ranges = last_offsets(logs, 10)
        assert ranges == [OffsetRange(unique, n, 15, 20) for n in (0, 1)]
        found: dict[int, list[int | None]] = {}
        async for partition, batch in reader.read([*ranges[:1], OffsetRange(unique, 1, 3, 5)]):
            found.setdefault(partition.partition, []).extend(batch.column("offset").to_pylist())
        assert found == {0: [15, 16, 17, 18, 19], 1: [3, 4]}
        with pytest.raises(OffsetLostError, match=f"{unique}-0: the leader says that offset 25 is not in its log"):
            await anext(reader.read([OffsetRange(unique, 0, 25, 26)]))
        with pytest.raises(NotFoundError, match=r"there is no topic \S+; did you mean"):
            await reader.partitions(settings(cluster, f"{unique}x").subscription)
    async with ZooKeeperSession(ConnectString.parse(cluster.connect), 6) as session:
        assert await session.exists(f"{paths.CONSUMERS}/{unique}") is None


@only_nightly  # the same in one process: test_spark_columns.py; the command: tests/tools/plain/test_cli_sink.py
async def test_try_shows_the_frame_and_bad_records_and_leaves_nothing_behind(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, b"k%d" % n, b'{"id": %d}' % n) for n in range(20)] + [Sent(1, b"k", b"no JSON")]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    (tmp_path / "group.toml").write_text(f"""
[zookeeper]
connect = "{cluster.connect}"
[group]
id = "{unique}"
[subscription]
topics = {{ {unique} = 1 }}
[sink]
plugin = "spark"
[sink.options]
destination = "parquet"
path = "{tmp_path}/out"
scratch = "{tmp_path}/scratch"
key = {{ format = "string" }}
value = {{ format = "json", schema = "id BIGINT", on_error = "quarantine" }}
select = "key, value.id * 2 AS twice, offset"
where = "partition = 1"
""")
    command = [sys.executable, "-m", "kzconsumer", "sink", "try", "-n", "7", "-o", "json", "--config", "group.toml"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout) == {
        "columns": [["key", "string"], ["twice", "bigint"], ["offset", "bigint"]],
        "rows": [[f"k{n}", 2 * n, n // 2] for n in (17, 19)],
        "bad": [
            {
                "topic": unique,
                "partition": 1,
                "offset": 10,
                "reason": "value is not one JSON object alone",
            }
        ],
    }
    assert not (tmp_path / "out").exists()
    assert not [each for each in (tmp_path / "scratch").rglob("*") if each.is_file()]
    async with ZooKeeperSession(ConnectString.parse(cluster.connect), 6) as session:
        assert await session.exists(f"{paths.CONSUMERS}/{unique}") is None
