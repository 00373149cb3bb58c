"""The member of a streaming query: runs in a thread of the process that Spark's driver has for the source.

As in the daemon, the core plans ranges, commits them when the sink has written them, and leaves in order.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from kzconsumer.clock import now
from kzconsumer.consumer import subscribe
from kzconsumer.errors import ConfigError, sole_cause
from kzconsumer.logs.logger import facts, get_logger
from kzconsumer.model import RangeIdentity, Wants
from kzconsumer.own_files import ProcessLock, own_directory
from kzconsumer.sessions import Sessions
from kzconsumer.settings.sections import SubscriptionSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import TopicFilter
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Batch, RangeData
from kzconsumer.sinks.range_plans import RangePlans, destination_of
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.zookeeper.session import Lease
from kzconsumer_spark.source.prompt_commits import committed_ends
from kzconsumer_spark.source.source_options import WHERE
from kzconsumer_spark.source.stream_offset import PlannedRange, StreamOffset

# The sink of the member in a streaming query: hands planned ranges to Spark, and has them written once Spark says so.
#
# Spark asks for the next batch only when the one before is in its checkpoint, and passes the end of that one; a
# listener may have reported it before (`prompt_commits`). Until then `write` does not return, so the plans stay in
# ZooKeeper and no offset is committed. Ranges are planned when Spark asks. If it asks again much later (a suspended
# process), it gets only what no other member may deliver meanwhile.

_log = get_logger("kzconsumer.spark")


class HandOver:
    """Used in one event loop, in which it is made."""

    wants: Final[Wants] = "ranges"
    fingerprint: Final = "spark-source"
    destination: Final = "a streaming query"

    def __init__(self, offset: StreamOffset, due_records: int, lease: Lease) -> None:
        """`offset`: what Spark has committed."""
        self.due_records: Final = due_records
        self._lease = lease
        self.socket = ""
        """Where the end of a batch is to be reported when Spark has committed it."""
        self._committed = offset
        self._returned = offset
        self._asked = False
        self._offered: Sequence[RangeData] = ()
        # Not their identities: if a session expires before `write` is called, nothing clears this, and the replay of
        # the plan has the same identity in another object.
        self._lost: list[RangeData] = []
        self._change = anyio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [part for part in ranges if self._committed.covers(part)]

    async def asked(self) -> None:
        """Returns while Spark waits for a batch."""
        while not self._asked:
            await self._change.wait()

    async def write(self, batch: Batch) -> None:
        """Returns when Spark has committed all ranges that are not lost, as it may have done before."""
        if self._is_committed(batch):
            _log.info("ranges committed by Spark already", ranges=[str(part.range) for part in batch.ranges])
        try:
            self._offered = batch.ranges
            self._signal()
            while not self._is_committed(batch):
                await self._change.wait()
        finally:
            self._offered = ()
            self._lost.clear()

    def range_lost(self, part: RangeData) -> None:
        """The partition's next owner delivers it; if Spark has it already, both do."""
        self._lost.append(part)
        self._signal()

    def _is_committed(self, batch: Batch) -> bool:
        left = self._without_lost(batch.ranges)
        return bool(left) and all(self._committed.covers(part.identity) for part in left)

    def _without_lost(self, ranges: Sequence[RangeData]) -> list[RangeData]:
        return [part for part in ranges if not any(part is lost for lost in self._lost)]

    async def following(self, offset: StreamOffset, patience: float) -> StreamOffset:
        """The end of the next batch; `offset`, which Spark has committed, if there is none in `patience` seconds."""
        self._committed = offset
        self._asked = True
        self._signal()
        try:
            with anyio.move_on_after(patience):
                while True:
                    await self._lease.wait()
                    offered = map(_planned, self._without_lost(self._offered))
                    if (end := offset.after(offered, self.socket)) != offset:
                        self._returned = end
                        return end
                    await self._change.wait()
        finally:
            self._asked = False
        return offset

    def take(self, end: StreamOffset) -> None:
        """Spark has committed a batch; what is not the end of the one that it has been given last is of no concern."""
        if end == self._returned:
            self._committed = end
            self._signal()

    def _signal(self) -> None:
        self._change.set()
        self._change = anyio.Event()


