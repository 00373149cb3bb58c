"""The group's bounded runs: end offsets that are fixed once for all members, and when all below them is committed.

All members write the node `/consumers/<group>/run`, by version. How runs follow each other: docs/scheduled-jobs.md.
`RunLosses` decides about records of a run that are no longer in the log.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial

import anyio
import msgspec

from kzconsumer.brokers.leaders import END_PATIENCE, LogOffsets
from kzconsumer.brokers.protocol.log_reads import ISOLATION_LEVELS, LATEST, READ_UNCOMMITTED, EpochEnd, ListedOffset
from kzconsumer.clock import now
from kzconsumer.errors import (
    BadVersionError,
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    NodeExistsError,
    NoNodeError,
    NotFoundError,
    OffsetLostError,
    RunUnreadableError,
    SessionExpiredError,
    UnsupportedVersionError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry import paths as nodes
from kzconsumer.registry.cluster import ClusterView, broker_pool, open_session
from kzconsumer.registry.cluster_topics import TopicSource, other_topics
from kzconsumer.registry.group_records import (
    DELETED,
    GroupRun,
    Registration,
    TopicEnds,
    decode_group_run,
    encode_group_run,
    has_wildcard,
    registered,
    subscribed_topics,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.value_readers import FAIL
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.watches import repeated

log = get_logger("kzconsumer.group")

LOG_LOOK = 2.0
"""Seconds between two looks at topics and logs."""


Committed = Callable[[GroupRun, Collection[str]], Awaitable[Mapping[TopicPartition, int]]]
"""Up to where all partitions of deleted topics are committed, and at most up to their ends; 0 if that is unknown."""


class RunLosses:
    """Whether a run continues whose records are no longer in the log, and with which ends.

    All partitions are checked, since one that is owned by an original member, or by none, must not block the run.
    `log_offsets` are with READ_UNCOMMITTED, since records of open transactions are not lost; `reset` and, for a
    replayable sink, `truncated` are the settings of [offsets].
    """

    def __init__(self, topics: TopicSource, log_offsets: LogOffsets, reset: str, truncated: str | None = None) -> None:
        self._topics = topics
        self._log_offsets = log_offsets
        self._reset = reset
        self._truncated = truncated
        self._looked = -math.inf
        self._too_short: dict[TopicPartition, float] = {}  # since when
        self._compare_at = -math.inf
        self._differs: dict[TopicPartition, float] = {}  # since when

    async def reachable(self, run: GroupRun, short: Collection[TopicPartition], committed: Committed) -> GroupRun:
        """The run with the ends up to which these partitions, which are not committed up to theirs, can be read.

        A deleted or recreated topic ends where it is committed. Raises OffsetLostError if the settings say to fail,
        SessionExpiredError, ConnectionLostError, ZooKeeperError.
        """
        time = now()
        if time - self._looked < LOG_LOOK:
            return run
        self._looked = time
        there = await self._there(run, short)
        if there is None:
            return run
        if deleted := {partition.topic for partition in short} - there:
            at = await committed(run, deleted)
            lost = [partition for partition, end in run.ends.items() if at.get(partition, end) < end]
            if not lost or self._reset != FAIL:
                return run.without(at)
            if not there:
                what = f"is committed up to {at[min(lost)]}, and its topic was deleted"
                raise _lost(run, min(lost), what, 'reset = "smallest"')
        ends = await self._ends([partition for partition in short if partition.topic in there], run, time)
        if ends and (setting := self._against_truncation) is not None:
            partition, end = min(ends.items())
            raise _lost(run, partition, f"has a log that ends at {end} now: it was truncated", setting)
        return run.ending_at(ends)

    async def hold(self, run: GroupRun, reached: Mapping[TopicPartition, tuple[int, int]]) -> bool:
        """Whether the logs hold what is committed beyond the run's ends; else they are to be compared again.

        `reached` has the stored offset and the leader epoch of the record before it, -1 if unknown. A log that does not
        gets a few seconds: its partition's owner notices the same, and begins again where the log differs. Raises as
        `reachable`.
        """
        time = now()
        if time < self._compare_at:
            return False
        self._compare_at = time + LOG_LOOK  # unless all is well
        there = await self._there(run, reached)
        asked = {partition: at for partition, at in reached.items() if there is not None and partition.topic in there}
        try:
            ends = await self._log_offsets.once(dict.fromkeys(asked, LATEST))
            known = {partition: epoch for partition, (_, epoch) in asked.items() if epoch >= 0}
            epoch_ends = await self._log_offsets.epoch_ends(known) if known else {}
        except SessionExpiredError:
            raise
        except KzConsumerError as error:
            log.debug("log offsets of the run unavailable", reason=str(error))
            return False
        differs: dict[TopicPartition, tuple[int, int]] = {}  # where each ends or begins to differ, and its end
        answered = there is not None
        for partition, (at, _) in asked.items():
            listed, epoch_end = ends[partition], epoch_ends.get(partition)
            answered = answered and isinstance(listed, ListedOffset) and isinstance(epoch_end, EpochEnd | None)
            if isinstance(listed, ListedOffset) and 0 <= listed.offset < at:
                differs[partition] = listed.offset, listed.offset
            if isinstance(epoch_end, EpochEnd) and 0 <= epoch_end.end_offset < at and isinstance(listed, ListedOffset):
                differs[partition] = epoch_end.end_offset, listed.offset
        self._differs = {partition: self._differs.get(partition, time) for partition in differs}
        over = {partition for partition, since in self._differs.items() if time - since >= END_PATIENCE}
        for partition in sorted(over):
            (first, end), (at, epoch) = differs.pop(partition), asked[partition]
            if (setting := self._against_truncation) is not None:
                what = f"is committed up to {at} (leader epoch {epoch}), and the log differs from {first} on: it was"
                raise _lost(run, partition, f"{what} truncated, and ends at {end}", setting)
            event, where = "log truncated below the consumed offset", partition._asdict()
            log.error(event, **where, first=first, until=at, log_end=end, continues_at=at, leader_epoch=epoch)
        if answered and not differs:
            self._compare_at = -math.inf
        return answered and not differs

    async def _there(self, run: GroupRun, partitions: Iterable[TopicPartition]) -> set[str] | None:
        """Those of their topics that are still those of the run; None if nobody answers."""
        try:
            # A ZooKeeper that has lost its nodes may be restored from a copy: its topics are not deleted.
            if not await self._topics.has_cluster():
                return None
            found = await self._topics.incarnations({partition.topic for partition in partitions})
            deleted = await self._topics.deleted()
        except BrokersUnreachableError as error:
            log.debug("topics of the run unavailable", reason=str(error))
            return None
        return {
            topic
            for topic, number in found.items()
            if topic not in deleted and f"{number:#x}" == run.topics[topic].incarnation
        }

    @property
    def _against_truncation(self) -> str | None:
        """The setting with which to go on, None if it is set."""
        if self._truncated is not None and self._truncated != "continue":
            return 'truncated = "continue"'
        return 'reset = "smallest"' if self._reset == FAIL else None

    async def _ends(self, partitions: list[TopicPartition], run: GroupRun, time: float) -> dict[TopicPartition, int]:
        """The ends of those logs that have been too short for `END_PATIENCE`; `time`: now."""
        try:
            found = await self._log_offsets.once(dict.fromkeys(partitions, LATEST))
        except SessionExpiredError:
            raise
        except KzConsumerError as error:
            log.debug("log offsets of the run unavailable", reason=str(error))
            return {}
        run_ends = run.ends
        too_short = {
            partition: listed.offset
            for partition, listed in found.items()
            if isinstance(listed, ListedOffset) and 0 <= listed.offset < run_ends[partition]
        }
        self._too_short = {partition: self._too_short.get(partition, time) for partition in too_short}
        return {p: end for p, end in too_short.items() if time - self._too_short[p] >= END_PATIENCE}


def _lost(run: GroupRun, partition: TopicPartition, what: str, setting: str) -> OffsetLostError:
    return OffsetLostError(
        f"{partition} {what}; run {run.id} reads it up to {run.ends[partition]}. "
        f"Set [offsets] {setting} to end the run without these records"
    )


PAUSE = 1.0
"""Seconds between two attempts."""
AT_A_LOOK = 32
"""Stored offsets read at one look; those of a run with many partitions are read one part after the other."""


class Runs:
    """The group's run on one session; the settings have `stop_at`, and the run's name if it has one."""

    def __init__(
        self,
        cluster: ClusterView,
        registration: Registration,
        *,
        replayable: bool,
    ) -> None:
        """`cluster` is of its own, since topics that are read here are not those of the membership."""
        settings = cluster.settings
        assert settings.subscription.stop_at is not None
        offsets = settings.offsets
        self._session = cluster.session
        self._topics = cluster.topics
        self._paths = GroupPaths(settings.group.id)
        self._offsets = ZooKeeperOffsetStorage(self._session, self._paths)
        self._registration = registration
        self._log_offsets = cluster.logs(ISOLATION_LEVELS[settings.fetch.isolation])
        whole = cluster.logs(READ_UNCOMMITTED)  # records of open transactions are not lost
        self._losses = RunLosses(self._topics, whole, offsets.reset, offsets.truncated if replayable else None)
        self._stop_at = settings.subscription.stop_at
        self._wanted = settings.subscription.run
        self._asked: GroupRun | None = None  # the run of `_outstanding`
        self._outstanding: list[tuple[TopicPartition, int]] = []
        self._read: set[TopicPartition] = set()  # those that were not committed up to their ends at some look
        self._seen: dict[tuple[TopicPartition, int], int] = {}  # stored offsets of each incarnation
        self._shortened: set[tuple[TopicPartition, int, int]] = set()  # logged: from this end to that one

    async def join(self) -> GroupRun:
        """The present run, or a new one, with our subscription added to it.

        A finished run of the configured name is returned as it is. Raises SessionExpiredError, ZooKeeperError,
        RunUnreadableError, UnsupportedVersionError for a time with brokers that cannot look it up, and NotFoundError
        for a topic that does not exist: a job with a misspelt topic must not look complete.
        """
        # The ends are fixed once for the whole group: a member that comes later would find other ends, and nothing
        # could show that a scheduled job is complete. The node is written at the version that was read, so of several
        # members that find no unfinished run one creates it, and the others read it. A run is replaced only once it is
        # marked `finished`, which takes every stored offset at its end: no state dies with a member.
        key = msgspec.json.encode([self._registration.pattern, *sorted(self._registration.subscription)]).decode()
        while True:
            node = await repeated(partial(self._session.find, self._paths.run))
            found = self._decoded(node)
            if found is not None and found.finished is not None and self._wanted == found.id:
                self._log("run already finished", found)
                return found
            fresh = found is None or found.finished is not None
            if not fresh and found is not None and key in found.subscriptions:
                self._log("run continued", found)
                return found
            if fresh or found is None:
                found = GroupRun(
                    id=self._wanted or uuid.uuid4().hex,
                    stop_at=self._stop_at,
                    began=_milliseconds(),
                    subscriptions=(),
                    topics={},
                )
            ends = await self._ends(found.stop_at)
            await self._require_topics(ends)
            found = msgspec.structs.replace(
                found, subscriptions=(*found.subscriptions, key), topics={**ends, **found.topics}
            )
            if await self._write(found, node):
                self._log("run started" if fresh else "run joined with additional topics", found)
                return found

    async def look(self, run: GroupRun) -> GroupRun:
        """The run as it is now; it is marked `finished` once every partition is committed up to its end.

        If the log has no more records below an end, the end is moved and every member logs it, or OffsetLostError is
        raised, as the settings say. Raises SessionExpiredError, ConnectionLostError, ZooKeeperError,
        RunUnreadableError.
        """
        node = await self._session.find(self._paths.run)
        found = self._decoded(node)
        if found is None:  # it was deleted: the ends still hold
            await self._write(run, None)
            return run
        if found.id == run.id:  # perhaps with topics or ends changed by another member
            before, run = run, found
            self._log_shortened(before, run)
        if run.finished is not None:
            return run
        if self._asked is None or (self._asked.id, self._asked.topics) != (run.id, run.topics):
            there = {name for name, topic in run.topics.items() if topic.incarnation != DELETED}
            self._asked = run
            self._outstanding = sorted((each, end) for each, end in run.ends.items() if each.topic in there)
        while front := self._outstanding[:AT_A_LOOK]:
            stored = await self._stored(_incarnations(run, (partition for partition, _ in front)))
            if short := {partition for partition, end in front if stored.get(partition, 0) < end}:
                self._read |= short
                sooner = await self._losses.reachable(run, short, self._committed)
                return await self._shorten(run, sooner, node if found.id == run.id else None) if sooner != run else run
            # Nobody fetches what was committed up to its end before: nobody else finds out that the log was cut off.
            if before_run := {each: at for each, at in stored.items() if at and each not in self._read}:
                epochs = await self._offsets.leader_epochs(before_run)
                if not await self._losses.hold(run, {p: (at, epochs[p]) for p, at in before_run.items()}):
                    return run
            del self._outstanding[:AT_A_LOOK]
        # An owner may find out between our reading and this write that a log was cut off, and go back. That is as if it
        # had been cut off after the run: what has taken the place of the lost records belongs to the next run.
        over = msgspec.structs.replace(run, finished=_milliseconds())
        if found.id == run.id and not await self._write(over, node):
            return run  # it has changed meanwhile: look again
        self._log("run finished", over)
        return over

    async def _stored(self, incarnations: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that are stored of the run's topics, and not of earlier ones of their names."""
        stored = await self._offsets.stored_for(incarnations)
        self._seen.update({(partition, incarnations[partition]): at for partition, at in stored.items()})
        return stored

    async def _committed(self, run: GroupRun, topics: Collection[str]) -> dict[TopicPartition, int]:
        """See `Committed`."""
        # Members remove the offsets of a deleted topic. Its claim records have them, if leader epochs were known, until
        # the topic that was created again is claimed. Then only what was seen before is known, without the last commit.
        ends = {partition: end for partition, end in run.ends.items() if partition.topic in topics}
        incarnations = _incarnations(run, ends)
        stored = await self._offsets.removed(incarnations) | await self._stored(incarnations)
        seen = {each: self._seen.get((each, incarnation), 0) for each, incarnation in incarnations.items()}
        return {partition: min(at, ends[partition]) for partition, at in (seen | stored).items()}

    async def _shorten(self, run: GroupRun, sooner: GroupRun, node: Node | None) -> GroupRun:
        """`node` is the run's; None if another run has taken its place."""
        # Before it is written: who reads the run afterwards does not know the former ends, and neither does this
        # process, if it ends, or begins another session because the reply was lost.
        self._log_shortened(run, sooner)
        if node is not None and not await self._write(sooner, node):
            return run  # it has changed meanwhile: look again
        return sooner

    async def _require_topics(self, ends: Mapping[str, TopicEnds]) -> None:
        listed = () if has_wildcard(self._registration) else self._registration.subscription
        if missing := sorted(name for name in listed if name not in ends):
            paths = ", ".join(map(nodes.topic, missing))
            hint = other_topics(missing[0], await self._topics.all_topics())
            raise NotFoundError(f"{paths}: no such topic; {hint}")

    async def _ends(self, stop_at: int) -> dict[str, TopicEnds]:
        """The ends of all existing topics that we subscribe to; repeated until all are known."""
        while True:
            try:
                members = {"": self._registration}
                by_pattern = has_wildcard(self._registration)
                all_topics = tuple(await self._topics.all_topics()) if by_pattern else ()
                # A topic that is created again between these two answers gets the ends of the new one under the
                # incarnation of the old. So the run takes it for gone (`RunLosses`): it says so, and does not read it.
                topics = await self._topics.topics(subscribed_topics(members, all_topics))
                if by_pattern and not topics and not await self._topics.has_cluster():  # as in `RunLosses._there`
                    raise BrokersUnreachableError("no broker is registered, or ZooKeeper has lost its nodes")
                partitions = [TopicPartition(name, n) for name, topic in topics.items() for n in topic.partitions]
                found = await self._log_offsets.at_time(partitions, stop_at)
            except (SessionExpiredError, UnsupportedVersionError):
                raise
            except KzConsumerError as error:
                log.warning("run ends unavailable", reason=str(error))
                await anyio.sleep(PAUSE)
            else:
                return {
                    name: TopicEnds(
                        f"{topic.incarnation:#x}", {n: found[TopicPartition(name, n)] for n in topic.partitions}
                    )
                    for name, topic in topics.items()
                }

    async def _write(self, run: GroupRun, before: Node | None) -> bool:
        """False if another member has written meanwhile, or if the outcome is unknown."""
        data = encode_group_run(run)
        try:
            if before is None:
                await self._session.ensure(self._paths.root)
                await self._session.create(self._paths.run, data)
            else:
                await self._session.set(self._paths.run, data, before.stat.version)
        except (NodeExistsError, NoNodeError, BadVersionError, ConnectionLostError):
            return False
        return True

    def _decoded(self, node: Node | None) -> GroupRun | None:
        if node is None:
            return None
        try:
            return decode_group_run(node.data)
        except ValueError as error:
            raise RunUnreadableError(f"{self._paths.run}: {error}") from error

    def _log_shortened(self, before: GroupRun, run: GroupRun) -> None:
        """Log once what will not be read of each partition whose end was moved, or is about to be."""
        if before.topics == run.topics:
            return
        for partition, end in before.ends.items():
            sooner = run.ends.get(partition, end)
            if sooner < end and (partition, sooner, end) not in self._shortened:
                self._shortened.add((partition, sooner, end))
                event = "run shortened, records are no longer in the log"
                log.error(event, **partition._asdict(), first=sooner, until=end)

    @staticmethod
    def _log(event: str, run: GroupRun) -> None:
        log.info(
            event,
            run=run.id,
            began=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(run.began / 1000)),
            topics=len(run.topics),
            partitions=len(run.ends),
        )


