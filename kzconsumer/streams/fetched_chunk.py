"""What travels from a fetcher to a stream.

Pure. Chunks carry their claim's tracker: "is this still ours?" means "is this chunk's claim open?".
"""

from __future__ import annotations

import pyarrow as pa

from kzconsumer.offsets.tracker import OffsetTracker


class FetchedChunk:
    """What one fetch brought for one claim: every record with `first <= offset < until`, or the reason there is none.

    `batch` is None where the range holds no record (control records, a reset). For a sink that wants bytes `raw` has
    the batches as fetched in its place; the first may begin below `first`. A chunk with an `error` is the last of its
    claim: the records before it have all been queued. `at_end`: nothing behind it is to be read (`Stops`).
    """

    __slots__ = ("at_end", "batch", "error", "first", "raw", "size", "tracker", "until")

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
        at_end: bool = False,
    ) -> None:
        self.tracker = tracker
        self.first = first
        self.until = until
        self.batch = batch
        self.raw = raw
        self.size = size
        self.error = error
        self.at_end = at_end

    def __repr__(self) -> str:
        rows = self.batch.num_rows if self.batch is not None else 0
        held = f"{rows} rows" if self.raw is None else f"{len(self.raw)} bytes"
        return f"<FetchedChunk {self.tracker.topic_partition}[{self.first}..{self.until}) {held}>"
