"""Commits: what is processed becomes what is stored, one commit at a time.

Owns the last committed offset of every open claim. Called periodically, by `commit_offsets()`, after a sink's batch and
before a release. It never waits for work to end: it commits what is processed now. A write that finds a claim lost
closes the claim's tracker at once and says so to `notify`, which is the rebalancer's trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import anyio
import msgspec
import structlog

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.offsets.zookeeper_storage import Lost, OffsetWrite, Stored, ZooKeeperOffsetStorage
from kzconsumer.zookeeper.ownership import Fence

log = structlog.get_logger("kzconsumer.offsets")


class _Position(msgspec.Struct):
    fence: Fence
    committed: int | None
    version: int
    in_doubt: int | None = None  # being written: stays if the write is cancelled before its reply


class Committed(msgspec.Struct, frozen=True):
    """What is stored for a claim (None: nothing yet), and the offset node's version (-1: there is none)."""

    offset: int | None
    version: int


class Committer:
    """The committed positions of one membership's claims."""

    def __init__(self, storage: ZooKeeperOffsetStorage, notify: Callable[[str], None]) -> None:
        self._storage = storage
        self._notify = notify
        self._positions: dict[OffsetTracker, _Position] = {}
        self._one_at_a_time = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Committer {len(self._positions)} positions>"

    def open(self, tracker: OffsetTracker, fence: Fence, stored: int | None, version: int) -> None:
        self._positions[tracker] = _Position(fence, stored, version)

    def replace(self, old: OffsetTracker, new: OffsetTracker) -> None:
        """The same claim goes on under another tracker."""
        self._positions[new] = self._positions.pop(old)

    def forget(self, tracker: OffsetTracker) -> None:
        self._positions.pop(tracker, None)

    def committed(self, tracker: OffsetTracker) -> int | None:
        """The offset stored for a claim, None while none is or it is not ours."""
        position = self._positions.get(tracker)
        return position.committed if position else None

    async def commit(self) -> None:
        """Store what is processed, of all claims; an unchanged offset is not written again.

        Raises SessionExpired, ZooKeeperError.
        """
        async with self._one_at_a_time:
            await self._write_due(self._positions)

    async def close(self, trackers: Collection[OffsetTracker]) -> dict[OffsetTracker, Committed]:
        """The last commit of claims that end; no other commit knows them from then on.

        Returns where those that are still ours stand. Raises SessionExpired, ZooKeeperError: then nothing is closed.
        """
        async with self._one_at_a_time:
            await self._write_due(trackers)
            positions = {tracker: self._positions.pop(tracker, None) for tracker in trackers}
        return {
            tracker: Committed(position.committed, position.version)
            for tracker, position in positions.items()
            if position is not None
        }

    async def store_start(self, tracker: OffsetTracker, offset: int) -> bool:
        """Store a position found by the reset policy, or asked for by the application, before anything is delivered.

        False when the claim is lost. The only write that may move a stored offset back.
        """
        async with self._one_at_a_time:
            if not tracker.open:
                return False
            await self._write({tracker: offset})
            return tracker in self._positions

    def lose(self, tracker: OffsetTracker, reason: str) -> None:
        """The claim is somebody else's, or nobody's: it is closed, and nothing of it is written any more."""
        log.warning("partition lost", partition=str(tracker.topic_partition), reason=reason)
        self.forget(tracker)
        tracker.close()
        self._notify(f"lost {tracker.topic_partition}")

    async def _write_due(self, trackers: Collection[OffsetTracker]) -> None:
        await self._write(
            {
                tracker: tracker.processed
                for tracker in trackers
                if (position := self._positions.get(tracker)) is not None
                and position.committed is not None
                and position.committed < tracker.processed
            }
        )

    async def _write(self, due: dict[OffsetTracker, int]) -> None:
        writes = []
        for tracker, offset in due.items():
            position = self._positions[tracker]
            writes.append(
                OffsetWrite(tracker.topic_partition, position.fence, offset, position.version, position.in_doubt)
            )
            position.in_doubt = offset
        results: dict[TopicPartition, Stored | Lost] = await self._storage.write(writes) if writes else {}
        for tracker, offset in due.items():
            result = results[tracker.topic_partition]
            if isinstance(result, Lost):
                self.lose(tracker, result.reason)
            elif tracker in self._positions:
                self._positions[tracker] = _Position(self._positions[tracker].fence, offset, result.version)
