"""Where a batch read of the source begins, on real servers; test_batch_source.py reads with a Spark."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from kzconsumer.errors import ConfigError, OffsetLostError
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.registry.claim_record import ClaimRecord, StoredPosition, encode_claim_record
from kzconsumer.registry.paths import GroupPaths, topic
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from kzconsumer_spark.source.group_source import GroupBatchReader
from kzconsumer_spark.source.source_options import ranges_between, read_options
from tests.spark.servers.test_group_reader import COLUMNS
from tests.support.producing import Sent, produce
from tests.support.recreation import recreate_topic
from tests.support.zookeeper_sessions import session

LOST = r"consumed up to 4 \(leader epoch 7\); it has the same records up to 0: 4 were .* startingOffsets says where"


async def test_an_offset_of_an_earlier_topic_does_not_count_in_a_batch_read(cluster: Cluster, unique: str) -> None:
    options = read_options({"zookeeper.connect": cluster.connect, "group.id": unique, "topics": unique})

    async def left() -> list[OffsetRange]:
        found = await asyncio.to_thread(ranges_between, options.settings, options.bounds)
        assert [f"{each.host}:{each.port}" for each in found.brokers] == [cluster.bootstrap]
        return found.ranges

    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, None, b"%d" % n) for n in range(10)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    path = GroupPaths(unique).offset(TopicPartition(unique, 0))
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(path)
        await zookeeper.set(path, b"4", -1)
        assert await left() == [OffsetRange(unique, 0, 4, 10)]
        backwards = read_options(
            {
                "zookeeper.connect": cluster.connect,
                "topics": unique,
                "startingoffsets": f'{{"{unique}":{{"0":5}}}}',
                "endingoffsets": f'{{"{unique}":{{"0":3}}}}',
            }
        )
        with pytest.raises(ConfigError, match=f"{unique}-0: the read would begin at offset 5, behind its end 3"):
            await asyncio.to_thread(ranges_between, backwards.settings, backwards.bounds)
        other = {"zookeeper.connect": cluster.connect, "topics": unique, "startingoffsets": "earliest"}
        others = read_options(other | {"endingoffsets": '{"other":{"0":5}}'})
        with pytest.raises(
            ConfigError, match=f"endingOffsets: {unique}-0 is missing \\(-2 is the earliest, -1 the latest"
        ):
            await asyncio.to_thread(ranges_between, others.settings, others.bounds)
        # With the record before the offset in that leader epoch: of a log that was cut off and has grown past it again.
        claims = GroupPaths(unique).claim_record(TopicPartition(unique, 0))
        for epoch, refused in ((0, False), (7, True)):
            created = (await zookeeper.get(topic(unique))).stat.czxid
            record = ClaimRecord(1, "range", f"{created:#x}", position=StoredPosition(4, epoch))
            await zookeeper.ensure(claims)
            await zookeeper.set(claims, encode_claim_record(record), -1)
            with pytest.raises(OffsetLostError, match=LOST) if refused else nullcontext():
                assert await left() == [OffsetRange(unique, 0, 4, 10)]
        await zookeeper.delete(claims, -1)
        await recreate_topic(cluster, unique, 1)
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
        assert await left() == [OffsetRange(unique, 0, 0, 10)]
        await zookeeper.set(path, b"4", -1)
        assert await left() == [OffsetRange(unique, 0, 4, 10)]
        # One that was stored by a member that did not know yet of the new topic:
        record = ClaimRecord(1, "range", f"{created:#x}", position=StoredPosition(4, 0))
        await zookeeper.create(claims, encode_claim_record(record))
        assert await left() == [OffsetRange(unique, 0, 0, 10)]


async def test_a_batch_read_takes_no_record_of_a_topic_that_was_created_again(cluster: Cluster, unique: str) -> None:
    """Between the look at its logs and the tasks. The control is a task before."""
    await create_topic(cluster.connect, unique, 1)
    sent = [Sent(0, None, b"%d" % n) for n in range(10)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    options = {"zookeeper.connect": cluster.connect, "topics": unique, "startingOffsets": "earliest"}
    reader = GroupSource(CaseInsensitiveDict(options)).reader(COLUMNS)  # type: ignore[arg-type]
    assert isinstance(reader, GroupBatchReader)
    (task,) = await asyncio.to_thread(reader.partitions)

    def values() -> list[bytes]:
        return [row["value"] for rows in reader.read(task) for row in rows.to_pylist()]

    assert await asyncio.to_thread(values) == [each.value for each in sent]
    await recreate_topic(cluster, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
    with pytest.raises(OffsetLostError, match=f"^topic {unique} was deleted and created again"):
        await asyncio.to_thread(values)
