"""The sink of the member in a streaming query: hands planned ranges to Spark, and has them written once Spark says so.

Spark asks for the next batch only when the one before is in its checkpoint, and passes the end of that one. Until then
`write` does not return, so the plans stay in ZooKeeper and no offset is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final, Self

import anyio

from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity, Wants
from kzconsumer.sinks.interface import Batch
from kzconsumer_spark.daemon.spool import unspooled
from kzconsumer_spark.source.stream_offset import PlannedRange, StreamOffset

_log = get_logger("kzconsumer.spark")


class HandOver:
    """Used in one event loop, in which it is made."""

    wants: Final[Wants] = "ranges"
    fingerprint: Final = "spark-source"
    destination: Final = "a streaming query"

    def __init__(self, offset: StreamOffset, due_records: int) -> None:
        """`offset`: what Spark has committed."""
        self.due_records: Final = due_records
        self._committed = offset
        self._offered: tuple[PlannedRange, ...] = ()
        self._change = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [part for part in ranges if self._committed.covers(part)]

    async def write(self, batch: Batch) -> None:
        """Returns when Spark has committed all ranges, which some query of this checkpoint may have done before."""
        if all(self._committed.covers(part.identity) for part in batch.ranges):
            _log.info("ranges committed by Spark already", ranges=[str(part.range) for part in batch.ranges])
        try:
            self._offered = tuple(PlannedRange(part.identity, unspooled(part).spans) for part in batch.ranges)
            self._signal()
            while not all(self._committed.covers(part.identity) for part in batch.ranges):
                await self._change.wait()
        finally:
            self._offered = ()

    async def following(self, offset: StreamOffset, patience: float) -> StreamOffset:
        """The end of the next batch; `offset`, which Spark has committed, if there is none in `patience` seconds."""
        self._committed = offset
        self._signal()
        with anyio.move_on_after(patience):
            while (end := offset.after(self._offered)) == offset:
                await self._change.wait()
            return end
        return offset

    def _signal(self) -> None:
        self._change.set()
        self._change = anyio.Event()
