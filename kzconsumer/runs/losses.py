"""Records of a run that are no longer in the log: whether the run continues, and with which ends.

All partitions are checked, since one that is owned by an original member, or by none, must not block the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from kzconsumer.brokers.log_offsets import END_PATIENCE, LogOffsets
from kzconsumer.brokers.protocol.leader_epochs import EpochEnd
from kzconsumer.brokers.protocol.list_offsets import LATEST, ListedOffset
from kzconsumer.clock import now
from kzconsumer.errors import BrokersUnreachableError, KzConsumerError, OffsetLostError, SessionExpiredError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.registry.run_record import GroupRun
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.values import FAIL

log = get_logger("kzconsumer.group")

LOG_LOOK = 2.0
"""Seconds between two looks at topics and logs."""


class RunLosses:
    """`log_offsets` are with READ_UNCOMMITTED, since records of open transactions are not lost; `reset` and, for a
    replayable sink, `truncated` are the settings of [offsets]."""

    def __init__(
        self, topics: TopicRegistry, log_offsets: LogOffsets, reset: str, truncated: str | None = None
    ) -> None:
        self._topics = topics
        self._log_offsets = log_offsets
        self._reset = reset
        self._truncated = truncated
        self._looked = -math.inf
        self._too_short: dict[TopicPartition, float] = {}  # since when
        self._compare_at = -math.inf
        self._differs: dict[TopicPartition, float] = {}  # since when

    async def reachable(self, run: GroupRun, short: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """New ends for partitions that cannot be read up to their ends; `short` has the stored offset of each.

        A deleted or recreated topic ends where it is committed. Raises OffsetLostError if the settings say to fail,
        SessionExpiredError, ConnectionLostError, ZooKeeperError.
        """
        time = now()
        if time - self._looked < LOG_LOOK:
            return {}
        self._looked = time
        there = await self._there(run, short)
        if there is None:
            return {}
        if not there:
            if self._reset == FAIL:
                partition, at = min(short.items())
                raise _lost(run, partition, f"is committed up to {at}, and its topic was deleted", 'reset = "smallest"')
            return dict(short)
        ends = await self._ends([partition for partition in short if partition.topic in there], run, time)
        if ends and (setting := self._against_truncation) is not None:
            partition, end = min(ends.items())
            raise _lost(run, partition, f"has a log that ends at {end} now: it was truncated", setting)
        return ends

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
