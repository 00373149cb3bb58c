"""Bugs for a member of ours, each of which breaks one promise that the judge has to watch over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from kzconsumer.errors import NoNodeError
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import OffsetWrite, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_transactions import OwnerRegistry


def release_uncommitted() -> None:
    """A partition is released without a commit of what was processed since the last periodic one."""
    write_due = Committer._write_due

    async def write_all(self: Committer, owned: Collection[Progress], **more: Any) -> None:
        if owned is self._positions:  # the periodic commit
            await write_due(self, owned, **more)

    Committer._write_due = write_all  # type: ignore[method-assign]


def claim_at_once() -> None:
    """A partition is claimed without waiting for its owner: the owner node is deleted."""
    claim = OwnerRegistry.claim

    async def take(self: OwnerRegistry, partition: TopicPartition, thread: ConsumerThreadId, incarnation: int) -> Any:
        with contextlib.suppress(NoNodeError):
            await self._session.delete(self._paths.owner(partition), -1)
        return await claim(self, partition, thread, incarnation)

    OwnerRegistry.claim = take  # type: ignore[method-assign]


def store_ahead() -> None:
    """Offsets are stored of records that were not handed out."""
    write = ZooKeeperOffsetStorage.write

    async def write_more(self: ZooKeeperOffsetStorage, writes: Sequence[OffsetWrite]) -> Any:
        return await write(self, [msgspec.structs.replace(each, offset=each.offset + 20) for each in writes])

    ZooKeeperOffsetStorage.write = write_more  # type: ignore[method-assign]


PLANTS: Mapping[str, Callable[[], None]] = {
    "release-uncommitted": release_uncommitted,
    "claim-at-once": claim_at_once,
    "store-ahead": store_ahead,
}
