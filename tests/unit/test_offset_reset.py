"""When a partition that has been given a position may be asked for."""

from __future__ import annotations

from typing import cast

import pytest

from kzconsumer.fetcher.offset_reset import SMALLEST, OffsetReset
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.model import TopicPartition
from kzconsumer.network.broker_connection import BrokerConnection
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.protocol.fetch import ISOLATION_LEVELS
from kzconsumer.protocol.list_offsets import ListedOffset
from kzconsumer.streams.chunk_queue import ChunkQueue
from tests.support.chunks import tracker

NOW = 1000.0
BEGINNING = 7


class LogsThatBegin:
    """A broker whose logs all begin at one offset, and a store that takes every position."""

    async def call(self, request: object, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        return {tracker().topic_partition: ListedOffset(0, BEGINNING, -1)}

    async def store_start(self, claim: OffsetTracker, offset: int, *, new_epoch: bool) -> bool:
        assert not new_epoch
        return True


@pytest.mark.parametrize(("position", "fetchable"), [(None, True), (3, False)])
async def test_only_a_position_that_was_refused_is_followed_by_a_pause(position: int | None, fetchable: bool) -> None:
    logs = LogsThatBegin()
    reset = OffsetReset(SMALLEST, cast(Committer, logs), 1.0, ISOLATION_LEVELS["read_uncommitted"])
    state = PartitionFetchState(tracker(start=position or 0), ChunkQueue(1 << 20), position, 1 << 20)
    state.reset_due = True
    state.pause(NOW)  # as the fetcher does before it asks
    assert await reset.resolve(cast(BrokerConnection, logs), [state]) == []
    assert (state.position, state.fetchable(NOW)) == (BEGINNING, fetchable)
