"""The data source `kzconsumer`: a streaming query of the user's own Spark as a member of a group, and batch reads.

Spark's driver has one Python process for `GroupStreamReader` as long as the query runs; `read` runs in executors, which
fetch from the partitions' leaders.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kzconsumer.brokers.protocol.list_offsets import LATEST
from kzconsumer.errors import ConfigError, OffsetLostError
from kzconsumer.logs.logger import get_logger
from kzconsumer_spark.executors.access import BrokerAccess
from kzconsumer_spark.executors.fetching import fetched, require_admission
from kzconsumer_spark.executors.source import RangePart
from kzconsumer_spark.pipe.kafka import Kafka
from kzconsumer_spark.ranges.spool_reader import SCHEMA
from kzconsumer_spark.source.batch_reader import GroupBatchReader
from kzconsumer_spark.source.brief import brief
from kzconsumer_spark.source.checkpoint_batch import of_checkpoint
from kzconsumer_spark.source.driver_readers import DriverReaders
from kzconsumer_spark.source.losses import left
from kzconsumer_spark.source.options import WHERE, SourceOptions, read_options, require_columns
from kzconsumer_spark.source.stream_offset import StreamOffset
from kzconsumer_spark.worker.kafka_registry import KafkaRegistry
from kzconsumer_spark.worker.range_stream import split

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    from pyspark import __version__

    raise ImportError(f"GroupSource needs PySpark 4.2 or newer, this is {__version__}") from None

if TYPE_CHECKING:
    from kzconsumer_spark.source.group_member import GroupMember

_HEADERS = ", headers "
_LEAVES_SECONDS = 5.0
"""What the reader of a stopped query may take beside `[stop] deadline`."""
_log = get_logger("kzconsumer.spark")


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Joins the group at the first call of `latestOffset`: what Spark has committed is known then."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = options.settings
        self._schema = schema
        self._columns = schema.names
        self._member: GroupMember | None = None
        self._readers = DriverReaders(self._settings)

    def initialOffset(self) -> dict[str, Any]:
        return StreamOffset(self._settings.group.id).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._settings.batch.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        wanted = msgspec.structs.replace(self._settings.subscription, stop_at=LATEST)
        self._settings = msgspec.structs.replace(self._settings, subscription=wanted)

    @brief
    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark has committed what ends at `start`: this is when it becomes the group's offset.

        The first call raises ConfigError for options of batch reads, ZooKeeperUnreachableError after 15 s,
        BrokersUnreachableError if TLS or SASL fails, or no broker answers where brokers report topics. It raises
        ConfigError, too, if another reader in this driver reads one of the topics for the same group.
        """
        if isinstance(limit, ReadAllAvailable):
            raise ConfigError([f"{WHERE}: trigger(once=True) is not supported, use trigger(availableNow=True)"])
        committed = StreamOffset.of_json(start, self._settings.group.id)
        if self._member is None:
            self._member = self._join(committed)
        return self._member.following(committed).as_json()

    @brief
    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        offset = StreamOffset.of_json(end, self._settings.group.id)
        ranges = offset.ranges
        if start == end or not ranges:
            return []
        registry = KafkaRegistry(Kafka.of(self._settings))
        if self._member is None:
            topics, starts = of_checkpoint(ranges, registry)
        else:  # its member has found the log where the batch begins
            topics, starts = registry.planned(ranges), {}
        found, lost = left(ranges, topics.gone, starts)
        for each in lost:
            if self._settings.offsets.reset == "fail":
                raise each.error()
            _log.error("records of a planned range are lost", **each.range._asdict(), reason=each.reason)
        access = BrokerAccess(registry.kafka, topics.brokers, topics.ids)
        policy = self._options.task_policy
        return [RangePart(part, access, offset.epoch(part), policy) for part in split(found, self._options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePart)
        try:
            for records in fetched(partition.part, partition.access, partition.epoch, partition.policy):
                yield records.select(self._columns)
        except OffsetLostError as error:
            way_out = "start the query again: [offsets] reset decides. If the log was truncated, use another checkpoint"
            raise OffsetLostError(f"{error}; {way_out}") from None

    def stop(self) -> None:
        if self._member is not None:
            self._member.leave()
        self._readers.leave()

    def _join(self, offset: StreamOffset) -> GroupMember:
        # Loaded here: tasks and `load()` need no member.
        from kzconsumer.logs.setup import configure
        from kzconsumer_spark.source.group_member import GroupMember

        self._options.require_streaming()
        require_columns(self._schema)
        self._readers.enter(self._settings.stop.deadline + _LEAVES_SECONDS)
        configure(self._settings.log.level, self._settings.log.format)
        # A member waits for servers, also at a wrong address or with a wrong password.
        registry = KafkaRegistry(Kafka.of(self._settings))
        require_admission(BrokerAccess(registry.kafka, registry.reachable()))
        member = GroupMember(self._settings, offset, self._options.least)
        if threading.current_thread() is threading.main_thread():
            # When a query stops, Spark sends SIGTERM, and closes the connection, upon which `stop` is called.
            signal.signal(signal.SIGTERM, lambda *_: member.interrupt())
        return member


class GroupSource(DataSource):
    """`spark.dataSource.register(GroupSource)`, then `spark.readStream.format("kzconsumer")`, or `spark.read`."""

    @brief
    def __init__(self, options: dict[str, str]) -> None:
        """Raises ConfigError."""
        super().__init__(options)
        self._read = read_options(dict(self.options))

    @classmethod
    def name(cls) -> str:
        return "kzconsumer"

    def schema(self) -> str:
        return SCHEMA if self._read.headers else SCHEMA.partition(_HEADERS)[0]

    @brief
    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises ConfigError."""
        self._read.require_batch()
        require_columns(schema)
        return GroupBatchReader(self._read, schema.names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        # An error here would be followed by one of Spark 4.3, which stops the reader that it has not got.
        return GroupStreamReader(self._read, schema)
