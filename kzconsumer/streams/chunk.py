"""What travels from a fetcher to a stream or a sink.

A chunk carries the tracker of its claim: it still belongs to this member if `chunk.tracker.open`.
"""

from __future__ import annotations

import msgspec

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records.forms import NO_RECORDS, Records


class Chunk(msgspec.Struct, eq=False):
    """What one fetch brought for one claim: every record with `first <= offset < until`.

    `records` are in the form that the consumer wants, and empty if the range holds none. `size` is what the chunk
    counts in the budgets of queues, in bytes. `error` ends the claim's records: all before it have been queued.
    `at_end`: the partition is not fetched any further (`kzconsumer.runs.end_offsets`, a range that is replayed).
    `broker`: id of the one that it was fetched from.
    """

    tracker: OffsetTracker
    first: int
    until: int
    records: Records = NO_RECORDS
    size: int = 0
    error: Exception | None = None
    at_end: bool = False
    broker: int = 0

    def rest(self, row: int, first: int) -> Chunk:
        """The records from index `row` on, for offsets from `first` on. It keeps the memory of all records."""
        records = self.records.slice(row)
        return Chunk(self.tracker, first, self.until, records, self.size, at_end=self.at_end, broker=self.broker)
