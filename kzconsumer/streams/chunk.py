"""What travels from a fetcher to a stream.

Pure. Chunks carry their claim's tracker: "is this still ours?" means "is this chunk's claim open?".
"""

from __future__ import annotations

import pyarrow as pa

from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.records.few_records import FewRecords
from kzconsumer.streams.message import Message, few_messages, messages


class FetchedChunk:
    """What one fetch brought for one claim: every record with `first <= offset < until`, or the reason there is none.

    `batch` is None where the range holds no record (control records, a reset). For a sink that wants bytes `raw` has
    the batches as fetched in its place; the first may begin below `first`. A chunk with an `error` is the last of its
    claim: the records before it have all been queued. `at_end`: nothing behind it is to be read (`Stops`).
    Of `few` records the columns are made when `batch` is asked for.
    """

    __slots__ = ("_batch", "_few", "at_end", "error", "first", "raw", "size", "tracker", "until")

    def __init__(
        self,
        tracker: OffsetTracker,
        first: int,
        until: int,
        batch: pa.RecordBatch | None,
        size: int,
        error: Exception | None = None,
        *,
        raw: memoryview | None = None,
        few: FewRecords | None = None,
        at_end: bool = False,
    ) -> None:
        self.tracker = tracker
        self.first = first
        self.until = until
        self._batch = batch
        self._few = few
        self.raw = raw
        self.size = size
        self.error = error
        self.at_end = at_end

    @property
    def rows(self) -> int:
        if self._few is not None:
            return len(self._few.records)
        return 0 if self._batch is None else self._batch.num_rows

    @property
    def batch(self) -> pa.RecordBatch | None:
        if self._batch is None and self._few is not None:
            self._batch = self._few.columns()
        return self._batch

    def messages(self, first: int, most: int, begin: int) -> list[Message]:
        """At most `most` rows from row `first` on; what they stand for begins at offset `begin`."""
        topic, partition = self.tracker.topic_partition
        if self._few is not None:
            return few_messages(self._few.records[first : first + most], topic, partition, self.tracker, begin)
        if self._batch is None:
            return []
        return messages(self._batch.slice(first, most), topic, partition, self.tracker, begin)

    def __repr__(self) -> str:
        held = f"{self.rows} rows" if self.raw is None else f"{len(self.raw)} bytes"
        return f"<FetchedChunk {self.tracker.topic_partition}[{self.first}..{self.until}) {held}>"
