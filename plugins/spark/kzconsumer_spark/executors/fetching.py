"""The task of an executor: fetches a part of a range from the leader, as Arrow record batches for Spark."""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import start_blocking_portal
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kzconsumer.brokers.protocol.error_codes import may_pass
from kzconsumer.dead_letter import DeadLetter
from kzconsumer.display import some
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    RecordRejectedError,
    UnusableBatchError,
)
from kzconsumer.fetcher.delivery import CorruptPolicy
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange, TopicPartition, count_offsets
from kzconsumer.plugins import require_extra
from kzconsumer.records.columns import messages
from kzconsumer.registry.claim_record import Spans, offset_list, offsets_in, spans_of
from kzconsumer.registry.cluster import bootstrap
from kzconsumer.rejected import LetterBox, LetterFiles, LetterTopic
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer.sinks.interface import Rejected
from kzconsumer_files.parquet import NO_TIME, UNSTORABLE, spark_columns, without_time
from kzconsumer_spark.executors.accounts import COLUMN, PartReading
from kzconsumer_spark.executors.broker_access import BrokerAccess, PlannedBrokers
from kzconsumer_spark.pipe.messages import Kafka
from kzconsumer_spark.ranges.batch import SCHEMA

# Records whose timestamp Spark cannot hold, as tasks meet them.
#
# A task of the sink names them, and the member decides about them. A task of the source has no member at hand: it
# carries out `[rejected]` itself.

MOST_NAMED: Final = 1000
"""Records by which one task fails; the others are named by the next one."""


_SPANS: Final = 20
"""Of offsets, in one line of an executor's log."""


class NotStorableError(Exception):
    """Some records of a part of a range. The text, in one line, is for `rejected_in`."""

    def __init__(self, part: OffsetRange, offsets: Sequence[int]) -> None:
        spans = spans_of(offsets[:MOST_NAMED])
        said = part.topic, part.partition, part.first, offset_list(spans, part.first)
        super().__init__(msgspec.json.encode(said).decode())


def rejected_in(text: str) -> tuple[Rejected, ...]:
    """The records of a NotStorableError."""
    topic, partition, first, offsets = msgspec.json.decode(text, type=tuple[str, int, int, str])
    found = (offset for begin, until in offsets_in(offsets, first) for offset in range(begin, until))
    return tuple(Rejected(topic, partition, offset, NO_TIME, UNSTORABLE) for offset in found)


class TaskPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """`[rejected]` of `group`, for the tasks of a source.

    Dead letters go to a topic of the same cluster, or to a directory that executors have.
    """

    rejected: RejectedSettings
    group: str

    def settle(self, records: pa.RecordBatch, offsets: Sequence[int], access: BrokerAccess) -> pa.RecordBatch:
        """The other records, once those at `offsets` are dead letters or skipped. Blocks.

        A task that Spark repeats writes its letters again. Raises RecordRejectedError, KzConsumerError if letters
        cannot be written.
        """
        policy = self.rejected.of(UNSTORABLE)
        is_bad = pc.is_in(records.column("offset"), pa.array(offsets, pa.int64()))
        bad = list(messages(records.filter(is_bad)))
        if policy == "fail":
            first = bad[0]
            raise RecordRejectedError(first.topic, first.partition, first.offset, UNSTORABLE, NO_TIME)
        if policy == "dead-letter":
            anyio.run(self._write, [DeadLetter(each, UNSTORABLE, NO_TIME, self.group) for each in bad], access)
        spans = [f"{first} to {until - 1}" if until - first > 1 else f"{first}" for first, until in spans_of(offsets)]
        where = f"{bad[0].topic}-{bad[0].partition} at offset {some(spans, _SPANS)}"
        print(f"kzconsumer: rejected, {policy}: {where}: {NO_TIME}", file=sys.stderr)
        return records.filter(pc.invert(is_bad))

    async def _write(self, letters: Sequence[DeadLetter], access: BrokerAccess) -> None:
        async with self._letter_box(access) as box:
            await box.write(letters)

    @asynccontextmanager
    async def _letter_box(self, access: BrokerAccess) -> AsyncIterator[LetterBox]:
        topic, directory, timeout = self.rejected.topic, self.rejected.directory, access.fetch.request_timeout
        if topic is None:
            assert directory is not None  # checked by the settings
            with closing(LetterFiles(Path(directory), self.rejected.file_bytes)) as files:
                yield files
            return
        require_extra(f"{socket.gethostname()}: [rejected] topic", "dead-letter", "confluent_kafka")
        async with access.connections() as brokers:
            addresses = partial(bootstrap, PlannedBrokers(access.brokers), brokers)
            with (
                access.settings() as settings,
                closing(LetterTopic(topic, settings, self.group, timeout, addresses)) as letters,
            ):
                yield letters


