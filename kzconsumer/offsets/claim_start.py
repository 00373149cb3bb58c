"""Where a claimed partition begins: at the stored offset, or with a planned range that has to be replayed.

It asks the destination and carries out what `start_rules.compare` decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import anyio.lowlevel
from msgspec.structs import replace

from kzconsumer.display import some
from kzconsumer.errors import DestinationWentBackError, OffsetLostError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.start_rules import Authority, Clear, Destination, Replay, StartAt, WithBrokers, compare, resume
from kzconsumer.offsets.storage import CommittedPosition, raise_refused
from kzconsumer.registry.claim_record import Claimed, Plan

log = get_logger("kzconsumer.offsets")

# Claims that begin in one turn of the event loop.
AT_ONCE = 256


class Adopted(NamedTuple):
    """A claim that the committer knows; `position` is where to fetch from, None: by the reset policy.

    With a `refusal` the partition must not be consumed, and the caller releases it. `plan` is the range in flight that
    was found; `is_restored` if the claim record does not have it any more.
    """

    claimed: Claimed
    progress: Progress
    position: int | None
    refusal: str = ""
    plan: Plan | None = None
    is_restored: bool = False


class Adopter:
    """`destination` is None for a sink that cannot replay: its claims of planned partitions are refused before.

    With `refuses_loss` lost records of a planned range are an error. `coordinator` has the offsets stored with the
    brokers, if the authority uses them.
    """

    def __init__(
        self,
        committer: Committer,
        destination: Destination | None,
        *,
        refuses_loss: bool = False,
        authority: Authority = Authority.ZOOKEEPER,
        coordinator: GroupCoordinator | None = None,
    ) -> None:
        self._committer = committer
        self._destination = destination
        self._refuses_loss = refuses_loss
        self._authority = authority
        self._coordinator = coordinator
        self._elsewhere: set[TopicPartition] = set()  # logged: another destination has their records

    async def adopt(self, claims: Iterable[tuple[TopicPartition, int, Claimed]]) -> list[Adopted]:
        """Begin claims, each given with its topic's incarnation. One that is lost meanwhile has a closed progress.

        Raises SessionExpiredError, ZooKeeperError, CoordinatorError, OffsetLostError, and what the destination raises:
        then none of the claims is open.
        """
        claims = list(claims)
        copies = await self._coordinator.stored([partition for partition, *_ in claims]) if self._coordinator else {}
        adopted: list[Adopted] = []
        try:
            for number, (partition, incarnation, claimed) in enumerate(claims, 1):
                adopted.append(self._begin(partition, incarnation, claimed, copies.get(partition)))
                if number % AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()  # thousands take long, and what else is due has its turn
            found = {i: each.plan for i, each in enumerate(adopted)}
            planned = {i: _identity(adopted[i].progress, plan) for i, plan in found.items() if plan is not None}
            last = {}
            if self._destination is not None and self._destination.remembers:
                self._report_elsewhere(claims)
                last = {i: identity for i, each in enumerate(adopted) if (identity := _last_written(each)) is not None}
            asked = [*last.values(), *planned.values()]
            published = await self._destination.has(asked) if self._destination and asked else ()
            for index, identity in last.items():
                if identity not in published:
                    adopted[index] = self._refused(adopted[index], identity)
            for index, identity in planned.items():
                if adopted[index].refusal:
                    continue
                if adopted[index].progress.replay is None:
                    if identity.incarnation != adopted[index].progress.incarnation and identity not in published:
                        self._report_gone(identity)
                elif identity in published:
                    adopted[index] = self._behind(adopted[index], identity)
            starts = {}
            for each in adopted:
                if each.refusal:
                    continue
                elsewhere = each.position != self._committer.committed(each.progress)
                planned_before = each.claimed.record.plan is not None
                if each.progress.replay is None and each.position is not None and (planned_before or elsewhere):
                    starts[each.progress] = each.position
            raise_refused((await self._committer.store_starts(starts))[1])  # stored, they have no plans any more
            again = {each.progress: each.plan for each in adopted if each.is_restored and each.plan is not None}
            await self._committer.plan({p: plan for p, plan in again.items() if p.replay is plan})
        except BaseException:
            for each in adopted:
                self._committer.forget(each.progress)
                each.progress.close()
            raise
        return adopted

    def _begin(
        self, partition: TopicPartition, incarnation: int, claimed: Claimed, brokers: WithBrokers | None
    ) -> Adopted:
        record, plan, where = claimed.record, claimed.record.plan, partition._asdict()
        stored = self._authority.begin(claimed.stored, brokers, record.epoch)
        reset = brokers is not None and brokers.before(record.epoch)
        if brokers is not None and self._authority.copies and (reset or claimed.stored != brokers.offset):
            event = "offset with the brokers is older than the last reset" if reset else "stored offsets differ"
            both = {"zookeeper": claimed.stored, "brokers": brokers.offset}
            log.warning(event, **where, **both, continues_at=stored)
        stored_version = claimed.stored_version
        if (gone := self._gone(partition, claimed, stored)) is not None:
            event, at = "stored offset deleted or set back, restored", {"stored": stored, "continues_at": gone.offset}
            reason = "the group's nodes were deleted while it had members, or ZooKeeper was restored from a copy"
            log.error(event, **where, **at, reason=reason)
            record, plan, stored, stored_version = gone.record, gone.record.plan, gone.offset, gone.version
            # The next write stores its epoch: a range that was published under it must be known under the same one.
            claimed = replace(claimed, record=replace(claimed.record, epoch=record.epoch))
        in_flight = plan
        begin = resume(stored, record.committed_until)
        if begin != stored:
            where_to = f" GROUP --topic {partition.topic}:{partition.partition} --to-offset {stored}" if stored else ""
            way_out = f"kzconsumer offsets reset{where_to}"
            reason = f"the group had committed up to {begin}; {way_out} consumes the records in between again"
            event, at = "stored offset moved back by another program", {"stored": stored, "continues_at": begin}
            log.error(event, **where, **at, reason=reason)
        fingerprint = self._destination.fingerprint if self._destination else ""
        answer = compare(plan, begin, stored_version, f"{incarnation:#x}", record.epoch, fingerprint)
        match answer:
            case Replay(first, until, moved_to):
                if moved_to is not None:
                    event = "offset changed without regard to the plan, replaying the planned range"
                    log.warning(event, **where, first=first, until=until, stored=stored)
                position: int | None = first
            case Clear(offset, reason):
                log.warning("plan dropped", **where, reason=reason, continues_at=offset)
                plan, position = None, offset
            case StartAt(offset):
                position = offset
            case _:
                raise AssertionError(f"{partition} should have been refused: {answer}")
        led = record.leader_epoch_before(position)
        if led < 0 and brokers is not None and brokers.offset == position and not reset:
            led = brokers.leader_epoch
        progress = Progress(
            partition, position or 0, incarnation=incarnation, epoch=record.epoch, replay=plan, leader_epoch=led
        )
        progress.written = record.last_written
        copied = brokers.copied(record.epoch) if brokers is not None else -1
        committed = claimed.stored
        if self._authority is Authority.KAFKA:
            committed = copied if copied is not None and copied >= 0 else None
        before = led if committed == position else -1
        state = CommittedPosition(claimed.fence, claimed.record, committed, claimed.stored_version, copied, before)
        self._committer.open(progress, state)
        return Adopted(claimed, progress, position, plan=in_flight, is_restored=gone is not None)

    def _gone(self, partition: TopicPartition, claimed: Claimed, stored: int | None) -> CommittedPosition | None:
        """What this session had stored of the partition, if that was deleted or set back with the group's nodes."""
        # The version of a claim record grows with each claim, and members never delete one. So a record that is no
        # newer now than when we lost the partition was deleted, or is of a copy of ZooKeeper; its epoch may be lower.
        # Nor is that an operator's reset: the tools change no group that has members, and with our session it has one.
        # Of an earlier session nothing is kept. Every record before our offset has been processed, whichever member has
        # owned the partition since. A range that we had planned may be published: it is planned again.
        lost = self._committer.lost(partition)
        if lost is None or lost.offset is None or claimed.fence.record_version > lost.fence.record_version:
            return None
        before, now = lost.record, claimed.record
        if before.incarnation != now.incarnation or before.epoch < now.epoch:
            return None
        least = lost.offset if before.plan is None and before.epoch == now.epoch else lost.offset + 1
        return lost if stored is None or stored < least else None

    def _refused(self, adopted: Adopted, lacking: RangeIdentity) -> Adopted:
        """The destination lacks the last committed range, and perhaps others before it."""
        self._committer.forget(adopted.progress)
        adopted.progress.close()
        return adopted._replace(refusal=str(DestinationWentBackError(lacking, destination=self._destination)))

    def _report_elsewhere(self, claims: Iterable[tuple[TopicPartition, int, Claimed]]) -> None:
        """Once in a membership: a partition without new records keeps its mark, however often it is claimed."""
        found = {partition for partition, _, claimed in claims if claimed.record.written_elsewhere}
        if changed := sorted(found - self._elsewhere):
            self._elsewhere |= found
            reason = "[sink.options] were changed, or members differ in them, and each writes a part of the records"
            log.warning("destination changed", partitions=some(map(str, changed)), reason=reason)

    def _report_gone(self, planned: RangeIdentity) -> None:
        """The topic was deleted with records of a planned range that the destination does not have."""
        if self._refuses_loss:
            raise OffsetLostError(
                f"{planned.topic}-{planned.partition}: offsets {planned.first} to {planned.until} were planned and not "
                "committed, and are lost with the topic, which was recreated; the destination does not have the range. "
                'Set [offsets] reset = "smallest" to go on without them'
            )
        log.error("records lost with their topic, which was recreated", **planned._asdict())

    def _behind(self, adopted: Adopted, published: RangeIdentity) -> Adopted:
        """The range was published and not committed: only the commit is left."""
        old = adopted.progress
        log.info("planned range already published", range=published._asdict())
        progress = Progress(
            old.topic_partition,
            published.until,
            incarnation=published.incarnation,
            epoch=published.epoch,
            leader_epoch=old.replay.epoch_before_end if old.replay is not None else -1,
        )
        progress.written = published.first, published.until
        self._committer.replace(old, progress)
        return Adopted(adopted.claimed, progress, published.until)


def _last_written(adopted: Adopted) -> RangeIdentity | None:
    """The last range that the destination must have, if it is the same as at the last commit."""
    progress, last = adopted.progress, adopted.claimed.record.last_written
    if last is None:
        return None
    return RangeIdentity(*progress.topic_partition, progress.incarnation, progress.epoch, *last)


def _identity(progress: Progress, plan: Plan) -> RangeIdentity:
    return RangeIdentity(*progress.topic_partition, int(plan.incarnation, 16), plan.epoch, plan.first, plan.until)
