"""The sink of the member in a streaming query: hands planned ranges to Spark, and has them written once Spark says so.

Spark asks for the next batch only when the one before is in its checkpoint, and passes the end of that one; a listener
may have reported it before (`prompt_commits`). Until then `write` does not return, so the plans stay in ZooKeeper and
no offset is committed. Ranges are planned when Spark asks. If it asks again much later (a suspended process), it gets
only what no other member may deliver meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Final, Self

import anyio

from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity, Wants
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.zookeeper.lease import Lease
from kzconsumer_spark.daemon.spool import unspooled
from kzconsumer_spark.source.stream_offset import PlannedRange, StreamOffset

_log = get_logger("kzconsumer.spark")


class HandOver:
    """Used in one event loop, in which it is made."""

    wants: Final[Wants] = "ranges"
    fingerprint: Final = "spark-source"
    destination: Final = "a streaming query"

    def __init__(self, offset: StreamOffset, due_records: int, lease: Lease) -> None:
        """`offset`: what Spark has committed."""
        self.due_records: Final = due_records
        self._lease = lease
        self.socket = ""
        """Where the end of a batch is to be reported when Spark has committed it."""
        self._committed = offset
        self._returned = offset
        self._asked = False
        self._offered: Sequence[RangeData] = ()
        self._lost: set[RangeIdentity] = set()
        self._change = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [part for part in ranges if self._committed.covers(part)]

    async def asked(self) -> None:
        """Returns while Spark waits for a batch."""
        while not self._asked:
            await self._change.wait()

    async def write(self, batch: Batch) -> None:
        """Returns when Spark has committed all ranges that are not lost, as it may have done before."""
        if self._is_committed(batch):
            _log.info("ranges committed by Spark already", ranges=[str(part.range) for part in batch.ranges])
        try:
            self._offered = batch.ranges
            self._signal()
            while not self._is_committed(batch):
                await self._change.wait()
        finally:
            self._offered = ()
            self._lost.clear()

    def range_lost(self, part: RangeData) -> None:
        """The partition's next owner delivers it; if Spark has it already, both do."""
        self._lost.add(part.identity)
        self._signal()

    def _is_committed(self, batch: Batch) -> bool:
        left = self._without_lost(batch.ranges)
        return bool(left) and all(self._committed.covers(part.identity) for part in left)

    def _without_lost(self, ranges: Sequence[RangeData]) -> list[RangeData]:
        return [part for part in ranges if part.identity not in self._lost]

    async def following(self, offset: StreamOffset, patience: float) -> StreamOffset:
        """The end of the next batch; `offset`, which Spark has committed, if there is none in `patience` seconds."""
        self._committed = offset
        self._asked = True
        self._signal()
        try:
            with anyio.move_on_after(patience):
                while True:
                    await self._lease.wait()
                    offered = map(_planned, self._without_lost(self._offered))
                    if (end := offset.after(offered, self.socket)) != offset:
                        self._returned = end
                        return end
                    await self._change.wait()
        finally:
            self._asked = False
        return offset

    def take(self, end: StreamOffset) -> None:
        """Spark has committed a batch; what is not the end of the one that it has been given last is of no concern."""
        if end == self._returned:
            self._committed = end
            self._signal()

    def _signal(self) -> None:
        self._change.set()
        self._change = anyio.Event()


def _planned(part: RangeData) -> PlannedRange:
    return PlannedRange(part.identity, unspooled(part).spans, part.leader_epoch)
