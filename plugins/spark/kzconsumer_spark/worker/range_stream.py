"""The batches of a query whose executors fetch: publishes the spans of planned ranges, the large ones in parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.contents import Contents
from kzconsumer.registry.claim_record import Spans
from kzconsumer_spark.executors.accounts import NotWholeError, PartAccount, part_accounts
from kzconsumer_spark.executors.kafka_registry import KafkaRegistry
from kzconsumer_spark.executors.published_batches import PublishedBatch, PublishedBatches, split
from kzconsumer_spark.executors.range_source import NAME, RangeSource
from kzconsumer_spark.pipe.messages import BatchRange
from kzconsumer_spark.ranges.batch import ACCOUNT, Permission, SparkBatch


class TopicsLease:
    """The lease, and the batch in hand: its topics must be those that were planned, and its ranges read as a whole."""

    def __init__(
        self, lease: Permission, registry: KafkaRegistry, record: Callable[[Mapping[TopicPartition, Contents]], None]
    ) -> None:
        """`record` returns when the plans have what was read, or raises."""
        self._lease = lease
        self._registry = registry
        self._record = record
        self._fetched: list[BatchRange] = []
        self._contents: Callable[[], Mapping[TopicPartition, Contents]] = dict
        self._recorded = False

    def begin(self, batch: SparkBatch) -> None:
        assert batch.contents is not None
        self._fetched = [part for part in batch.ranges if part.records]
        self._contents = batch.contents
        self._recorded = False

    def require(self) -> None:
        """Raises as `Lease.require` and `KafkaRegistry.require_planned`. The lease comes last: it may run out first."""
        self._registry.require_planned(self._fetched)
        self._lease.require()

    def require_whole(self) -> None:
        """As `require`. Raises NotWholeError if tasks have not accounted for all, and what `record` raises."""
        self._report(self._contents())
        self.require()

    def report_read(self) -> None:
        """For a function, which need not read all, and whose work cannot be told from reading."""
        with suppress(NotWholeError):
            self._report(self._contents())

    def _report(self, contents: Mapping[TopicPartition, Contents]) -> None:
        if contents and not self._recorded:
            self._record(contents)
            self._recorded = True


_METRIC: Final = "kzconsumer"


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
        observed = frame.observe(_METRIC, sql.collect_set(ACCOUNT).alias(ACCOUNT))
        return observed.where(sql.col("offset").isNotNull()).drop(ACCOUNT)

    def publish(self, ranges: Sequence[BatchRange], rate_limit: int | None) -> None:
        """Let the query find these ranges. `rate_limit`: bytes per second of all its tasks."""
        epochs = {part.range.topic_partition: part.leader_epoch for part in ranges}
        spans = [span for part in ranges for span in part.spans]
        tasks = self._session.sparkContext.defaultParallelism
        parts = tuple(split(spans, tasks, {part.range.topic_partition: part.weight for part in ranges}))
        rejected = {part.range.topic_partition: part.left_out for part in ranges}
        batch = PublishedBatch(
            parts=parts,
            tasks=min(tasks, len(parts)),
            epochs=tuple(epochs[part.topic_partition] for part in parts),
            left_out=tuple(_within(part, rejected[part.topic_partition]) for part in parts),
            brokers=self._brokers,
            kafka=replace(self._kafka, fetch=replace(self._kafka.fetch, rate_limit=rate_limit)),
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
