"""The batches of a query whose executors fetch: publishes the planned ranges, the large ones in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Final

import anyio
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.model import Broker, OffsetRange
from kzconsumer.registry.sessions import short_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.zookeeper.watches import Watches
from kzconsumer_spark.executors.source import NAME, PublishedBatch, PublishedBatches, RangeSource
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.pipe.messages import SpooledRange

FEWEST_OFFSETS: Final = 10_000
"""Of a part: a task costs some milliseconds."""


class RangeStream:
    """For one query. Made at `path`, without a batch."""

    def __init__(self, session: SparkSession, path: Path, kafka: Kafka) -> None:
        """Looks up the brokers. Raises ZooKeeperError, ConfigError."""
        path.mkdir(parents=True)
        self._path = path
        self._session = session
        self._kafka = kafka
        self._brokers = tuple(anyio.run(_registered, kafka))
        self._batches = PublishedBatches(path)
        self._numbers = count()

    def frame(self) -> DataFrame:
        self._session.dataSource.register(RangeSource)
        return self._session.readStream.format(NAME).option("path", str(self._path)).load()

    def publish(self, ranges: Iterable[SpooledRange]) -> None:
        """Let the query find these ranges."""
        wanted = [part.range for part in ranges if part.records]
        parts = split(wanted, self._session.sparkContext.defaultParallelism)
        batch = PublishedBatch(parts=tuple(parts), brokers=self._brokers, kafka=self._kafka)
        self._batches.publish(next(self._numbers), batch)


def split(ranges: list[OffsetRange], tasks: int) -> Iterator[OffsetRange]:
    """Parts of about the same size, as many as there are tasks at a time if the ranges are large enough."""
    size = max(-(-sum(each.until - each.first for each in ranges) // tasks), FEWEST_OFFSETS)
    for each in ranges:
        pieces = max(-(-(each.until - each.first) // size), 1)
        bounds = [each.first + (each.until - each.first) * n // pieces for n in range(pieces + 1)]
        for first, until in pairwise(bounds):
            yield each._replace(first=first, until=until)


async def _registered(kafka: Kafka) -> list[Broker]:
    async with short_session(kafka.zookeeper) as session:
        return await TopicRegistry(session, Watches(session), kafka.brokers).brokers()
