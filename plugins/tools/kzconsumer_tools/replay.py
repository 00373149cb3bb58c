"""Replay: writes ranges of a log into another target of the same sink, without a group.

It can be stopped at any moment and started again: ranges in the target's ledger are skipped, so nothing is duplicated.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Protocol

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.errors import KzConsumerError, NotDoneError, SinkError
from kzconsumer.fetcher.range_reader import ClusterReader, RangeReader
from kzconsumer.model import OffsetRange, TopicPartition, count_offsets
from kzconsumer.own_files import ProcessLock, own_directory
from kzconsumer.records.forms import ColumnRecords, Unfetched
from kzconsumer.registry.claim_record import spans_of
from kzconsumer.settings.sections import BatchSettings
from kzconsumer.sinks.interface import Accountable, Batch, RangeData, RecordsRejectedError, Sink

if TYPE_CHECKING:
    import pyarrow as pa

LEASE = 5.0
"""Seconds for which a replay's sink may still publish after it was last alive."""
# A database ends the transactions of a dead replay in this time; only then the ledger is complete.
SETTLED = LEASE + 10.0


class ReplayableSink(Sink, Accountable, Protocol):
    """The methods that a replay needs."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """`offsets`: requested, of which the ledger had `there`; `records`: written, in `ranges`.

    Of a sink that fetches for itself, records are offsets.

    `rejected` records were left out, since the sink cannot write them.
    """

    destination: str
    partitions: int
    offsets: int
    there: int
    ranges: int
    records: int
    rejected: int


def safe_until() -> float:
    """The lease of a replay's sink."""
    return now() + LEASE


@contextmanager
def alone(cluster: str, group: str) -> Iterator[float]:
    """Lock out other replays of the group on this machine; yields the time. Raises NotDoneError if there is one."""
    name = hashlib.blake2b(msgspec.json.encode([cluster, group]), digest_size=8).hexdigest()
    try:
        path = own_directory("tools") / f"replay-{name}.lock"
        lock = ProcessLock.take(path)
    except OSError as error:
        raise NotDoneError(f"no lock against other replays: {error}") from error
    if lock is None:
        raise NotDoneError(f"another replay of group {group} is running on this machine ({path} is locked)")
    try:
        yield now()
    finally:
        lock.release()


async def replay(
    reader: ClusterReader,
    sink: ReplayableSink,
    wanted: Collection[OffsetRange],
    incarnations: Mapping[str, int],
    limits: BatchSettings,
    since: float,
    show: Callable[[int, int], None],
) -> Replayed:
    """Write the missing offsets of `wanted`. `since`: from `alone`; `show` is called with offsets done and total.

    Raises SinkError, what `reader.read` raises, and OffsetLostError if a topic was created again.
    """
    async with _opened(sink):
        await anyio.sleep(max(0.0, since + SETTLED - now()))
        held = await sink.holdings(count_rows=False)
        runs = (run for each in held.ranges for run in each.runs)
        there = {run for run in runs if incarnations.get(run.topic) == run.incarnation}
        left = remaining(wanted, (OffsetRange(*each[:2], each.first, each.until) for each in there))
        total, open_offsets = count_offsets(wanted), count_offsets(left)
        show(total - open_offsets, total)
        done = total - open_offsets
        ranges = records = rejected = 0
        fetches = getattr(sink, "wants", "columns") == "ranges"
        batches = _unfetched(left, incarnations, limits) if fetches else _batches(reader, left, incarnations, limits)
        async for batch in batches:
            if not fetches:  # see `RangePlans.begin`
                await reader.require_same({part.topic: part.incarnation for part in batch.ranges})
            with _mapped():
                written = await _written(sink, batch)
            ranges += len(written.ranges)
            records += written.records
            rejected += batch.records - written.records
            done += count_offsets(part.range for part in batch.ranges)
            show(done, total)
        show(total, total)
    return Replayed(
        destination=held.destination,
        partitions=len({each.topic_partition for each in wanted}),
        offsets=total,
        there=total - open_offsets,
        ranges=ranges,
        records=records,
        rejected=rejected,
    )


