"""A partition owned by us, and draining: waiting until the work on several of them has ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from functools import partial

import anyio
import msgspec

from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.registry.ownership import OwnerNode

log = get_logger("kzconsumer.group")


class Claim(msgspec.Struct, eq=False):
    """One partition owned by us. Its fence changes with each write of an offset, so the committer holds it."""

    topic_partition: TopicPartition
    thread: ConsumerThreadId
    owner: OwnerNode
    fetch: PartitionFetchState

    @property
    def tracker(self) -> OffsetTracker:
        return self.fetch.tracker


async def drained_claims(claims: Iterable[Claim], until: float) -> AsyncGenerator[list[Claim], None]:
    """Hand out nothing more of these claims; yield them in batches as the work on each ends.

    At `until`, in seconds of the event loop's clock, the rest is yielded with its work unfinished.
    """
    busy = set(claims)
    ended: list[Claim] = []
    change = anyio.Event()

    def done(claim: Claim) -> None:
        if claim in busy:
            busy.remove(claim)
            ended.append(claim)
            change.set()

    for claim in list(busy):
        claim.tracker.close(partial(done, claim))
    while busy or ended:
        if not ended:
            with anyio.CancelScope(deadline=until):
                await change.wait()
        if not ended:
            for claim in busy:
                log.warning(
                    "work not finished in time, its records will be redelivered",
                    **claim.topic_partition._asdict(),
                    first=claim.tracker.processed,
                    until=claim.tracker.consumed,
                )
            ended.extend(busy)
            busy.clear()
        part, ended, change = ended, [], anyio.Event()
        yield part
