"""Positions where none is stored, or where the log no longer has the stored one: the reset policy.

Owns no state; called by the BrokerFetcher that holds the partition, asks that partition's leader. A resolved position
is stored, fenced, before anything is delivered from it: otherwise a takeover before the first commit would resolve
`largest` anew and lose what lies between.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from kzconsumer.errors import OffsetLost
from kzconsumer.fetcher.partition_fetch_state import PartitionFetchState
from kzconsumer.network.broker_connection import BrokerConnection
from kzconsumer.offsets.committer import Committer
from kzconsumer.protocol import error_codes
from kzconsumer.protocol.list_offsets import EARLIEST, LATEST, ListOffsetsRequest
from kzconsumer.streams.fetched_chunk import FetchedChunk

log = structlog.get_logger("kzconsumer.fetcher")

SMALLEST, LARGEST, FAIL = "smallest", "largest", "fail"


class OffsetReset:
    """The policy of one member: `smallest`, `largest` or `fail`."""

    def __init__(self, policy: str, committer: Committer, timeout: float) -> None:
        self._policy = policy
        self._committer = committer
        self._timeout = timeout

    async def resolve(
        self, connection: BrokerConnection, states: Sequence[PartitionFetchState]
    ) -> list[PartitionFetchState]:
        """Give each state a position, or its stream the error. Returns those this broker could not answer for.

        Raises ConnectionLost, ProtocolError.
        """
        asked = [state for state in states if not self._failed(state)]
        if not asked:
            return []
        timestamp = LATEST if self._policy == LARGEST else EARLIEST
        request = ListOffsetsRequest({state.topic_partition: timestamp for state in asked})
        listed = await connection.call(request, timeout=self._timeout)
        elsewhere = []
        for state in asked:
            answer = listed.get(state.topic_partition)
            if answer is None or answer.error != error_codes.NONE or answer.offset < 0:
                elsewhere.append(state)
            elif state.open:
                await self._apply(state, answer.offset)
        return elsewhere

    def _failed(self, state: PartitionFetchState) -> bool:
        if self._policy != FAIL:
            return False
        what = (
            "has no stored offset"
            if state.position is None
            else f"is not in the log any more, or not yet, at offset {state.position}"
        )
        position = state.position or 0
        error = OffsetLost(f'{state.topic_partition} {what}, and reset = "fail"')
        state.queue.put(FetchedChunk(state.tracker, position, position, None, 0, error))
        state.reset_due = False
        state.decoding = True  # nothing more is asked for
        return True

    async def _apply(self, state: PartitionFetchState, offset: int) -> None:
        before, tracker = state.position, state.tracker
        where = {"topic": state.topic_partition.topic, "partition": state.topic_partition.partition}
        if before is not None and offset > before:
            log.error("records are gone from the log", **where, first=before, until=offset, policy=self._policy)
            # The claim's positions move over the hole in their place in the queue, after what was fetched before it.
            state.queue.put(FetchedChunk(tracker, before, offset, None, 0))
        elif before is None or (tracker.settled and tracker.consumed == before):
            if before is not None:
                log.error("the log ends before the stored offset", **where, stored=before, now=offset)
            if not await self._committer.store_start(tracker, offset):
                return  # no longer ours: the rebalancer will say so
            tracker.restart(offset)
        else:
            return  # what was fetched before the log was cut is still being worked on: asked again later
        state.position = offset
        state.reset_due = False
        state.succeed()