class CorruptPartError(Exception):
    """A batch of a part cannot be used, and the member decides about it. The text, in one line, is for `corrupt_in`."""

    def __init__(self, span: OffsetRange) -> None:
        super().__init__(msgspec.json.encode(span).decode())


def corrupt_in(text: str) -> OffsetRange:
    """From the batch of a CorruptPartError to the end of the part."""
    return msgspec.json.decode(text, type=OffsetRange)


_Found = AsyncGenerator[tuple[TopicPartition, pa.RecordBatch]]


class BrokersOutageError(Exception):
    """Brokers did not answer, or none led the partition: the same fetch may succeed later."""


def fetched(
    part: OffsetRange,
    access: BrokerAccess,
    epoch: int = -1,
    policy: TaskPolicy | None = None,
    reading: PartReading | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record of the range, with the columns of `ranges.batch.SCHEMA`. Blocks.

    `reading` counts them, and takes out those that are rejected already. `epoch`: of the partition's leader when the
    range was planned, -1 if that is unknown. `policy` is for records whose timestamp Spark cannot hold: its errors are
    raised, or NotStorableError without one. With it, `[fetch] on_corrupt` is carried out here; without it, unless that
    is "fail", CorruptPartError is raised.
    Raises BrokersOutageError, and as `RangeReader.read` for everything else; also if TLS or SASL failed.
    """
    named: list[int] = []
    if part.first >= part.until:
        return
    epochs = {part.topic_partition: epoch} if epoch >= 0 else {}
    made = _reader(access, epochs, None if policy is None else CorruptPolicy(access.fetch))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made) as reader:
        found = reader.read([part])
        try:
            while len(named) < MOST_NAMED and (batch := portal.call(_following, found)) is not None:
                batch = batch if reading is None else reading.take(batch)
                bad = without_time(batch)
                if bad and policy is not None:
                    batch = policy.settle(batch, bad, access)
                else:
                    named += bad
                if not named and batch.num_rows:
                    yield spark_columns(batch)
        except UnusableBatchError as error:
            if policy is not None or access.fetch.on_corrupt == "fail":
                raise
            raise CorruptPartError(part._replace(first=error.offset)) from None
        finally:
            portal.call(found.aclose)
    if named:
        raise NotStorableError(part, named)
    if TaskContext.get() is not None:
        _exempt_modules()


@cache
def _exempt_modules() -> None:
    """PySpark's worker collects garbage after each task; it need not look at what was imported for the first one."""
    gc.collect()
    gc.freeze()


def require_admission(access: BrokerAccess) -> None:
    """Raises BrokersUnreachableError if TLS or SASL fails with the brokers, and not if none answers. Blocks."""
    with suppress(BrokersOutageError):
        anyio.run(_reach, access)


async def _reach(access: BrokerAccess) -> None:
    async with _reader(access) as reader:
        await reader.by_leader(())


def log_starts(partitions: Collection[TopicPartition], access: BrokerAccess) -> dict[TopicPartition, int]:
    """The first offset of each log. Blocks. Raises as `fetched`."""
    return anyio.run(_log_starts, partitions, access) if partitions else {}


async def _log_starts(partitions: Collection[TopicPartition], access: BrokerAccess) -> dict[TopicPartition, int]:
    async with _reader(access) as reader:
        return {each: first for each, (first, _) in (await reader.logs(partitions)).items()}


@asynccontextmanager
async def _reader(
    access: BrokerAccess,
    epochs: Mapping[TopicPartition, int] | None = None,
    on_corrupt: CorruptPolicy | None = None,
) -> AsyncIterator[RangeReader]:
    async with access.connections() as brokers:
        try:
            yield RangeReader(
                access.fetch,
                PlannedBrokers(access.brokers),
                brokers,
                access.ids,
                epochs,
                on_corrupt=on_corrupt,
                rate_limit=access.rate_limit,
            )
        except (BrokersUnreachableError, ConnectionLostError, BrokerError) as error:
            if brokers.refused or (isinstance(error, BrokerError) and not may_pass(error)):
                raise
            raise BrokersOutageError(str(error)) from None


async def _following(found: _Found) -> pa.RecordBatch | None:
    async for _, batch in found:
        return batch
    return None


# The source of the streaming query whose executors fetch: a Python data source that delivers exactly published
# ranges.
#
# The worker publishes each batch as a small file, which appears by one rename. Spark's driver has a process of its
# own for `RangeStreamReader`, which waits for the file and makes input partitions of it; `read` runs in the
# executors.

NAME: Final = "kzconsumer-planned-ranges"
_WAIT_SECONDS: Final = 0.5  # a query that is stopped waits for `latestOffset`
_LOOK_SECONDS: Final = 0.01


class PublishedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fetched, by one task for each part, and how.

    `epochs`: the leader epoch of each part; `left_out`: its records that are rejected. At most `tasks` run at a time.
    """

    parts: tuple[OffsetRange, ...]
    tasks: int
    epochs: tuple[int, ...]
    left_out: tuple[Spans, ...]
    brokers: tuple[Broker, ...]
    kafka: Kafka


class PublishedBatches:
    """The directory with the batches of one query. `publish` makes one visible, and removes the one before the last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, number: int, batch: PublishedBatch) -> None:
        staged = self._path / "next"
        staged.write_bytes(msgspec.json.encode(batch))
        staged.rename(self._file(number))
        self._file(number - 2).unlink(missing_ok=True)

    def has(self, number: int) -> bool:
        return self._file(number).exists()

    def read(self, number: int) -> PublishedBatch:
        return msgspec.json.decode(self._file(number).read_bytes(), type=PublishedBatch)

    def _file(self, number: int) -> Path:
        return self._path / f"{number}.json"


