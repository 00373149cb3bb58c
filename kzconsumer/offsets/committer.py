"""Commits: what is processed becomes what is stored, one commit at a time.

The committer holds the fence, the claim record's content and the stored offset of every open claim: each write changes
them. A commit never waits for work to end. A write that finds a claim lost closes the partition's progress and calls
`notify`. With two storages ZooKeeper is written first, fenced; the coordinator gets a copy of what was stored there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

import anyio
import msgspec

from kzconsumer.clock import now
from kzconsumer.counters import CommitCounters, CommitOutcome
from kzconsumer.errors import CoordinatorError, ZooKeeperError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.offsets.storage import (
    CommitRefused,
    CommittedPosition,
    Lost,
    OffsetStorage,
    OffsetWrite,
    Stored,
    raise_refused,
)
from kzconsumer.registry.claim_record import Plan, Spans, offset_list, spans_of

log = get_logger("kzconsumer.offsets")

STORE_AGAIN: Final = 3600.0
"""Seconds after which unchanged offsets are stored with the brokers again, where they expire after a day by default
(`offsets.retention.minutes` before 2.0). The original stores all offsets at every commit."""

_OUTCOMES: Final[Mapping[type, CommitOutcome]] = {Stored: "stored", Lost: "lost", CommitRefused: "refused"}
_IN_ZOOKEEPER: Final = " (ZooKeeper has these offsets)"


class _Position(msgspec.Struct):
    committed: CommittedPosition
    in_doubt: OffsetWrite | None = None  # its reply is outstanding, or was given up
    moved: bool = False  # its progress began elsewhere, which is not stored yet: a lower offset is stored, too
    doubt_is_former: bool = False  # the doubtful write was made for the progress before this one


class Committer:
    """The committed positions of one membership's claims; `copies` is for those that are stored twice."""

    def __init__(
        self,
        storage: OffsetStorage,
        notify: Callable[[str], None],
        counters: CommitCounters | None = None,
        copies: GroupCoordinator | None = None,
    ) -> None:
        self._storage = storage
        self._copies = copies
        self._notify = notify
        self._counters = counters if counters is not None else CommitCounters()
        self._positions: dict[Progress, _Position] = {}
        self.one_at_a_time = anyio.Lock()
        """A write holds it until its outcome is known, so that the next one has the versions that it left."""
        self._stored_again = now()
        self._lost: dict[TopicPartition, CommittedPosition] = {}
        self.lost_work_at = -math.inf
        """When a claim was lost last of which more was handed out than is stored (`kzconsumer.clock`)."""

    def open(self, progress: Progress, committed: CommittedPosition) -> None:
        self._positions[progress] = _Position(committed)

    def replace(self, old: Progress, new: Progress) -> None:
        """The claim continues with another progress, whose start the next commit stores."""
        position = self._positions[new] = self._positions.pop(old)
        position.moved = True
        position.doubt_is_former = position.in_doubt is not None

    def forget(self, progress: Progress) -> None:
        self._positions.pop(progress, None)

    def committed(self, progress: Progress) -> int | None:
        """The stored offset of a claim; None if there is none or it is not ours."""
        return stored.offset if (stored := self.stored(progress)) is not None else None

    def stored(self, progress: Progress) -> CommittedPosition | None:
        """All that is known to be stored of a claim; None if it is not ours."""
        return position.committed if (position := self._positions.get(progress)) else None

    @property
    def pending(self) -> bool:
        """Whether a commit has something to store, as far as is known: of a closed claim, too, until it is released."""
        return any(
            position.in_doubt is not None or _is_due(position, progress.processed, doubted=False)
            for progress, position in self._positions.items()
            if not progress.retired
        )

    async def plan(self, plans: Mapping[Progress, Plan]) -> set[Progress]:
        """Store these ranges as plans, and the offsets where they begin; the commit after the work empties the plans.

        Returns the claims that are still ours: the others' ranges must not be written. Raises SessionExpiredError,
        ZooKeeperError: then it is unknown what was planned.
        """
        async with self.one_at_a_time:
            # Storing a plan is the transaction of a commit, except that it sets the claim record instead of checking
            # it. That changes the fence, which only this object has; so nobody else stores plans, nor empties them.
            # A release waits for this work, so claims that are closed but not lost are planned, too.
            ours = {
                progress: plan for progress, plan in plans.items() if not progress.lost and progress in self._positions
            }
            raise_refused(await self._write({progress: plan.first for progress, plan in ours.items()}, ours))
            return {progress for progress in ours if progress in self._positions}

    async def record_step(self, owned: Collection[Progress], step: str) -> set[Progress]:
        """Record in the plans of these claims that a step of the work is done; stored offsets stay as they are.

        Returns the claims for which it is recorded. Raises SessionExpiredError, ZooKeeperError: then that is unknown.
        """
        return await self._amend(owned, lambda _, plan: plan if step in plan.done else _with_step(plan, step))

    async def record_rejected(self, offsets: Mapping[Progress, Spans]) -> set[Progress]:
        """Record in the plans of these claims which records are not written with their ranges, besides those recorded.

        Returns and raises as `record_step`; raises ValueError, and stores nothing, if they are too many for a plan.
        """
        return await self._amend(offsets, lambda progress, plan: _without(plan, offsets[progress]))

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None:
        """Raises ValueError if `record_rejected` would, as far as the plans are known."""
        for progress, spans in offsets.items():
            if (plan := self._plan_of(progress)) is not None:
                _without(plan, spans)

    async def record_contents(self, figures: Mapping[Progress, tuple[int, str]]) -> set[Progress]:
        """Record in the plans of these claims the number of records that were read, and their checksum.

        Returns and raises as `record_step`.
        """

        def read(progress: Progress, plan: Plan) -> Plan:
            records, checksum = figures[progress]
            return msgspec.structs.replace(plan, records=records, checksum=checksum)

        return await self._amend(figures, read)

    async def _amend(self, owned: Collection[Progress], change: Callable[[Progress, Plan], Plan]) -> set[Progress]:
        """Store changed plans of these claims. Returns those that have one: all of them, unless a claim was lost."""
        async with self.one_at_a_time:
            await self._settle(owned)
            due, plans = {}, {}
            for progress in owned:
                plan, stored = self._plan_of(progress), self.committed(progress)
                if plan is not None and stored is not None and (changed := change(progress, plan)) != plan:
                    due[progress], plans[progress] = stored, changed
            raise_refused(await self._write(due, plans))
            return {progress for progress in owned if self._plan_of(progress) is not None}

    async def commit(self) -> None:
        """Store what is processed of all claims; an unchanged offset is written again only before it expires.

        Raises SessionExpiredError, ZooKeeperError, CoordinatorError: the next commit tries again.
        """
        with self._counters.one_round(now()):  # also while another write, of a plan or a release, hangs
            async with self.one_at_a_time:
                again = now() - self._stored_again >= STORE_AGAIN
                await self._write_due(self._positions, again=again and self._storage.forgets)
                raise_refused(await self._copy(self._positions, again=again))
                if again:
                    self._stored_again = now()

    async def close(self, owned: Collection[Progress]) -> dict[Progress, CommittedPosition]:
        """The final commit of claims that end.

        Returns those that are still ours. Raises SessionExpiredError, ZooKeeperError: then nothing is closed. The
        failure of a coordinator is logged only: it must not keep a partition from its next owner.
        """
        async with self.one_at_a_time:
            try:
                await self._write_due(owned)
                raise_refused(await self._copy(owned))
            except CoordinatorError as error:
                log.error("final commit to the coordinator failed", reason=str(error))
            positions = {progress: self._positions.pop(progress, None) for progress in owned}
        return {progress: position.committed for progress, position in positions.items() if position is not None}

    async def store_start(
        self, progress: Progress, offset: int, *, leader_epoch: int = -1, new_epoch: bool = False
    ) -> bool:
        """`store_starts` of one claim; False if it is lost. Raises CoordinatorError also if the offset is refused."""
        starts, epochs = {progress: offset}, {progress: leader_epoch}
        stored, refused = await self.store_starts(starts, leader_epochs=epochs, new_epoch=new_epoch)
        raise_refused(refused)
        return bool(stored)

    async def store_starts(
        self,
        offsets: Mapping[Progress, int],
        *,
        leader_epochs: Mapping[Progress, int] | None = None,
        new_epoch: bool = False,
    ) -> tuple[set[Progress], dict[TopicPartition, str]]:
        """Store positions from the reset policy or a seek, before anything is delivered from them.

        `leader_epochs`: of the last records before them; by default as the progress of each knows. Returns the claims
        for which that is done, and why it is not for others that are still ours. With `new_epoch` offsets mean other
        records from now on, and each progress gets the new epoch. Raises as `commit`.
        """
        if not offsets:
            return set(), {}
        async with self.one_at_a_time:
            due = {progress: at for progress, at in offsets.items() if progress.open}
            refused = await self._write(due, new_epoch=new_epoch, leader_epochs=leader_epochs)
            ours = [each for each in due if each in self._positions and each.topic_partition not in refused]
            copying = []
            for progress in ours:
                progress.in_epoch(self._positions[progress].committed.record.epoch)
                copied = self._positions[progress].committed.copied
                if not new_epoch and (copied is None or copied > due[progress]):
                    # The next owner would begin at the larger of the two; a copy of an earlier epoch does not count.
                    copying.append(progress)
            try:
                refused |= await self._copy(copying)
            except CoordinatorError as error:
                refused |= {progress.topic_partition: str(error) for progress in copying}
            return {progress for progress in ours if progress.topic_partition not in refused}, refused

    def lose(self, progress: Progress, reason: str) -> None:
        """The claim is no longer ours: close it, and write nothing more of it."""
        log.warning("partition lost", **progress.topic_partition._asdict(), reason=reason)
        # A claim without an offset has stored nothing yet: what an earlier one had is still the last that is known.
        if (at := self.stored(progress)) is not None and at.offset is not None:
            self._lost[progress.topic_partition] = at
            if at.offset < progress.consumed and not progress.retired:
                self.lost_work_at = now()
        self.forget(progress)
        progress.close()
        self._notify(f"lost {progress.topic_partition}")

    def lost(self, partition: TopicPartition) -> CommittedPosition | None:
        """What was stored of a partition when this session lost it, until it stores something of it again."""
        return self._lost.get(partition)

    def _plan_of(self, progress: Progress) -> Plan | None:
        return stored.record.plan if (stored := self.stored(progress)) is not None else None

    async def _write_due(self, owned: Collection[Progress], *, again: bool = False) -> None:
        due = {}
        doubted = {each for each in owned if each in self._positions and _in_doubt(self._positions[each])}
        await self._settle(owned)
        for progress in owned:
            if (position := self._positions.get(progress)) is None or progress.retired:
                continue
            if _is_due(position, progress.processed, doubted=progress in doubted):
                due[progress] = progress.processed
            elif again and (stored := position.committed.offset) is not None:
                due[progress] = stored
        raise_refused(await self._write(due, own_epoch=True))

    async def _write(
        self,
        due: Mapping[Progress, int],
        plans: Mapping[Progress, Plan] | None = None,
        *,
        new_epoch: bool = False,
        own_epoch: bool = False,
        leader_epochs: Mapping[Progress, int] | None = None,
    ) -> dict[TopicPartition, str]:
        """Store these offsets with these plans; a claim without one has none afterwards. Returns why some are refused.

        Raises ZooKeeperError also if an ACL refuses some of them; the others are stored then.
        With `own_epoch` only offsets of the record's epoch: a new one may have been stored by a call that was cancelled
        before its progress was restarted.
        """
        await self._settle(due)
        writes = {}
        for progress, offset in due.items():
            if progress in self._positions:  # not lost while others were looked up
                position, plan = self._positions[progress], plans[progress] if plans else None
                at = position.committed
                if own_epoch and at.record.epoch != progress.epoch:
                    continue
                epoch = at.record.epoch + new_epoch
                written = progress.written if epoch == progress.epoch else None
                led = leader_epochs[progress] if leader_epochs else _leader_epoch(progress, offset, at)
                write = OffsetWrite(
                    progress.topic_partition, at.fence, at.record, at.version, offset, plan, epoch, written, led
                )
                position.in_doubt = writes[progress] = write
                position.doubt_is_former = False
        results: Mapping[TopicPartition, Stored | Lost | CommitRefused] = {}
        try:
            if writes:
                results = await self._storage.write(list(writes.values()))
        except BaseException:
            self._counters.offsets[self._storage.name, "unknown"] += len(writes)
            raise
        return self._take_over(writes, results)

    def _take_over(
        self, writes: Mapping[Progress, OffsetWrite], results: Mapping[TopicPartition, Stored | Lost | CommitRefused]
    ) -> dict[TopicPartition, str]:
        """Of writes that were answered: what is stored, and which claims are lost. Returns why others are refused.

        Raises the first error that forbids one.
        """
        refused: dict[TopicPartition, str] = {}
        forbidden: ZooKeeperError | None = None
        for progress, write in writes.items():
            result = results[progress.topic_partition]
            self._counters.offsets[self._storage.name, _OUTCOMES[type(result)]] += 1
            if isinstance(result, Lost):
                self.lose(progress, result.reason)
            elif isinstance(result, CommitRefused):
                refused[progress.topic_partition] = result.reason
                if result.error is not None and progress in self._positions:
                    self._positions[progress].in_doubt = None  # its node, which may be unreadable, need not be asked
                    forbidden = forbidden or result.error
            elif progress in self._positions:
                position = self._positions[progress]
                self._positions[progress] = _Position(_left(write, result, position.committed.copied))
                self._lost.pop(progress.topic_partition, None)
        if forbidden is not None:
            raise forbidden
        return refused

    async def _copy(self, owned: Collection[Progress], *, again: bool = False) -> dict[TopicPartition, str]:
        """Copy stored offsets to the coordinator; with `again` also those that it has. Returns why some are refused."""
        if self._copies is None:
            return {}
        due = {}
        for progress in owned:
            position = self._positions.get(progress)
            if position is None or progress.retired or (at := position.committed).offset is None:
                continue
            if position.in_doubt is not None:
                continue  # written for the progress before this one: the next write finds out what is stored
            if again or at.offset != at.copied:
                due[progress] = WithBrokers(at.offset, at.record.epoch, leader_epoch=at.leader_epoch)
                position.committed = msgspec.structs.replace(at, copied=None)  # unknown until it answers
        try:
            refused = await self._copies.store({progress.topic_partition: copy for progress, copy in due.items()})
        except BaseException as error:
            self._counters.offsets["kafka", "unknown"] += len(due)
            if isinstance(error, CoordinatorError):
                raise CoordinatorError(f"{error}{_IN_ZOOKEEPER}") from error
            raise
        self._counters.offsets["kafka", "stored"] += len(due) - len(refused)
        self._counters.offsets["kafka", "refused"] += len(refused)
        for progress, copy in due.items():
            position = self._positions.get(progress)
            if position is not None and progress.topic_partition not in refused:
                position.committed = msgspec.structs.replace(position.committed, copied=copy.offset)
        return {partition: f"{reason}{_IN_ZOOKEEPER}" for partition, reason in refused.items()}

    async def _settle(self, owned: Collection[Progress]) -> None:
        """Find out which writes with a lost reply were executed, as the next ones need the versions they left."""
        # A lost reply is not a failure. Between sending a write and its reply the connection may break, or the caller
        # may be cancelled: the transaction may have been executed or not, and only the nodes know.
        # 1. `_write` sets `in_doubt` before it sends, and a reply clears it (the position is replaced).
        # 2. The next write calls this function first. It reads the nodes, and recognises a write with a plan by the
        #    plan's id, any other by the versions that it would have left.
        # 3. If it was executed, its versions are taken over. Without this the next write would be refused, and our own
        #    offset would be reported as that of another program; or, for a fence, the partition as lost.
        # 4. If not, the write is due again, as its offset is not the stored one.
        positions = [self._positions[progress] for progress in owned if progress in self._positions]
        doubtful = [(position, write) for position in positions if (write := position.in_doubt) is not None]
        made = await self._storage.executed([write for _, write in doubtful]) if doubtful else {}
        for position, write in doubtful:
            if (stored := made.get(write.topic_partition)) is not None:
                position.committed = _left(write, stored, position.committed.copied)
                position.moved = position.moved and position.doubt_is_former
            position.in_doubt = None


