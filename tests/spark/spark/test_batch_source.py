"""`spark.read.format("kzconsumer")` of the user's own Spark, on real servers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from tests.support.extent import extent
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

TIME = 1_700_000_000_000


def batch(spark: SparkSession, cluster: Cluster, name: str, **options: str) -> DataFrame:
    spark.dataSource.register(GroupSource)
    base = {"zookeeper.connect": cluster.connect, "topics": name}
    return spark.read.format("kzconsumer").options(**base, **options).load()


def offsets(frame: DataFrame) -> set[tuple[int, int]]:
    rows = [(row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect()]
    assert len(set(rows)) == len(rows)
    return set(rows)


def expected(*spans: tuple[int, int, int]) -> set[tuple[int, int]]:
    """Partition, first offset, and the one behind the last."""
    return {(partition, offset) for partition, first, until in spans for offset in range(first, until)}


@pytest.mark.parametrize("version", extent(["3.9.1"], ["0.8.2.2", "3.9.1"]))  # the oldest: test_executors_fetch.py
async def test_what_lies_between_two_bounds(
    spark: SparkSession, cluster_of: Callable[[str], Cluster], unique: str, version: str
) -> None:
    """Nothing is joined, and nothing of the group is changed."""
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2)
    records = [Sent(n % 2, b"k%d" % n, b"%d" % n, timestamp=TIME + n) for n in range(600)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, records)
    paths = GroupPaths(unique)
    async with session(cluster.connect) as zookeeper:
        for partition, stored in ((0, b"120"), (1, b"300")):
            path = paths.offset(TopicPartition(unique, partition))
            await zookeeper.ensure(path.rpartition("/")[0])
            await zookeeper.create(path, stored)

        def check() -> None:
            rows = batch(spark, cluster, unique, startingOffsets="earliest").orderBy("partition", "offset").collect()
            assert [(row["key"], row["value"], row["topic"], row["partition"], row["offset"]) for row in rows] == [
                (each.key, each.value, unique, number, offset)
                for number in (0, 1)
                for offset, each in enumerate(records[number::2])
            ]
            text = (ROOT / "docs" / "spark-source.md").read_text().split("```python\n")[2].partition("```")[0]
            for before, after in (("zk1:2181/kafka", cluster.connect), ("lake", unique), ("orders", unique)):
                assert before in text
                text = text.replace(before, after)
            variables: dict[str, Any] = {"spark": spark}
            exec(text, variables)
            assert offsets(variables["left"]) == expected((0, 120, 300))
            left = batch(spark, cluster, unique, **{"group.id": unique})
            assert offsets(left) == expected((0, 120, 300))
            assert left.count() == 180, "read again"
            chosen = {"startingOffsets": f'{{"{unique}":{{"0":-2,"1":290}}}}'}
            chosen["endingOffsets"] = f'{{"{unique}":{{"0":5,"1":-1}}}}'
            assert offsets(batch(spark, cluster, unique, **chosen)) == expected((0, 0, 5), (1, 290, 300))
            assert offsets(batch(spark, cluster, unique, **chosen, minPartitions="4")) == expected(
                (0, 0, 5), (1, 290, 300)
            )
            nothing = {"startingOffsets": f'{{"{unique}":{{"0":-1,"1":-1}}}}'}
            assert batch(spark, cluster, unique, **nothing).count() == 0
            beyond = {"startingOffsets": f'{{"{unique}":{{"0":0,"1":301}}}}'}
            with pytest.raises(PySparkException, match="the log has no offset 301; it begins at 0 and ends at 300"):
                batch(spark, cluster, unique, **beyond).count()
            others = {"startingOffsets": f'{{"{unique}":{{"0":0,"1":0,"2":0}}}}'}
            with pytest.raises(PySparkException, match=f"startingOffsets: {unique}-2 is no partition of the topics"):
                batch(spark, cluster, unique, **others).count()
            if version != "0.8.2.2":
                times = {"startingTimestamp": str(TIME + 100), "endingTimestamp": str(TIME + 104)}
                assert offsets(batch(spark, cluster, unique, **times)) == expected((0, 50, 52), (1, 50, 52))

        await asyncio.to_thread(check)
        assert await zookeeper.children(f"/consumers/{unique}") == ["offsets"]
        assert [
            node.data
            for partition in (0, 1)
            if (node := await zookeeper.find(paths.offset(TopicPartition(unique, partition)))) is not None
        ] == [b"120", b"300"]


async def test_workers_do_not_search_modules_for_garbage(spark: SparkSession, cluster: Cluster, unique: str) -> None:
    """Spark's workers collect it after each task. Which of them it takes for the second query is Spark's choice."""
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, b"k", b"v")])

    def exempt(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"objects": [gc.get_freeze_count()]})

    def check() -> None:
        assert batch(spark, cluster, unique, startingOffsets="earliest").count() == 1
        found = spark.range(8, numPartitions=8).mapInArrow(exempt, "objects long").collect()
        assert max(row["objects"] for row in found) > 10_000

    await asyncio.to_thread(check)