async def _written(sink: ReplayableSink, batch: Batch) -> Batch:
    """The part of the batch that is written: without the records that the sink rejects."""
    while batch.ranges:
        try:
            await sink.write(batch)
        except RecordsRejectedError as error:
            offsets: dict[TopicPartition, list[int]] = {}
            for each in error.records:
                offsets.setdefault(TopicPartition(each.topic, each.partition), []).append(each.offset)
            parts = (part.without(spans_of(offsets.get(part.topic_partition, ()))) for part in batch.ranges)
            batch = Batch(tuple(part for part in parts if part.records))
        else:
            break
    return batch


class _Part(msgspec.Struct):
    first: int
    batches: list[pa.RecordBatch] = msgspec.field(default_factory=list)
    until: int = 0


async def _batches(
    reader: RangeReader, left: list[OffsetRange], incarnations: Mapping[str, int], limits: BatchSettings
) -> AsyncIterator[Batch]:
    """Batches within the limits of `[batch]`. Offsets without records are skipped; another start reads them again."""
    most_records, most_bytes = limits.most("columns")
    # One range of each partition at a time: a batch never has two ranges of one partition.
    while left:
        turn = list({each.topic_partition: each for each in reversed(left)}.values())
        left = [each for each in left if each not in turn]
        parts: dict[TopicPartition, _Part] = {}
        at = {each.topic_partition: each.first for each in turn}
        records = size = 0
        async for partition, batch in reader.read(turn):
            part = parts.setdefault(partition, _Part(at[partition]))
            part.batches.append(batch)
            part.until = at[partition] = batch.column("offset")[-1].as_py() + 1
            records += batch.num_rows
            size += batch.nbytes
            if records >= most_records or size >= most_bytes:
                yield _batch(parts, incarnations)
                parts, records, size = {}, 0, 0
        if parts:
            yield _batch(parts, incarnations)


async def _unfetched(
    left: list[OffsetRange], incarnations: Mapping[str, int], limits: BatchSettings
) -> AsyncIterator[Batch]:
    """Batches of a sink that fetches for itself."""
    while left:
        turn = {each.topic_partition: each for each in reversed(left)}
        most = max(limits.most("ranges")[0] // len(turn), 1)
        ends = {each: min(each.first + most, each.until) for each in turn.values()}
        yield Batch(tuple(_range(part._replace(until=end), (), incarnations) for part, end in ends.items()))
        left = [each._replace(first=ends.get(each, each.first)) for each in left if ends.get(each) != each.until]


def _range(part: OffsetRange, batches: Sequence[pa.RecordBatch], incarnations: Mapping[str, int]) -> RangeData:
    pieces = tuple(map(ColumnRecords, batches)) or (Unfetched(part.first, part.until),)
    incarnation = incarnations[part.topic]
    return RangeData(**part._asdict(), pieces=pieces, incarnation=incarnation, epoch=0)


def _batch(parts: Mapping[TopicPartition, _Part], incarnations: Mapping[str, int]) -> Batch:
    return Batch(
        tuple(
            _range(OffsetRange(*partition, part.first, part.until), part.batches, incarnations)
            for partition, part in parts.items()
        )
    )


@asynccontextmanager
async def _opened(sink: ReplayableSink) -> AsyncIterator[None]:
    with _mapped():
        await sink.__aenter__()
    try:
        yield
    except BaseException as error:
        await sink.__aexit__(type(error), error, error.__traceback__)
        raise
    with _mapped():
        await sink.__aexit__(None, None, None)


@contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except KzConsumerError:
        raise
    except Exception as error:
        raise SinkError(f"{type(error).__name__}: {error}") from error


def remaining(wanted: Iterable[OffsetRange], there: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The offsets of `wanted` that are in no range of `there`, in order, in as few ranges as possible."""
    by_partition: dict[tuple[str, int], list[OffsetRange]] = {}
    for each in sorted(there):
        by_partition.setdefault(each[:2], []).append(each)
    left = []
    for whole in sorted(wanted):
        at = whole.first
        for each in by_partition.get(whole[:2], []):
            if each.first >= whole.until:
                break
            if at < each.first:
                left.append(whole._replace(first=at, until=each.first))
            at = max(at, each.until)
        if at < whole.until:
            left.append(whole._replace(first=at))
    return left
