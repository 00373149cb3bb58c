"""The Spark sink with a cluster of its own, whose logs have the records of each batch when it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any, Self

import msgspec

from kzconsumer.records.forms import Unfetched
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext
from kzconsumer_spark.daemon.sink import SparkSink
from tests.support.record_sets import Record, message_set, record_batch
from tests.support.simulated.served import ServedCluster

_IN_BATCH = 100
_APPENDED, _UNKNOWN = 1, -1
"""Types of timestamps: the broker's, and none, as of records from before 0.10."""


class ServedSink(SparkSink):
    """`write` takes ranges with records, at any offsets; Spark's tasks fetch them, each from a log of that range alone.

    The brokers are simulated, so that a test need not produce what it writes. That Spark fetches from real ones:
    test_executors_fetch.py.
    """

    def __init__(
        self, options: Mapping[str, object], group: str = "g", safe_until: Callable[[], float] = lambda: math.inf
    ) -> None:
        self._cluster = ServedCluster()
        settings = {"zookeeper": {"connect": self._cluster.connect}, "group": {"id": group}}
        super().__init__(
            options,
            SinkContext(
                group=group, member="m", cluster="c", safe_until=safe_until, settings=Settings.from_dict(settings)
            ),
        )

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        try:
            return await super().__aenter__()
        except BaseException:
            await self._cluster.__aexit__()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        await self._cluster.__aexit__()

    async def write(self, batch: Batch) -> None:
        ranges = [await self._put(part) for part in batch.ranges]
        await super().write(msgspec.structs.replace(batch, ranges=tuple(ranges)))

    async def _put(self, part: RangeData) -> RangeData:
        """The same range without its records, which the log has."""
        if not part.records:
            return part
        await self._cluster.put(part.topic_partition, part.incarnation, part.first, part.until, list(_batches(part)))
        return msgspec.structs.replace(part, pieces=(Unfetched(part.first, part.until),))


def _batches(part: RangeData) -> Iterator[tuple[int, bytes]]:
    """Batches that cover the range, each after its first offset."""
    rows = [row for batch in part.batches for row in batch.to_pylist()]
    runs = []
    for kind, same in ((kind, list(run)) for kind, run in groupby(rows, lambda row: row["timestamp_type"])):
        size = 1 if kind == _APPENDED else _IN_BATCH
        runs += [(kind, same[at : at + size]) for at in range(0, len(same), size)]
    first = part.first
    for number, (kind, run) in enumerate(runs):
        until = runs[number + 1][1][0]["offset"] if number + 1 < len(runs) else part.until
        records = [_record(row) for row in run]
        offsets = [row["offset"] for row in run]
        if kind == _UNKNOWN:
            yield offsets[0], message_set(records, magic=0, base_offset=offsets[0], offsets=offsets)
            first, records, offsets = offsets[-1] + 1, [], []
        if first < until:
            yield first, _batch(first, until, records, offsets, kind == _APPENDED)
        first = until


def _batch(first: int, until: int, records: Sequence[Record], offsets: Sequence[int], appended: bool) -> bytes:
    """As compaction leaves it: without records at some offsets, or at all."""
    return record_batch(
        records,
        base_offset=first,
        offset_deltas=[offset - first for offset in offsets],
        last_offset_delta=until - first - 1,
        log_append_time=records[0].timestamp if appended else None,
    )


def _record(row: Mapping[str, Any]) -> Record:
    headers = tuple((each["key"].encode(), each["value"]) for each in row["headers"] or ())
    time = row["timestamp"]
    at = -1 if time is None else round(time.timestamp() * 1000)
    return Record(row["key"], row["value"], headers, at)
