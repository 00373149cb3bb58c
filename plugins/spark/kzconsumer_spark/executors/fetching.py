"""The task of an executor: fetches a part of a range from the leader, as Arrow record batches for Spark."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache

import anyio
import pyarrow as pa
from anyio.from_thread import start_blocking_portal
from pyspark import TaskContext

from kzconsumer.errors import BrokerError, BrokersUnreachableError, ConnectionLostError
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer_files.parquet.records import spark_columns, without_time
from kzconsumer_spark.executors.access import BrokerAccess, PlannedBrokers
from kzconsumer_spark.executors.accounts import PartReading
from kzconsumer_spark.executors.timestamps import MOST_NAMED, NotStorableError, TaskPolicy

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
    """Every record of the range, with the columns of the spool. Blocks.

    `reading` counts them, and takes out those that are rejected already. `epoch`: of the partition's leader when the
    range was planned, -1 if that is unknown. `policy` is for records whose timestamp Spark cannot hold: its errors are
    raised, or NotStorableError without one.
    Raises BrokersOutageError, and as `RangeReader.read` for everything else; also if TLS or SASL failed.
    """
    named: list[int] = []
    if part.first >= part.until:
        return
    epochs = {part.topic_partition: epoch} if epoch >= 0 else {}
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(_reader(access, epochs)) as reader:
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
    access: BrokerAccess, epochs: Mapping[TopicPartition, int] | None = None
) -> AsyncIterator[RangeReader]:
    async with access.connections() as brokers:
        try:
            yield RangeReader(access.fetch, PlannedBrokers(access.brokers), brokers, access.ids, epochs)
        except (BrokersUnreachableError, ConnectionLostError, BrokerError) as error:
            if brokers.refused or (isinstance(error, BrokerError) and not error.refresh_metadata):
                raise
            raise BrokersOutageError(str(error)) from None


async def _following(found: _Found) -> pa.RecordBatch | None:
    async for _, batch in found:
        return batch
    return None
