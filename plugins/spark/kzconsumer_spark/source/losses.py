"""What is left of planned ranges: a topic may have been deleted since, and a log may have lost its beginning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kzconsumer.errors import OffsetLostError
from kzconsumer.model import OffsetRange, RangeIdentity, TopicPartition


class Loss(NamedTuple):
    range: OffsetRange
    reason: str

    def error(self) -> OffsetLostError:
        """If `[offsets] reset` is "fail"."""
        way_out = 'Set [offsets] reset = "smallest" to go on without them'
        return OffsetLostError(f"{self.range} is planned and not committed, and {self.reason}. {way_out}")


def left(
    ranges: Iterable[RangeIdentity], gone: Mapping[tuple[str, int], str], starts: Mapping[TopicPartition, int]
) -> tuple[list[OffsetRange], list[Loss]]:
    """What can be read of the ranges, and what cannot.

    `gone`: see `PlannedTopics`; `starts`: the first offsets of the logs that were looked up.
    """
    found, lost = [], []
    for part in ranges:
        whole = OffsetRange(part.topic, part.partition, part.first, part.until)
        start = max(part.first, min(starts.get(whole.topic_partition, 0), part.until))
        if reason := gone.get((part.topic, part.incarnation)):
            lost.append(Loss(whole, reason))
            continue
        if part.first < start:
            lost.append(Loss(whole._replace(until=start), "retention has removed them from the log"))
        if start < part.until:
            found.append(whole._replace(first=start))
    return found, lost
