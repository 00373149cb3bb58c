"""For a consumer that fetches for itself: how far each log can be read, instead of its records.

The fetcher asks for one byte: brokers answer as soon as there is something new, with at most one batch of one partition
(before 0.10.1 with one byte of each), which is dropped.
"""

from __future__ import annotations

from typing import Final

from kzconsumer.brokers.protocol.fetch import READ_COMMITTED, FetchedPartition
from kzconsumer.records.decode import Decoded
from kzconsumer.records.forms import NO_RECORDS, Unfetched

LOOK_SECONDS: Final = 0.1
"""Between two looks at a log that has been read to its end."""
NOTHING: Final = memoryview(b"")
"""In place of the bytes that came with an answer."""
_PART_OF_BATCH: Final = 10
# What a range counts in the budget of its queue, so that looks do not go far ahead.
_HELD: Final = 1024 * 1024


def readable_end(part: FetchedPartition, isolation: int) -> int:
    """Up to where records can be read now. Brokers before 0.11 have no last stable offset."""
    stable = isolation == READ_COMMITTED and part.last_stable_offset >= 0
    return part.last_stable_offset if stable else part.high_watermark


class Looking:
    """A `Reading` whose records are `Unfetched`."""

    def __init__(self, isolation: int, batch_records: int) -> None:
        """`batch_records`: the limit of a batch, which batches may exceed by a tenth."""
        self._isolation = isolation
        self._most = max(batch_records // _PART_OF_BATCH, 1)

    def until(self, part: FetchedPartition, start: int) -> int:
        """Where the range ends that begins at `start`."""
        return min(readable_end(part, self._isolation), start + self._most)

    def __call__(self, part: FetchedPartition, start: int, room: int | None = None, /) -> Decoded:
        until = self.until(part, start)
        return Decoded(Unfetched(start, until), until, size=_HELD) if until > start else Decoded(NO_RECORDS, start)


def next_look(time: float) -> float:
    """The same for all partitions, so that they are asked for together."""
    return (time // LOOK_SECONDS + 1) * LOOK_SECONDS
