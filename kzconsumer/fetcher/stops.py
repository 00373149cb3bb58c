"""Where fetching ends, for a member that reads up to a point: fixed once for each partition, when it first comes.

Owns the fixed ends for as long as the connector lives: a partition that goes and comes back ends where it did. The
fetcher manager has them fixed before it fetches; whoever waits for the end asks `passed`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kzconsumer.fetcher.log_offsets import LogOffsets
from kzconsumer.model import TopicPartition
from kzconsumer.protocol.list_offsets import LATEST


class Stops:
    """`at`: LATEST for the end of each log, a time in ms since 1970, or an offset for each partition that ends."""

    def __init__(self, at: int | Mapping[TopicPartition, int]) -> None:
        self._at = at
        self._fixed: dict[TopicPartition, int | None] = {}

    def __repr__(self) -> str:
        return f"<Stops at {self._at}, {len(self._fixed)} fixed>"

    def __contains__(self, partition: TopicPartition) -> bool:
        """Whether it is known where, and if, this partition ends."""
        return partition in self._fixed

    def of(self, partition: TopicPartition) -> int | None:
        """The first offset that is not read any more; None for a partition that has no end."""
        return self._fixed[partition]

    def passed(self, partition: TopicPartition, processed: int) -> bool:
        """Everything up to the end is done."""
        stop = self._fixed.get(partition)
        return stop is not None and processed >= stop

    async def fix(self, partitions: Collection[TopicPartition], log_offsets: LogOffsets) -> None:
        """Find the ends of these. Raises as `LogOffsets.look_up`."""
        if isinstance(self._at, Mapping):
            self._fixed.update({partition: self._at.get(partition) for partition in partitions})
            return
        found = await log_offsets.look_up(dict.fromkeys(partitions, self._at))
        # No record at or after the time: everything there is.
        after_all = dict.fromkeys((partition for partition, at in found.items() if at.offset < 0), LATEST)
        found |= await log_offsets.look_up(after_all)
        for partition, at in found.items():
            self._fixed.setdefault(partition, at.offset)  # asked twice at once: the first answer is acted on already
