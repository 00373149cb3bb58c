"""Where the work on a partition begins that has just been claimed: at the stored offset, or with a planned range.

Owns no state. Called by the claims; what `adoption.compare` decides is carried out here, the destination's part of it
too. A range that has to be replayed comes out as a tracker of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import structlog

from kzconsumer.errors import OffsetLost
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.adoption import Clear, Replay, Start, compare
from kzconsumer.offsets.committer import Committed, Committer
from kzconsumer.offsets.destination import Destination, RangeIdentity
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.zookeeper.ownership import Claimed
from kzconsumer.zookeeper.znodes import Plan

log = structlog.get_logger("kzconsumer.offsets")


class Adopted(NamedTuple):
    """A claim that the committer knows; `position` is where to fetch from, None: by the reset policy."""

    claimed: Claimed
    tracker: OffsetTracker
    position: int | None


class Adopter:
    """`destination` is None for a sink that cannot replay: claims find no plan then, for they are refused before.

    With `refuses_loss` it does not go on where records of a planned range are gone for good.
    """

    def __init__(self, committer: Committer, destination: Destination | None, *, refuses_loss: bool = False) -> None:
        self._committer = committer
        self._destination = destination
        self._refuses_loss = refuses_loss

    async def adopt(self, claims: Iterable[tuple[TopicPartition, int, Claimed]]) -> list[Adopted]:
        """Of each partition, its topic's incarnation and the claim. One that is lost meanwhile has a closed tracker.

        Raises SessionExpired, ZooKeeperError, OffsetLost, and what the destination raises: then none of them is open.
        """
        adopted: list[Adopted] = []
        try:
            for partition, incarnation, claimed in claims:
                adopted.append(self._begin(partition, incarnation, claimed))
            found = {i: each.claimed.record.plan for i, each in enumerate(adopted)}
            planned = {i: _identity(adopted[i].tracker, plan) for i, plan in found.items() if plan is not None}
            published = await self._destination.has(list(planned.values())) if self._destination and planned else ()
            for index, identity in planned.items():
                if adopted[index].tracker.replay is None:
                    if identity.incarnation != adopted[index].tracker.incarnation and identity not in published:
                        self._tell_gone(identity)
                elif identity in published:
                    adopted[index] = self._behind(adopted[index], identity)
            for each in adopted:
                if each.claimed.record.plan is not None and each.tracker.replay is None and each.position is not None:
                    await self._committer.store_start(each.tracker, each.position)  # which empties the plan
        except BaseException:
            for each in adopted:
                self._committer.forget(each.tracker)
                each.tracker.close()
            raise
        return adopted

    def _begin(self, partition: TopicPartition, incarnation: int, claimed: Claimed) -> Adopted:
        record, plan = claimed.record, claimed.record.plan
        answer = compare(
            plan,
            claimed.stored,
            claimed.stored_version,
            None,
            None,
            f"{incarnation:#x}",
            record.epoch,
            self._destination.fingerprint if self._destination else "",
        )
        where = {"topic": partition.topic, "partition": partition.partition}
        match answer:
            case Replay(first, until, moved_to):
                if moved_to is not None:
                    event = "offset moved by somebody who knows no plans; the planned range is written whole"
                    log.warning(event, **where, first=first, until=until, stored=moved_to)
                position: int | None = first
            case Clear(offset, reason):
                log.warning("a planned range means nothing any more", **where, reason=reason, goes_on_at=offset)
                plan, position = None, offset
            case Start(offset):
                position = offset
            case _:
                raise AssertionError(f"{partition} should have been refused: {answer}")
        tracker = OffsetTracker(partition, position or 0, incarnation=incarnation, epoch=record.epoch, replay=plan)
        self._committer.open(tracker, Committed(claimed.fence, record, claimed.stored, claimed.stored_version))
        return Adopted(claimed, tracker, position)

    def _tell_gone(self, planned: RangeIdentity) -> None:
        """The topic was deleted with records of a range that was planned and is not in the destination."""
        if self._refuses_loss:
            raise OffsetLost(
                f"{planned.topic}-{planned.partition}: offsets {planned.first} to {planned.until} were planned and not "
                "committed, and are gone with the topic, which was made anew; the destination does not have the range. "
                'Set [offsets] reset = "smallest" to go on without'
            )
        log.error("records are gone with their topic, which was made anew", **planned._asdict())

    def _behind(self, adopted: Adopted, published: RangeIdentity) -> Adopted:
        """The range was published and not committed: only the commit is left."""
        old = adopted.tracker
        log.info("planned range was published before", range=published._asdict())
        tracker = OffsetTracker(
            old.topic_partition, published.until, incarnation=published.incarnation, epoch=published.epoch
        )
        self._committer.replace(old, tracker)
        return Adopted(adopted.claimed, tracker, published.until)


def _identity(tracker: OffsetTracker, plan: Plan) -> RangeIdentity:
    return RangeIdentity(*tracker.topic_partition, int(plan.incarnation, 16), plan.epoch, plan.first, plan.until)