def _planned(part: RangeData) -> PlannedRange:
    return PlannedRange(part.identity, part.spans, part.leader_epoch, part.weight)


_WAIT_SECONDS = 0.5
"""How long Spark waits for a batch at a time. After a query was stopped, its member leaves that much later."""
FIRST_BATCH_SECONDS = 15.0
"""How long it may wait for its first one, which takes joining: after a trigger without a batch an interval follows."""
EMPTY_BATCH_SECONDS = 15.0
"""After so long a run has an empty batch: what it waits for may be another source of the query, which Spark has not yet
asked, and so does not learn what is committed."""


class QueryMember:
    """Joins when it is made; its methods block. It belongs to one query, whose checkpoint ends at `offset`."""

    def __init__(self, settings: Settings, offset: StreamOffset, due_records: int) -> None:
        self._settings = settings
        self._bounded = settings.subscription.stop_at is not None
        self._parent = os.getppid()
        self._interrupted = False
        self._first_until = now() + FIRST_BATCH_SECONDS
        self._exits = ExitStack()
        self._portal = self._exits.enter_context(start_blocking_portal())
        self._lease = self._portal.call(Lease)
        self._hand_over = self._portal.call(HandOver, offset, due_records, self._lease)
        self._stop = self._portal.call(anyio.Event)
        self._ended: Future[None] = self._portal.start_task_soon(self._run)

    def following(self, offset: StreamOffset) -> StreamOffset:
        """The end of the next batch after `offset`, which Spark has committed; `offset` if there is none for a while.

        In a bounded run that means that the run is over. Raises KzConsumerError when the member has ended with it.
        """
        deadline = now() + EMPTY_BATCH_SECONDS
        while True:
            end = self._portal.call(self._hand_over.following, offset, _WAIT_SECONDS)
            if self._ended.done():
                self._ended.result()
                return offset
            if end != offset:
                self._first_until = 0.0
                return end
            if not self._bounded and now() > self._first_until:
                return end
            if self._interrupted or os.getppid() != self._parent:
                raise SystemExit("the query has been stopped, or Spark's driver has ended")
            if self._bounded and now() > deadline:
                return offset.empty()

    def interrupt(self) -> None:
        """Have `following` raise SystemExit. For a signal handler: an exception there could leave a lock held."""
        self._interrupted = True

    def leave(self) -> None:
        """Commit what Spark is known to have committed, and leave the group. A range in hand stays planned."""
        with self._exits:
            if not self._ended.done():
                self._portal.call(self._stop.set)
                self._ended.exception(self._settings.stop.deadline + 1)

    async def _run(self) -> None:
        """Until the run is over, or `leave`. Raises KzConsumerError."""
        facts()["group"] = self._settings.group.id
        destination = destination_of(WHERE, capabilities(self._hand_over))
        assert destination is not None
        sessions = Sessions(self._settings, lease=self._lease, wants="ranges", destination=destination)
        isolation, reset = self._settings.fetch.isolation, self._settings.offsets.reset
        plans = RangePlans(sessions, destination, isolation, refuses_loss=reset == "fail")
        runner = SinkRunner(WHERE, self._hand_over, self._settings.batch, sessions, plans)
        try:
            async with anyio.create_task_group() as tasks, committed_ends(self._take) as self._hand_over.socket:
                await tasks.start(runner.run)
                async with sessions.running():
                    tasks.start_soon(self._join, sessions, runner)
                    tasks.start_soon(self._until_finished, sessions)
                    await self._stop.wait()
                    sessions.stop_fetching()
                    await runner.stop(0)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = sole_cause(group)
            raise error from error.__cause__

    def _take(self, end: dict[str, Any]) -> None:
        with suppress(ValueError):  # of another group
            self._hand_over.take(StreamOffset.of_json(end, self._settings.group.id))

    async def _join(self, sessions: Sessions, runner: SinkRunner) -> None:
        await subscribe(sessions)
        runner.feed([cursor.queue for cursor in sessions.cursors.values()])
        self._first_until = min(self._first_until, now() + self._settings.batch.max_time + _WAIT_SECONDS)

    async def _until_finished(self, sessions: Sessions) -> None:
        await sessions.finished.wait()
        self._stop.set()


