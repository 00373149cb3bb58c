"""Ranges with offsets that the log has lost since: executors fetch what is left, and write it as the planned range."""

from __future__ import annotations

import asyncio

from kzconsumer.model import OffsetRange
from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import fetched
from kzconsumer_spark.executors.planned_topics import KafkaRegistry
from kzconsumer_spark.executors.task_parts import split
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.core.servers.test_replay import Sink, Target, consume, planned, retained_from, tiled


def offsets(cluster: Cluster, spans: tuple[OffsetRange, ...]) -> list[object]:
    """Of the records that the tasks fetch."""
    kafka = Kafka.of(Settings.from_dict({"zookeeper": {"connect": cluster.connect}, "group": {"id": "g"}}))
    access = BrokerAccess(kafka, KafkaRegistry(kafka).brokers())
    parts = split(spans, 4, {})
    return [offset for part in parts for rows in fetched([part], access) for offset in rows["offset"].to_pylist()]


async def test_a_replay_fetches_what_retention_has_left_of_its_range(cluster: Cluster, unique: str) -> None:
    target = Target()
    await planned(cluster, unique, target)
    await retained_from(cluster, unique, 10)
    sink = Sink(target, wants="ranges")
    await consume(cluster, unique, sink, lambda: tiled(target, 30))
    (replay,) = [part for batch in sink.batches for part in batch.ranges]
    part = BatchRange.of(replay)
    assert (part.range[2:], part.records) == ((0, 30), 20)
    assert await asyncio.to_thread(offsets, cluster, part.spans) == list(range(10, 30))
