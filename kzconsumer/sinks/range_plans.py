"""Stores the ranges that a replayable sink is about to write as plans in ZooKeeper, and ends replays."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import anyio
import msgspec

from kzconsumer.errors import (
    RangeChangedError,
    SessionExpiredError,
    SinkError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition
from kzconsumer.offsets.progress import Message, Progress
from kzconsumer.offsets.start_rules import Destination, SinkDestination
from kzconsumer.records.checksums import Contents, contents_of
from kzconsumer.registry.claim_record import Plan, Spans
from kzconsumer.sinks.batch_builder import OwnedBatch
from kzconsumer.sinks.capabilities import Capabilities
from kzconsumer.sinks.interface import Batch, Found, RangeData, StepNotRecordedError, Steps
from kzconsumer.sinks.sink_failures import sink_failures
from kzconsumer.zookeeper.session import Lease


class OwnedRanges(Protocol):
    """What a sink's runner needs of the membership: plans, steps and commits of the ranges that this member owns.

    `sessions` implements it for whatever membership is present, and each range is named by its progress. Without a
    membership nothing is owned: nothing is stored then, and nothing is raised.
    """

    @property
    def lease(self) -> Lease:
        """Whether this member may still act as the owner."""
        ...

    async def lose_recreated(self, owned: Collection[Progress]) -> None:
        """Lose those of these claims whose topics were deleted and created again; all if the session has expired.

        Raises ZooKeeperError.
        """
        ...

    async def plan(self, plans: Mapping[Progress, Plan]) -> Collection[Progress]:
        """Store these ranges as in flight.

        Returns the claims still owned; raises SessionExpiredError, ZooKeeperError.
        """
        ...

    async def record_step(self, owned: Collection[Progress], step: str) -> Collection[Progress]:
        """Store in the plans of these claims that a step is done. Returns and raises as `plan`."""
        ...

    async def record_rejected(self, offsets: Mapping[Progress, Spans]) -> Collection[Progress]:
        """Store in the plans of these claims which records are not written with their ranges.

        Returns and raises as `plan`; ValueError if they are too many.
        """
        ...

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None:
        """Raises ValueError if these records are too many for `record_rejected`. Stores nothing."""
        ...

    async def record_contents(self, figures: Mapping[Progress, tuple[int, str]]) -> Collection[Progress]:
        """Store in the plans of these claims the number of records that were read, and their checksum.

        Returns and raises as `plan`.
        """
        ...

    async def message(self, partition: TopicPartition, offset: int) -> Message | None:
        """Fetch one record; None if the log does not have it. Raises KzConsumerError."""
        ...

    async def fetched(self, part: RangeData) -> RangeData:
        """The same range with its records, which its sink has to fetch. Raises KzConsumerError."""
        ...

    async def commit(self) -> None:
        """Store what is processed. Raises SessionExpiredError, ZooKeeperError, CoordinatorError."""
        ...

    async def resume_after_replay(self, progress: Progress) -> None:
        """Fetch on behind the planned range of a claim, which has been written again and committed.

        Raises SessionExpiredError, ZooKeeperError.
        """
        ...


# Seconds. `has` may first publish the files of a member that died, on a slow disk.
PATIENCE = 60.0

_Answer = TypeVar("_Answer")


def destination_of(name: str, can: Capabilities) -> SinkDestination | None:
    """None if the sink is not replayable."""
    return _Asked(name, can.destination, can) if can.destination is not None else None


class _Asked:
    def __init__(self, name: str, sink: Destination, can: Capabilities) -> None:
        self._name = name
        self._sink = sink
        self._can = can

    def __str__(self) -> str:
        described = self._can.described()
        return f"sink {self._name} ({described})" if described else f"sink {self._name}"

    @property
    def fingerprint(self) -> str:
        return self._sink.fingerprint

    @property
    def remembers(self) -> bool:
        return self._can.remembers()

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        found = await self._answer(self._sink.has(ranges))
        if not isinstance(found, Collection):  # a generator would have been read after the first look
            kind = type(found).__name__
            raise SinkError(f"sink {self._name}: `has` returned a {kind}; it returns a collection of ranges")
        return found

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        if self._can.set_aside is None:
            return part not in await self.has([part])
        return await self._answer(self._can.set_aside(part, records))

    async def _answer(self, answer: Awaitable[_Answer]) -> _Answer:
        with sink_failures(self._name):
            with anyio.move_on_after(PATIENCE):
                return await answer
            raise SinkError(f"sink {self._name}: no answer within {PATIENCE:g} s whether planned ranges are published")


log = get_logger("kzconsumer.sink")


class RangePlans:
    """Plans what a replayable sink is about to write, and checks what it writes again.

    The fingerprint in a plan is that of `destination` when the plan is made: a destination may find its own in what it
    opens. With `refuses_loss` a range is not written again if the log no longer has the records that were planned.
    """

    def __init__(
        self, owned: OwnedRanges, destination: SinkDestination, isolation: str, *, refuses_loss: bool = False
    ) -> None:
        self._owned = owned
        self.destination = destination
        self._isolation = isolation
        self._refuses_loss = refuses_loss

    async def begin(self, cut: OwnedBatch) -> OwnedBatch:
        """Returns the part of the batch that may be written: of claims still owned, and planned.

        A replay whose records differ from those planned is logged, or raises RangeChangedError. Raises ZooKeeperError
        when it is unknown whether the plans are stored.
        """
        # A response to Fetch does not say which topic of that name it is of. So the topics are looked at here, when the
        # records are at hand: if one is still that of the claim, so it was while they were fetched. If it is another
        # one, its first records may be among them. Planned and written under the incarnation of the earlier topic, they
        # would be written again when the partition is claimed as that of the new one. What was in hand of the earlier
        # topic is lost with it. A sink that fetches looks once more, when it has the records.
        await self._owned.lose_recreated(cut.parts)
        parts = {progress: part for progress, part in cut.parts.items() if not progress.lost}
        batch = cut.batch
        if batch.is_replay and parts:
            ((progress, part),) = parts.items()
            plan = progress.replay
            assert plan is not None
            assert (part.first, part.until) == (plan.first, plan.until), f"{part.range} is not what was planned"
            self._compare(part.range, _Figures(plan.records, plan.checksum), _figures(part))
            again = {progress: _led(part.without(plan.left_out), progress)}
            return self._planned(again, plan.done, is_replay=True)
        try:
            ours = await self._owned.plan(
                {progress: self._plan(progress, part) for progress, part in parts.items() if part.records}
            )
        except SessionExpiredError:
            ours = ()  # reported by `sessions`; the claims are gone
        parts = {progress: part for progress, part in parts.items() if progress in ours or not part.records}
        kept = {progress: _led(part, progress) for progress, part in parts.items()}
        return self._planned(kept, (), is_replay=False)

    def _planned(self, parts: dict[Progress, RangeData], done: Iterable[str], *, is_replay: bool) -> OwnedBatch:
        like = Batch((), is_replay, self.steps(parts, done), follows(parts), self._found(parts))
        return OwnedBatch(parts, like)

    async def end(self, batch: OwnedBatch) -> None:
        """The batch is written, and committed unless the session expired."""
        if batch.batch.is_replay:
            with contextlib.suppress(SessionExpiredError):  # as above
                await self._owned.resume_after_replay(*batch.parts)

    def require_room(self, offsets: Mapping[Progress, Spans]) -> None:
        """Raises SinkError if `reject` would find these records too many."""
        try:
            self._owned.require_room(offsets)
        except ValueError as error:
            raise SinkError(f"rejected: {error}") from error

    async def reject(self, offsets: Mapping[Progress, Spans]) -> Collection[Progress]:
        """Store which records are not written with the ranges of these claims; returns the claims still owned.

        Raises SinkError if they are too many, ZooKeeperError.
        """
        try:
            return await self._owned.record_rejected(offsets)
        except SessionExpiredError:
            return ()  # as above
        except ValueError as error:
            raise SinkError(f"rejected: {error}") from error

    def steps(self, owned: Collection[Progress], done: Iterable[str]) -> Steps:
        """The steps of a write of these claims' ranges; `done` are known to be done."""

        async def record(step: str) -> bool:
            try:
                return bool(await self._owned.record_step(owned, step))
            except SessionExpiredError:
                return False  # as above

        return Steps(done, record)

    def _found(self, parts: Mapping[Progress, RangeData]) -> Found:
        """Completes the plans of these claims, of ranges that the sink fetches."""
        plans = {progress: progress.replay for progress in parts}
        known = {
            progress: _Figures(plan.records, plan.checksum) for progress, plan in plans.items() if plan is not None
        }

        async def found(contents: Mapping[TopicPartition, Contents]) -> None:
            # Who writes the range next must know what this member is about to publish, as of a range that was planned
            # with its checksum. Nothing is published before this is stored, so a plan without a checksum says that
            # nothing of the range was published by its member, and whatever the log has now may be written. Two members
            # may be here at once: the former owner, who does not know yet that its claim is lost, and the next one,
            # who replays. The claim record takes one of them: the write of the former owner fails with its claim, or
            # was before the claim of the next one, who finds it in the plan and compares. If log compaction ran
            # between their reads, the next owner reports it, or refuses; it cannot find the difference later, since the
            # destination has the range of the one that published first.
            here = {each: contents[each.topic_partition] for each in parts if each.topic_partition in contents}
            now = {progress: _Figures(each.records, each.checksum) for progress, each in here.items()}
            for progress, figures in now.items():
                if progress in known:
                    self._compare(parts[progress].range, known[progress], figures)
            try:
                ours = await self._owned.record_contents(now)
            except SessionExpiredError:
                ours = ()  # reported by `sessions`; the claims are gone
            if now and not ours:
                raise StepNotRecordedError("what was read is not recorded: the partitions of the batch are lost")
            known.update(now)  # another attempt of this member reads again

        return found

    def _compare(self, part: OffsetRange, planned: _Figures, found: _Figures) -> None:
        """Logs that the records of a range are not those that were planned, or raises RangeChangedError."""
        if found == planned or not (found.checksum and planned.checksum):
            return
        changed = (
            f"{part.topic_partition}: offsets {part.first} to {part.until} were planned with {planned.records} records "
            f"(checksum {planned.checksum}) and not committed; "
            f"the log holds {found.records} there now (checksum {found.checksum})"
        )
        if self._refuses_loss:
            raise RangeChangedError(f'{changed}. Set [offsets] reset = "smallest" to continue with these')
        log.error("planned range has changed in the log", **part._asdict(), reason=changed)

    def _plan(self, progress: Progress, part: RangeData) -> Plan:
        led = progress.leader_epochs.before(part.until)
        return Plan(
            id=uuid.uuid4().hex,
            first=part.first,
            until=part.until,
            offset_version=-1,  # set by the committer
            **_figures(part)._asdict(),
            incarnation=f"{part.incarnation:#x}",
            epoch=part.epoch,
            isolation=self._isolation,
            fingerprint=self.destination.fingerprint,
            leader_epoch=led if led >= 0 else msgspec.UNSET,
        )


def _led(part: RangeData, progress: Progress) -> RangeData:
    """With the leader epoch, if the sink fetches the range; of a replay that of its plan."""
    if part.fetched:
        return part
    plan = progress.replay
    epoch = progress.leader_epochs.before(part.until) if plan is None else plan.epoch_before_end
    return msgspec.structs.replace(part, leader_epoch=epoch)


def follows(owned: Iterable[Progress]) -> tuple[RangeIdentity, ...]:
    """The last range that was written of each claim, if one is known."""
    return tuple(
        RangeIdentity(*each.topic_partition, each.incarnation, each.epoch, *each.written)
        for each in owned
        if each.written is not None
    )


class _Figures(NamedTuple):
    """Of a range, as a plan has them: `checksum` is empty if the records are not at hand."""

    records: int
    checksum: str


def _figures(part: RangeData) -> _Figures:
    return _Figures(part.records, contents_of(part.batches).checksum if part.fetched else "")