def _incarnations(run: GroupRun, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    return {partition: int(run.topics[partition.topic].incarnation, 16) for partition in partitions}


def _milliseconds() -> int:
    return int(time.time() * 1000)


async def is_over(settings: Settings, is_ours: Callable[[GroupRun], bool], *, replayable: bool) -> bool:
    """Whether the configured run is finished. Waits for ZooKeeper and brokers; raises as `Runs.join`, `Runs.look`."""
    async with broker_pool(settings) as brokers:
        while True:
            try:
                async with open_session(settings.zookeeper, brief=True) as session:
                    cluster = ClusterView(session, settings, brokers)
                    runs = Runs(cluster, registered(settings.subscription), replayable=replayable)
                    return await _look(runs, is_ours)
            except (ConnectionLostError, SessionExpiredError) as error:
                log.info("checking again for remaining work", reason=str(error))
                await anyio.sleep(PAUSE)  # each attempt begins a session, which is a transaction of all servers


async def _look(runs: Runs, is_ours: Callable[[GroupRun], bool]) -> bool:
    while True:
        run, before = await runs.join(), None
        while run.finished is None and run != before:  # a shortened run may be finished: look again
            before, run = run, await runs.look(run)
        if run.finished is None:
            return False
        if is_ours(run):
            return True
