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
    """The policy of one member: `smallest`, `largest` or `fail`.

    With `isolation` READ_COMMITTED `largest` is the last stable offset, as for Kafka's own consumer.
    """

    def __init__(self, policy: str, committer: Committer, timeout: float, isolation: int) -> None:
        self._policy = policy
        self._isolation = isolation
        self._committer = committer
        self._timeout = timeout

    @property
    def refuses(self) -> bool:
        return self._policy == FAIL

    def refusal(self, state: PartitionFetchState) -> OffsetLost:
        what = (
            "has no stored offset"
            if state.position is None
            else f"is not in the log any more, or not yet, at offset {state.position}"
        )
        return OffsetLost(f'{state.topic_partition} {what}, and reset = "fail"')

    async def resolve(
        self, connection: BrokerConnection, states: Sequence[PartitionFetchState]
    ) -> list[PartitionFetchState]:
        """Give each state a position. Returns those this broker could not answer for.

        Raises ConnectionLost, ProtocolError.
        """
        timestamp = LATEST if self._policy == LARGEST else EARLIEST
        request = ListOffsetsRequest({state.topic_partition: timestamp for state in states}, self._isolation)
        listed = await connection.call(request, timeout=self._timeout)
        elsewhere = []
        for state in states:
            answer = listed.get(state.topic_partition)
            if answer is None or answer.error != error_codes.NONE or answer.offset < 0:
                elsewhere.append(state)
            elif state.open:
                await self._apply(state, answer.offset)
        return elsewhere

    async def _apply(self, state: PartitionFetchState, offset: int) -> None:
        before, tracker = state.position, state.tracker
        where = {"topic": state.topic_partition.topic, "partition": state.topic_partition.partition}
        if before is not None and offset > before and self._policy == SMALLEST:
            log.error("records are gone from the log", **where, first=before, until=offset, policy=self._policy)
            # The claim's positions move over the hole in their place in the queue, after what was fetched before it.
            # That is not stored first: the next owner would find the same hole, or a larger one.
            state.queue.put(FetchedChunk(tracker, before, offset, None, 0))
        elif before is None or (tracker.settled and tracker.consumed == before):
            if before is not None:
                log.error("the log does not hold the stored offset", **where, stored=before, now=offset)
            if not await self._committer.store_start(tracker, offset):
                return  # no longer ours: the committer has closed the claim
            tracker.restart(offset)
        else:
            return  # what was fetched before is still being worked on: asked again later
        state.position = offset
        state.reset_due = False
        state.succeed()
        if before is None:
            state.retry_at = 0.0  # nothing was wrong; after a position outside the log the next one may be so, too
