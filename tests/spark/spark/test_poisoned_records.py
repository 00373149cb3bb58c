"""Four records that Spark cannot write, each found in another way, among 11; at night among a million, with a kill.

One in each destination, with each policy and a kill: test_one_in_a_million.py.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import anyio
import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from tests.files.servers.test_poisoned_records import NANOSECONDS
from tests.spark.spark.test_replay_after_kill import spark_of
from tests.support.dead_letters import read_letters
from tests.support.extent import NIGHTLY, extent, only_nightly
from tests.support.members import committed, daemon
from tests.support.processes import wait_gone
from tests.support.producing import Sent, produce

pytestmark = pytest.mark.timeout(extent(400, 3600))
RECORDS = extent(11, 1_000_000)
LIMIT = extent(120.0, 1200.0)
BAD = {3: "unstorable", 5: "undecodable", 7: "unstorable", 9: "refused"}
REASONS = {
    3: "timestamp is outside of the years 1 to 9999",
    5: "value is not one JSON object alone",
    7: "column at: is outside of the years 1 to 9999",
    9: "CAST_INVALID_INPUT",
}


def record(n: int) -> Sent:
    content: dict[str, Any] = {
        "n": n,
        "us": 253_402_300_800_000_000 if n == 7 else 0,
        "text": "x" if n == 9 else "1",
    }
    value = b"{" if n == 5 else json.dumps(content).encode()
    return Sent(0, None, value, timestamp=NANOSECONDS if n == 3 else None)


def letters(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in directory.glob("*.jsonl") for line in file.read_text().splitlines()]


@only_nightly  # of 8 rows, with a Spark: test_poisoned_rows.py; a daemon: tests/files/servers/test_poisoned_records.py
async def test_everything_else_is_written_once(
    cluster: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KZCONSUMER__BATCH__MAX_RECORDS", "500000")
    await create_topic(cluster.connect, unique, 1)
    out, aside = tmp_path / "out", tmp_path / "letters"
    tables = f"""[rejected]
policy = "dead-letter"
directory = "{aside}"
[sink]
plugin = "spark"
[sink.options]
destination = "parquet"
path = "{out}"
value = {{ format = "json", schema = "n BIGINT, us BIGINT, text STRING" }}
select = "value.n, timestamp_micros(value.us) AS at, cast(value.text AS INT) AS number, offset"
"""
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, map(record, range(RECORDS)))
    if NIGHTLY is not None:
        with daemon(tmp_path / "first", cluster.connect, unique, {unique: 1}, tables) as first:
            spark = await spark_of(first)
            with anyio.fail_after(LIMIT):
                while {each["offset"] for each in letters(aside)} < {3, 5}:
                    await anyio.sleep(0.02)
            first.signal(signal.SIGKILL)
            await first.ended()
            wait_gone(spark, 20)
    with daemon(tmp_path / "next", cluster.connect, unique, {unique: 1}, tables) as member:
        await committed(cluster.connect, unique, unique, [RECORDS], LIMIT)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    table = ds.dataset(out, format="parquet").to_table().sort_by("offset")
    assert table.column("offset").to_pylist() == [n for n in range(RECORDS) if n not in BAD]
    assert table.column("n").to_pylist() == table.column("offset").to_pylist()
    found = letters(aside)
    assert {each["offset"]: each["error_class"] for each in found} == BAD
    assert all(REASONS[each["offset"]] in each["reason"] for each in found), found
    assert len(found) <= len(BAD) + 2, "at least once: only those of the attempt that was killed"


def batch_read(spark: SparkSession, cluster: Cluster, tmp_path: Path, topic: str, rejected: str) -> list[int]:
    config = tmp_path / "group.toml"
    config.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{topic}"\nsubscription.topics.{topic} = 1\n'
        f"[rejected]\n{rejected}\n"
    )
    spark.dataSource.register(GroupSource)
    rows = (
        spark.read.format("kzconsumer")
        .options(config=str(config), startingOffsets="earliest", minPartitions="3")
        .load()
    )
    return sorted(row["offset"] for row in rows.select("offset").collect())


@only_nightly  # tasks without a Spark, from a real broker: tests/spark/servers/test_task_rejections.py
async def test_the_source_carries_out_the_policy_in_its_tasks(
    spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 1)
    records = [Sent(0, b"k", b"%d" % n, timestamp=NANOSECONDS if n == 613 else None) for n in range(1000)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    reason = f"{unique}-0 at offset 613 was rejected as unstorable: timestamp is outside of the years 1 to 9999"
    with pytest.raises(PySparkException, match=reason):
        batch_read(spark, cluster, tmp_path, unique, "")
    left = [n for n in range(1000) if n != 613]
    aside = f"{unique}-letters"
    await create_topic(cluster.connect, aside, 1)
    assert batch_read(spark, cluster, tmp_path, unique, f'policy = "dead-letter"\ntopic = "{aside}"') == left
    (letter,) = read_letters(cluster.bootstrap, aside, 1)
    assert (letter.key, letter.value, letter.original_offset) == (b"k", b"613", 613)
