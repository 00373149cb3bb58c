"""The task of an executor: fetches a part of a range from the leader, as Arrow record batches, and accounts for it."""

from __future__ import annotations

import gc
import socket
import struct
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import cache, partial
from pathlib import Path
from typing import Final

import anyio
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from anyio.from_thread import start_blocking_portal
from pyspark import TaskContext

from kzconsumer.brokers.protocol.error_codes import may_pass
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.display import some
from kzconsumer.errors import (
    BrokerError,
    BrokersUnreachableError,
    ConnectionLostError,
    RecordRejectedError,
    UnusableBatchError,
)
from kzconsumer.fetcher.corrupt_batches import CorruptPolicy
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.plugins import require_extra
from kzconsumer.records.checksums import Contents
from kzconsumer.records.columns import messages
from kzconsumer.registry.claim_record import Spans, offset_list, offsets_in, spans_of
from kzconsumer.registry.cluster import bootstrap
from kzconsumer.rejected import LetterBox, LetterFiles, LetterTopic
from kzconsumer.settings.sections import RejectedSettings
from kzconsumer.sinks.interface import Rejected
from kzconsumer_files.parquet import NO_TIME, UNSTORABLE, row_of_nulls, spark_columns, without_time
from kzconsumer_spark.executors.broker_access import BrokerAccess, PlannedBrokers
from kzconsumer_spark.ranges.batch import ACCOUNT, PartsRead

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
    parts: Sequence[OffsetRange],
    access: BrokerAccess,
    epochs: Mapping[TopicPartition, int] = {},
    policy: TaskPolicy | None = None,
    reading: PartReading | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every record of parts of different partitions, with the columns of `ranges.batch.SCHEMA`. Blocks.

    `epochs`: of the leaders when the ranges were planned, where they are known. Without `policy` there is one part.
    `reading` counts its records, and takes out those that are rejected already. `policy` is for records whose timestamp
    Spark cannot hold: its errors are raised, or NotStorableError without one. With it, `[fetch] on_corrupt` is carried
    out here; without it, unless that is "fail", CorruptPartError is raised.
    Raises BrokersOutageError, and as `RangeReader.read` for everything else; also if TLS or SASL failed.
    """
    named: list[int] = []
    if all(part.first >= part.until for part in parts):
        return
    made = _reader(access, epochs, None if policy is None else CorruptPolicy(access.fetch))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(made) as reader:
        found = reader.read(parts)
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
            raise CorruptPartError(parts[0]._replace(first=error.offset)) from None
        finally:
            portal.call(found.aclose)
    if named:
        raise NotStorableError(parts[0], named)
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


# What a task has read of a range: its report to the driver, which adds up the parts.
#
# On the driver's machine a task adds a line to the file of accounts beside the batch, before Spark learns that the task
# has no more rows. Elsewhere a task can deliver nothing but rows, so its account is one: in column `ACCOUNT` of the
# last record, which is null in all others; a part without records has a row that is null but for it. That column, and
# Spark's look at each of its values, take a fourth of the processor time of Spark's tasks at 100 B a record.
#
# Of a task that fails while it reads, or is cut short, no account arrives. Of one that Spark repeats or runs twice it
# arrives twice, and both say the same, unless the log has changed in between.


class NotWholeError(Exception):
    """The tasks of a batch have not accounted for the whole of its ranges, or not for the same records twice."""


class PartAccount(msgspec.Struct, frozen=True, array_like=True):
    """A part of a range, every offset of which is accounted for, and its records: `rejected` of them were left out."""

    topic: str
    partition: int
    first: int
    until: int
    contents: Contents
    rejected: int = 0

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)


class PartReading:
    """In a task: counts what is read of `part`. The records at `left_out` are rejected, and not delivered."""

    def __init__(self, part: OffsetRange, left_out: Spans = ()) -> None:
        self._part = part
        self._left_out = [offset for first, until in left_out for offset in range(first, until)]
        self._contents = Contents()
        self._rejected = 0

    def take(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records to be delivered, of those that come next."""
        self._contents = self._contents.then(records)
        if not self._left_out:
            return records
        rejected = pc.is_in(records.column("offset"), pa.array(self._left_out, pa.int64()))
        kept = records.filter(pc.invert(rejected))
        self._rejected += records.num_rows - kept.num_rows
        return kept

    def with_account(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of what was taken, with column `ACCOUNT`, once they end without an error."""
        last = None
        for batch in batches:
            if last is not None:
                yield _with(last, None)
            last = batch
        yield _with(last if last is not None else row_of_nulls(), self._account().decode())

    def noting_account(self, batches: Iterable[pa.RecordBatch], file: Path) -> Iterator[pa.RecordBatch]:
        """The batches of what was taken; once they end without an error, a line more is in the file. Raises OSError."""
        yield from batches
        with file.open("ab") as accounts:  # with one call: tasks of other processes append to it as well
            accounts.write(self._account() + b"\n")

    def _account(self) -> bytes:
        return msgspec.json.encode(PartAccount(*self._part, self._contents, self._rejected))


def _with(batch: pa.RecordBatch, account: str | None) -> pa.RecordBatch:
    accounts = pa.nulls(batch.num_rows, pa.string())
    if account is not None:
        text = account.encode()
        ends = pa.py_buffer(struct.pack("=ii", 0, len(text)))
        accounts = pa.concat_arrays([accounts[1:], pa.StringArray.from_buffers(1, ends, pa.py_buffer(text))])
    return pa.RecordBatch.from_arrays([*batch.columns, accounts], [*batch.schema.names, ACCOUNT])


def part_accounts(texts: Iterable[str]) -> list[PartAccount]:
    """The reports of tasks, decoded."""
    return [msgspec.json.decode(text, type=PartAccount) for text in texts]


def whole(spans: Iterable[OffsetRange], accounts: Iterable[PartAccount]) -> Mapping[TopicPartition, PartsRead]:
    """What was read of each partition, if tasks have accounted for each offset of the spans, and for no others.

    Raises NotWholeError.
    """
    parts: dict[tuple[TopicPartition, int], PartAccount] = {}
    for each in accounts:
        known = parts.setdefault((each.range.topic_partition, each.first), each)
        if known != each:
            raise NotWholeError(
                f"{each.range} was read twice, and changed in between: {known.contents.records} records (checksum "
                f"{known.contents.checksum}) of {known.range}, {each.contents.records} ({each.contents.checksum})"
            )
    found: dict[TopicPartition, PartsRead] = {}
    for span in spans:
        partition, at = span.topic_partition, span.first
        while at < span.until:
            part = parts.pop((partition, at), None)
            if part is None or part.until > span.until:
                raise NotWholeError(f"{span}: no task has accounted for the offsets from {at} on")
            before = found.get(partition, PartsRead())
            found[partition] = PartsRead(before.contents.joined(part.contents), before.rejected + part.rejected)
            at = part.until
    if parts:
        raise NotWholeError(f"{next(iter(parts.values())).range} was read, and is no part of the batch")
    return found