def _is_due(position: _Position, processed: int, *, doubted: bool) -> bool:
    """Whether there is an offset to store, or a plan to remove whose write was executed unnoticed.

    `doubted`: it was in doubt until it was looked up just now. A start that was stored unnoticed (a reset that was
    cancelled) stays: its progress does not know of it.
    """
    at = position.committed
    if position.moved:
        return at.offset != processed or doubted
    if at.offset is None or at.offset > processed:
        return False
    return at.offset < processed or (doubted and at.record.plan is not None)


def _with_step(plan: Plan, step: str) -> Plan:
    return msgspec.structs.replace(plan, steps=(*plan.done, step))


def _without(plan: Plan, offsets: Spans) -> Plan:
    return msgspec.structs.replace(plan, rejected=offset_list(spans_of((), (*plan.left_out, *offsets)), plan.first))


def _in_doubt(position: _Position) -> bool:
    """Not for a step of a plan, which was there before and stays: its range may be half written."""
    if (write := position.in_doubt) is None:
        return False
    before, then = write.record.plan, write.plan
    return before is None or then is None or before.id != then.id


def _left(write: OffsetWrite, stored: Stored, copied: int | None) -> CommittedPosition:
    return CommittedPosition(stored.fence, stored.record, write.offset, stored.version, copied, write.leader_epoch)


def _leader_epoch(progress: Progress, offset: int, before: CommittedPosition) -> int:
    """Of the last record before an offset that is stored; the one that is stored already keeps what is known of it."""
    known = progress.leader_epochs.before(offset)
    return before.leader_epoch if known < 0 and offset == before.offset else known
