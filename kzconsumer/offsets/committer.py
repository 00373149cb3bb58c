"""Commits: what is processed becomes what is stored, one commit at a time.

Owns the last committed offset of every open claim. Called periodically, by `commit_offsets()`, after a sink's batch and
before a release. It never waits for work to end: it commits what is processed now.
"""

from __future__ import annotations

from collections.abc import Collection

import anyio
import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.offsets.zookeeper_storage import Lost, OffsetWrite, Stored, ZooKeeperOffsetStorage
from kzconsumer.zookeeper.owner_registry import Fence


class _Position(msgspec.Struct):
    fence: Fence
    committed: int | None
    version: int
    in_doubt: int | None = None  # being written: stays if the write is cancelled before its reply


class Committer:
    """The committed positions of one membership's claims."""

    def __init__(self, storage: ZooKeeperOffsetStorage) -> None:
        self._storage = storage
        self._positions: dict[OffsetTracker, _Position] = {}
        self._one_at_a_time = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Committer {len(self._positions)} positions>"

    def open(self, tracker: OffsetTracker, fence: Fence, stored: int | None, version: int) -> None:
        self._positions[tracker] = _Position(fence, stored, version)

    def reopen(self, tracker: OffsetTracker, successor: OffsetTracker, fence: Fence) -> None:
        """The partition goes on under another thread of ours."""
        position = self._positions.pop(tracker)
        self._positions[successor] = _Position(fence, position.committed, position.version)

    def forget(self, tracker: OffsetTracker) -> None:
        self._positions.pop(tracker, None)

    def committed(self, tracker: OffsetTracker) -> int | None:
        """The offset stored for a claim, None while none is or it is not ours."""
        position = self._positions.get(tracker)
        return position.committed if position else None

    async def commit(self, trackers: Collection[OffsetTracker] | None = None) -> dict[OffsetTracker, str]:
        """Store what is processed, of the given claims or all; an unchanged offset is not written again.

        Returns the claims that turned out to be lost, with the reason; they are forgotten here.
        Raises SessionExpired, ZooKeeperError.
        """
        async with self._one_at_a_time:
            wanted = self._positions if trackers is None else trackers
            due = {
                tracker: tracker.processed
                for tracker in wanted
                if (position := self._positions.get(tracker)) is not None
                and position.committed is not None
                and position.committed < tracker.processed
            }
            return await self._write(due)

    async def store_start(self, tracker: OffsetTracker, offset: int) -> bool:
        """Store a position found by the reset policy, before anything is delivered; False when the claim is lost.

        The only write that may move a stored offset back: the log no longer has what was stored.
        """
        async with self._one_at_a_time:
            if tracker not in self._positions:
                return False
            return not await self._write({tracker: offset})

    async def _write(self, due: dict[OffsetTracker, int]) -> dict[OffsetTracker, str]:
        writes = []
        for tracker, offset in due.items():
            position = self._positions[tracker]
            writes.append(
                OffsetWrite(tracker.topic_partition, position.fence, offset, position.version, position.in_doubt)
            )
            position.in_doubt = offset
        results: dict[TopicPartition, Stored | Lost] = await self._storage.write(writes) if writes else {}
        lost = {}
        for tracker, offset in due.items():
            result = results[tracker.topic_partition]
            if isinstance(result, Lost):
                lost[tracker] = result.reason
                self.forget(tracker)
            elif tracker in self._positions:
                self._positions[tracker] = _Position(self._positions[tracker].fence, offset, result.version)
        return lost
