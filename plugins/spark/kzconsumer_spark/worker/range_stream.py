"""The batches of a query whose executors fetch: publishes the spans of planned ranges, the large ones in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from kzconsumer.model import OffsetRange
from kzconsumer.registry.offset_list import Spans
from kzconsumer_spark.executors.accounts import COLUMN, PartAccount, part_accounts
from kzconsumer_spark.executors.source import NAME, PublishedBatch, PublishedBatches, RangeSource
from kzconsumer_spark.pipe.messages import SpooledRange
from kzconsumer_spark.worker.kafka_registry import KafkaRegistry

_METRIC: Final = "kzconsumer"
FEWEST_OFFSETS: Final = 10_000
"""Of a part: a task costs some milliseconds."""


class RangeStream:
    """For one query. Made at `path`, without a batch."""

    def __init__(self, session: SparkSession, path: Path, registry: KafkaRegistry) -> None:
        """Looks up the brokers. Raises as `KafkaRegistry`."""
        path.mkdir(parents=True)
        self._path = path
        self._session = session
        self._kafka = registry.kafka
        self._brokers = registry.brokers()
        self._batches = PublishedBatches(path)
        self._numbers = count()

    def frame(self) -> DataFrame:
        self._session.dataSource.register(RangeSource)
        frame = self._session.readStream.format(NAME).option("path", str(self._path)).load()
        # Below the frame that destinations and functions get: however they evaluate it, and how often, the accounts of
        # the parts that were read to their ends are in the metric, once each.
        observed = frame.observe(_METRIC, sql.collect_set(COLUMN).alias(COLUMN))
        return observed.where(sql.col("offset").isNotNull()).drop(COLUMN)

    def publish(self, ranges: Sequence[SpooledRange]) -> None:
        """Let the query find these ranges."""
        epochs = {part.range.topic_partition: part.leader_epoch for part in ranges}
        spans = [span for part in ranges for span in part.spans]
        parts = tuple(split(spans, self._session.sparkContext.defaultParallelism))
        rejected = {part.range.topic_partition: part.left_out for part in ranges}
        batch = PublishedBatch(
            parts=parts,
            epochs=tuple(epochs[part.topic_partition] for part in parts),
            left_out=tuple(_within(part, rejected[part.topic_partition]) for part in parts),
            brokers=self._brokers,
            kafka=self._kafka,
        )
        self._batches.publish(next(self._numbers), batch)

    @staticmethod
    def accounts(query: StreamingQuery) -> list[PartAccount]:
        """What tasks have reported so far of the batch that the query runs.

        Spark reports metrics of a batch when it is over, which is too late: they are asked of its execution. Those of
        a task count once it has ended well, before Spark takes its job to be done.
        """
        metrics = query._jsq.streamingQuery().lastExecution().observedMetrics()
        texts = metrics.apply(_METRIC).getSeq(0).mkString("\n")
        return part_accounts(str(texts).splitlines())


def _within(part: OffsetRange, spans: Spans) -> Spans:
    return tuple(span for span in spans if span[0] < part.until and span[1] > part.first)


def split(ranges: list[OffsetRange], tasks: int) -> Iterator[OffsetRange]:
    """Parts of about the same size, as many as there are tasks at a time if the ranges are large enough."""
    size = max(-(-sum(each.until - each.first for each in ranges) // tasks), FEWEST_OFFSETS)
    for each in ranges:
        pieces = max(-(-(each.until - each.first) // size), 1)
        bounds = [each.first + (each.until - each.first) * n // pieces for n in range(pieces + 1)]
        for first, until in pairwise(bounds):
            yield each._replace(first=first, until=until)