class RangePart(InputPartition):
    """What one task fetches. Pickled for it; its text is without secrets."""

    def __init__(
        self,
        part: OffsetRange,
        access: BrokerAccess,
        epoch: int = -1,
        policy: TaskPolicy | None = None,
        left_out: Spans = (),
    ) -> None:
        """`epoch`, `policy`: see `fetched`; `left_out`: see `PartReading`."""
        super().__init__(None)
        self.part = part
        self.access = access
        self.epoch = epoch
        self.policy = policy
        self.left_out = left_out

    def __repr__(self) -> str:
        return f"RangePart({self.part})"


class RangeStreamReader(DataSourceStreamReader):
    """An offset is the number of a batch; those of a query go up by one, from 0 on."""

    def __init__(self, path: Path) -> None:
        self._batches = PublishedBatches(path)
        self._latest = -1

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": self._latest}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # without a limit
        until = time.monotonic() + _WAIT_SECONDS
        while not self._batches.has(self._latest + 1) and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
        self._latest += self._batches.has(self._latest + 1)
        return {"batch": self._latest}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        batch = self._batches.read(end["batch"])
        access = BrokerAccess(batch.kafka, batch.brokers, tasks=batch.tasks)
        parts = zip(batch.parts, batch.epochs, batch.left_out, strict=True)
        return [RangePart(part, access, epoch, left_out=left_out) for part, epoch, left_out in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePart)
        reading = PartReading(partition.part, partition.left_out)
        return reading.with_account(fetched(partition.part, partition.access, partition.epoch, reading=reading))


class RangeSource(DataSource):
    """Its only option is shown on Spark's pages: `path`, the directory of the published batches."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return f"{SCHEMA}, {COLUMN} string"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return RangeStreamReader(Path(self.options["path"]))


FEWEST_OFFSETS: Final = 10_000
"""Of a part: a task costs some milliseconds."""


def split(ranges: list[OffsetRange], tasks: int) -> Iterator[OffsetRange]:
    """Parts of about the same size, as many as there are tasks at a time if the ranges are large enough."""
    size = max(-(-count_offsets(ranges) // tasks), FEWEST_OFFSETS)
    for each in ranges:
        pieces = max(-(-(each.until - each.first) // size), 1)
        bounds = [each.first + (each.until - each.first) * n // pieces for n in range(pieces + 1)]
        for first, until in pairwise(bounds):
            yield each._replace(first=first, until=until)