# The readers that the source has in one driver: two of one group must not read the same topic.
#
# Spark makes a reader, with a Python process of its own, for each `load()` of a query and for each query of one
# frame. Each is a member of the group, so they would share the partitions, and each query would get a part of the
# records. In one query it is worse: while the batch of the first is planned, the second takes its plan over, as from
# a member that died, and the batch has the records twice.
#
# A file for each driver and group on the driver's machine lists the readers. Entries of processes that have ended
# count no more.

_LOOK_SECONDS: Final = 0.1


class Reads(msgspec.Struct, frozen=True):
    """What one reader subscribes to; `began` distinguishes its process from a later one with the same id."""

    process: int
    began: str
    topics: tuple[str, ...]
    include: str | None
    exclude: str | None

    @property
    def filter(self) -> TopicFilter | None:
        return SubscriptionSettings(include=self.include, exclude=self.exclude).filter

    def shared(self, other: Reads) -> str | None:
        """A topic that both read, or what may stand for one; two patterns are taken to have topics in common."""
        if self.filter is not None and other.filter is not None:
            return "topics by pattern"
        for pattern, reads in ((self.filter, other), (other.filter, self)):
            if pattern is not None:
                return next((f"topic {topic}" for topic in reads.topics if pattern.allows(topic)), None)
        return next((f"topic {topic}" for topic in self.topics if topic in other.topics), None)


class DriverReaders:
    """The readers of the settings' group in the driver that is the parent of this process."""

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError if there is no directory that only this user can change."""
        wanted, driver = settings.subscription, os.getppid()
        self._group = settings.group.id
        self._reads = Reads(os.getpid(), _began(os.getpid()), tuple(wanted.topics), wanted.include, wanted.exclude)
        name = msgspec.json.encode([settings.zookeeper.connect, self._group, driver, _began(driver)])
        digest = hashlib.blake2b(name, digest_size=12).hexdigest()
        try:
            self._path = own_directory("spark") / f"readers-{digest}"
        except OSError as error:
            raise ConfigError([f"{WHERE}: {error}"]) from error

    def enter(self, patience: float) -> None:
        """Register this reader. Waits up to `patience` seconds for one that is leaving, as after `query.stop()`.

        Raises ConfigError if another one reads a topic of this one.
        """
        until = time.monotonic() + patience
        while True:
            with self._others() as others:
                clash = next(((each, what) for each in others if (what := self._reads.shared(each))), None)
                if clash is None:
                    others.append(self._reads)
                    return
            if time.monotonic() > until:
                other, what = clash
                raise ConfigError(
                    [
                        f"{WHERE}: {what} of group {self._group} is read in this driver already, by process "
                        f"{other.process}: give each query, and each load() of a query, a group.id of its own"
                    ]
                )
            time.sleep(_LOOK_SECONDS)

    def leave(self) -> None:
        with self._others():
            pass

    @contextmanager
    def _others(self) -> Iterator[list[Reads]]:
        """The readers of other processes, to be changed in the block. The file goes with the last one."""
        lock = self._locked()
        descriptor = lock.descriptor
        try:
            lines = os.pread(descriptor, os.fstat(descriptor).st_size, 0).splitlines()
            readers = [msgspec.json.decode(line, type=Reads) for line in lines]
            readers = [each for each in readers if _began(each.process) == each.began]
            readers = [each for each in readers if each.process != self._reads.process]
            yield readers
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"\n".join(map(msgspec.json.encode, readers)), 0)
            if not readers:
                self._path.unlink(missing_ok=True)
        finally:
            lock.release()

    def _locked(self) -> ProcessLock:
        while True:
            lock = ProcessLock.wait(self._path)
            assert lock is not None
            if os.fstat(lock.descriptor).st_nlink:
                return lock
            lock.release()  # its last reader has removed it meanwhile


def _began(process: int) -> str:
    """When it was started, in clock ticks since boot; "" if it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
