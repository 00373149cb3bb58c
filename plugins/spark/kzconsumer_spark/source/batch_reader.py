"""`spark.read.format("kzconsumer")`: the records between two bounds. No group is joined, and nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from kzconsumer_spark.executors.access import BrokerAccess
from kzconsumer_spark.executors.fetching import fetched
from kzconsumer_spark.executors.source import RangePart
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.source.bounds import ranges_between
from kzconsumer_spark.source.brief import brief
from kzconsumer_spark.source.options import SourceOptions
from kzconsumer_spark.worker.range_stream import split


class GroupBatchReader(DataSourceReader):
    """`partitions` runs at the driver, once for each read; `read` in executors."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = list(columns)

    @brief
    def partitions(self) -> Sequence[InputPartition]:
        settings = self._options.settings
        kafka = Kafka.of(settings)
        found = ranges_between(settings, self._options.bounds)
        access = BrokerAccess(kafka, found.brokers, found.ids)
        policy = self._options.task_policy
        return [
            RangePart(part, access, found.epochs.get(part.topic_partition, -1), policy)
            for part in split(found.ranges, self._options.tasks)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangePart):  # Spark makes a partition of its own if there is none
            for records in fetched(partition.part, partition.access, partition.epoch, partition.policy):
                yield records.select(self._columns)
