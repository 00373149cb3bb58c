"""The data source `kzconsumer`: a streaming query of the user's own Spark as a member of a group, and batch reads.

Spark's driver has one Python process for `GroupStreamReader` as long as the query runs; `read` runs in executors, which
fetch from the partitions' leaders.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kzconsumer.brokers.protocol.log_reads import LATEST
from kzconsumer.errors import ConfigError, KzConsumerError, OffsetLostError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import BrokersOutageError, fetched, log_starts, require_admission
from kzconsumer_spark.executors.planned_topics import KafkaRegistry, PlannedTopics
from kzconsumer_spark.executors.task_parts import RangeParts, task_ranges
from kzconsumer_spark.ranges.batch import SCHEMA
from kzconsumer_spark.source.query_member import DriverReaders
from kzconsumer_spark.source.source_options import WHERE, SourceOptions, ranges_between, read_options, require_columns
from kzconsumer_spark.source.stream_offset import StreamOffset
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka

if TYPE_CHECKING:
    from kzconsumer_spark.source.query_member import QueryMember


# Spark shows the traceback of whatever a source raises: errors of this package are shown without its frames.

P = ParamSpec("P")
T = TypeVar("T")


def brief(function: Callable[P, T]) -> Callable[P, T]:
    """The same function. The traceback of a KzConsumerError, whose text says all, begins and ends with its call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KzConsumerError as error:
            raise error.with_traceback(None) from None

    return call


# `spark.read.format("kzconsumer")`: the records between two bounds. No group is joined, and nothing is committed.


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
        tasks = task_ranges(found.ranges, self._options.tasks, {})
        access = BrokerAccess(kafka, found.brokers, found.ids, len(tasks))
        policy = self._options.task_policy
        return [RangeParts(parts, access, _of(parts, found.epochs), policy) for parts in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, RangeParts):  # Spark makes a partition of its own if there is none
            for records in fetched(partition.parts, partition.access, partition.epochs, partition.policy):
                yield records.select(self._columns)


def _of(parts: Iterable[OffsetRange], epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {part.topic_partition: epochs.get(part.topic_partition, -1) for part in parts}


# A batch of the checkpoint, which may have been planned long ago: where the logs of its partitions begin now.
#
# It is delivered as it was planned, or not yet: a sink that has it already skips it by its number, so the partitions
# without a leader cannot follow in another batch.

_PAUSE_SECONDS: Final = 1.0
_log = get_logger("kzconsumer.spark")


def of_checkpoint(
    ranges: Collection[RangeIdentity], registry: KafkaRegistry
) -> tuple[PlannedTopics, Mapping[TopicPartition, int]]:
    """What the cluster has of the topics, and the first offsets of the logs of those that are there.

    Waits for the leaders of the partitions. Raises as `KafkaRegistry`, and as `log_starts` for errors that last.
    """
    parent = os.getppid()
    while True:
        topics = registry.planned(ranges)
        there = {part.topic_partition for part in ranges if (part.topic, part.incarnation) not in topics.gone}
        try:
            return topics, log_starts(there, BrokerAccess(registry.kafka, topics.brokers, topics.ids))
        except BrokersOutageError as error:
            reason = f"{error}; if the topic was deleted for good, use another checkpoint"
            _log.warning("batch of the checkpoint waits for leaders", reason=reason, again=True)
        if os.getppid() != parent:
            raise SystemExit("Spark's driver has ended")
        time.sleep(_PAUSE_SECONDS)


# What is left of planned ranges: a topic may have been deleted since, and a log may have lost its beginning.


class Loss(NamedTuple):
    range: OffsetRange
    reason: str

    def error(self) -> OffsetLostError:
        """If `[offsets] reset` is "fail"."""
        way_out = 'Set [offsets] reset = "smallest" to go on without them'
        return OffsetLostError(f"{self.range} is planned and not committed, and {self.reason}. {way_out}")


def left(
    ranges: Iterable[RangeIdentity], gone: Mapping[tuple[str, int], str], starts: Mapping[TopicPartition, int]
) -> tuple[list[OffsetRange], list[Loss]]:
    """What can be read of the ranges, and what cannot.

    `gone`: see `PlannedTopics`; `starts`: the first offsets of the logs that were looked up.
    """
    found, lost = [], []
    for part in ranges:
        whole = OffsetRange(part.topic, part.partition, part.first, part.until)
        start = max(part.first, min(starts.get(whole.topic_partition, 0), part.until))
        if reason := gone.get((part.topic, part.incarnation)):
            lost.append(Loss(whole, reason))
            continue
        if part.first < start:
            lost.append(Loss(whole._replace(until=start), "retention has removed them from the log"))
        if start < part.until:
            found.append(whole._replace(first=start))
    return found, lost


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:
    from pyspark import __version__

    raise ImportError(f"GroupSource needs PySpark 4.2 or newer, this is {__version__}") from None


_HEADERS = ", headers "
_LEAVES_SECONDS = 5.0
"""What the reader of a stopped query may take beside `[stop] deadline`."""


class GroupStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Joins the group at the first call of `latestOffset`: what Spark has committed is known then."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = options.settings
        self._schema = schema
        self._columns = schema.names
        self._member: QueryMember | None = None
        self._readers = DriverReaders(self._settings)

    def initialOffset(self) -> dict[str, Any]:
        return StreamOffset(self._settings.group.id).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._settings.batch.most("ranges")[0])

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
        weights = {part.topic_partition: offset.weights.get(str(part.topic_partition), 0.0) for part in found}
        tasks = task_ranges(found, self._options.tasks, weights)
        access = BrokerAccess(registry.kafka, topics.brokers, topics.ids, len(tasks))
        policy = self._options.task_policy
        epochs = {part.topic_partition: offset.epoch(part) for part in found}
        return [RangeParts(parts, access, _of(parts, epochs), policy) for parts in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangeParts)
        try:
            for records in fetched(partition.parts, partition.access, partition.epochs, partition.policy):
                yield records.select(self._columns)
        except OffsetLostError as error:
            way_out = "start the query again: [offsets] reset decides. If the log was truncated, use another checkpoint"
            raise OffsetLostError(f"{error}; {way_out}") from None

    def stop(self) -> None:
        if self._member is not None:
            self._member.leave()
        self._readers.leave()

    def _join(self, offset: StreamOffset) -> QueryMember:
        # Loaded here: tasks and `load()` need no member.
        from kzconsumer.logs.setup import configure
        from kzconsumer_spark.source.query_member import QueryMember

        self._options.require_streaming()
        require_columns(self._schema)
        self._readers.enter(self._settings.stop.deadline + _LEAVES_SECONDS)
        configure(self._settings.log.level, self._settings.log.format)
        # A member waits for servers, also at a wrong address or with a wrong password.
        registry = KafkaRegistry(Kafka.of(self._settings))
        require_admission(BrokerAccess(registry.kafka, registry.reachable()))
        member = QueryMember(self._settings, offset, self._options.least)
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
