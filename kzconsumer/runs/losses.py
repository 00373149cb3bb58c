"""Records of a run that are no longer in the log: whether the run continues, and with which ends.

All partitions are checked, since one that is owned by an original member, or by none, must not block the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kzconsumer.brokers.log_offsets import LogOffsets
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
PATIENCE = 12.0
"""Seconds for which a log must be too short. A new leader may not know its log's end until a replica that has stopped
fetching no longer counts (replica.lag.time.max.ms); from 2.2 on it does not answer before (KIP-207)."""


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

    async def reachable(self, run: GroupRun, short: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """New ends for partitions that cannot be read up to their ends; `short` has the stored offset of each.

        A deleted or recreated topic ends where it is committed. Raises OffsetLostError if the settings say to fail,
        SessionExpiredError, ConnectionLostError, ZooKeeperError.
        """
        time = now()
        if time - self._looked < LOG_LOOK:
            return {}
        self._looked = time
        try:
            found = await self._topics.incarnations({partition.topic for partition in short})
            deleted = await self._topics.deleted()
        except BrokersUnreachableError as error:
            log.debug("topics of the run unavailable", reason=str(error))
            return {}
        there = {
            topic
            for topic, number in found.items()
            if topic not in deleted and f"{number:#x}" == run.topics[topic].incarnation
        }
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

    @property
    def _against_truncation(self) -> str | None:
        """The setting with which to go on, None if it is set."""
        if self._truncated is not None and self._truncated != "continue":
            return 'truncated = "continue"'
        return 'reset = "smallest"' if self._reset == FAIL else None

    async def _ends(self, partitions: list[TopicPartition], run: GroupRun, time: float) -> dict[TopicPartition, int]:
        """The ends of those logs that have been too short for `PATIENCE`; `time`: now."""
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
        return {p: end for p, end in too_short.items() if time - self._too_short[p] >= PATIENCE}


def _lost(run: GroupRun, partition: TopicPartition, what: str, setting: str) -> OffsetLostError:
    return OffsetLostError(
        f"{partition} {what}; run {run.id} reads it up to {run.ends[partition]}. "
        f"Set [offsets] {setting} to end the run without these records"
    )
