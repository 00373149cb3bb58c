"""What travels from a fetcher to a stream.

Pure. Chunks carry their claim's tracker: "is this still ours?" means "is this chunk's claim open?".
"""

from __future__ import annotations

import pyarrow as pa

from kzconsumer.offsets.tracker import OffsetTracker


class FetchedChunk:
    """What one fetch brought for one claim: every record with `first <= offset < until`, or the reason there is none.

    `batch` is None where the range holds no record (control records, a reset). A chunk with an `error` is the last of
    its claim: the records before it have all been queued.
    """

    __slots__ = ("batch", "error", "first", "size", "tracker", "until")

    def __init__(
        self,
        tracker: OffsetTracker,
        first: int,
        until: int,
        batch: pa.RecordBatch | None,
        size: int,
        error: Exception | None = None,
    ) -> None:
        self.tracker = tracker
        self.first = first
        self.until = until
        self.batch = batch
        self.size = size
        self.error = error

    def __repr__(self) -> str:
        rows = self.batch.num_rows if self.batch is not None else 0
        return f"<FetchedChunk {self.tracker.topic_partition}[{self.first}..{self.until}) {rows} rows>"
