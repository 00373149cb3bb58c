"""What a task has read of a range: its report to the driver, which adds up the parts.

A task delivers nothing but rows, so its account is one: in column `ACCOUNT` of the last record, which is null in all
others; a part without records has a row that is null but for it. So of a task that fails, or is cut short, no account
arrives. Of one that Spark repeats or runs twice it arrives twice, and both say the same, unless the log has changed in
between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kzconsumer.model import OffsetRange, TopicPartition
from kzconsumer.records.contents import Contents
from kzconsumer.registry.claim_record import Spans
from kzconsumer_files.parquet import row_of_nulls
from kzconsumer_spark.ranges.batch import ACCOUNT


class NotWholeError(Exception):
    """The tasks of a batch have not accounted for the whole of its ranges, or not for the same records twice."""


class PartAccount(msgspec.Struct, frozen=True, array_like=True):
    """A part of a range, every offset of which is accounted for, and its records, rejected ones included."""

    topic: str
    partition: int
    first: int
    until: int
    contents: Contents

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)


class PartReading:
    """In a task: counts what is read of `part`. The records at `left_out` are rejected, and not delivered."""

    def __init__(self, part: OffsetRange, left_out: Spans = ()) -> None:
        self._part = part
        self._left_out = [offset for first, until in left_out for offset in range(first, until)]
        self._contents = Contents()

    def take(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records to be delivered, of those that come next."""
        self._contents = self._contents.then(records)
        if not self._left_out:
            return records
        rejected = pc.is_in(records.column("offset"), pa.array(self._left_out, pa.int64()))
        return records.filter(pc.invert(rejected))

    def with_account(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of what was taken, with column `ACCOUNT`, once they end without an error."""
        last = None
        for batch in batches:
            if last is not None:
                yield _with(last, None)
            last = batch
        account = msgspec.json.encode(PartAccount(*self._part, self._contents)).decode()
        yield _with(last if last is not None else row_of_nulls(), account)


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


def whole(spans: Iterable[OffsetRange], accounts: Iterable[PartAccount]) -> Mapping[TopicPartition, Contents]:
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
    found: dict[TopicPartition, Contents] = {}
    for span in spans:
        partition, at = span.topic_partition, span.first
        while at < span.until:
            part = parts.pop((partition, at), None)
            if part is None or part.until > span.until:
                raise NotWholeError(f"{span}: no task has accounted for the offsets from {at} on")
            found[partition] = found.get(partition, Contents()).joined(part.contents)
            at = part.until
    if parts:
        raise NotWholeError(f"{next(iter(parts.values())).range} was read, and is no part of the batch")
    return found
