"""How a batch is divided into tasks: the parts of ranges that each of them fetches, and what it takes along.

The worker publishes each batch as a small file, which appears by one rename, and `range_source` finds it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql.datasource import InputPartition

from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.registry.claim_record import Spans
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka

if TYPE_CHECKING:
    from kzconsumer_spark.executors.fetching import TaskPolicy


class PublishedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be fetched, by one task for each part, and how.

    `epochs`: the leader epoch of each part; `left_out`: its records that are rejected. At most `tasks` run at a time.
    """

    parts: tuple[OffsetRange, ...]
    tasks: int
    epochs: tuple[int, ...]
    left_out: tuple[Spans, ...]
    brokers: tuple[Broker, ...]
    kafka: Kafka

    def range_parts(self, accounts: Path | None = None) -> list[RangePart]:
        """`accounts`: see `RangePart`."""
        access = BrokerAccess(self.kafka, self.brokers, tasks=self.tasks)
        parts = zip(self.parts, self.epochs, self.left_out, strict=True)
        return [RangePart(part, access, epoch, left_out, accounts) for part, epoch, left_out in parts]


class PublishedBatches:
    """The directory with the batches of one query. `publish` makes one visible, and removes the one before the last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def publish(self, number: int, batch: PublishedBatch) -> None:
        staged = self._path / "next"
        staged.write_bytes(msgspec.json.encode(batch))
        staged.rename(self._file(number))
        for file in self._file(number - 2), self.accounts(number - 2):
            file.unlink(missing_ok=True)

    def has(self, number: int) -> bool:
        return self._file(number).exists()

    def read(self, number: int) -> PublishedBatch:
        return msgspec.json.decode(self._file(number).read_bytes(), type=PublishedBatch)

    def accounts(self, number: int) -> Path:
        """The file to which tasks on the driver's machine add what they have read of a batch."""
        return self._path / f"{number}.accounts"

    def _file(self, number: int) -> Path:
        return self._path / f"{number}.json"


class RangePart(InputPartition):
    """What one task of the sink fetches. Pickled for it; its text is without secrets."""

    def __init__(
        self,
        part: OffsetRange,
        access: BrokerAccess,
        epoch: int = -1,
        left_out: Spans = (),
        accounts: Path | None = None,
    ) -> None:
        """`epoch`: -1 if it is unknown; `left_out`: see `PartReading`. `accounts`: None if the account is a row."""
        super().__init__(None)
        self.part = part
        self.access = access
        self.epochs = _known({part.topic_partition: epoch})
        self.left_out = left_out
        self.accounts = accounts

    def __repr__(self) -> str:
        return f"RangePart({self.part})"


class RangeParts(InputPartition):
    """What one task of a `GroupSource` fetches: parts of different partitions. As `RangePart`."""

    def __init__(
        self,
        parts: Sequence[OffsetRange],
        access: BrokerAccess,
        epochs: Mapping[TopicPartition, int],
        policy: TaskPolicy,
    ) -> None:
        """`epochs`: -1 where it is unknown; `policy`: see `fetched`."""
        super().__init__(None)
        self.parts = parts
        self.access = access
        self.epochs = _known(epochs)
        self.policy = policy

    def __repr__(self) -> str:
        return f"RangeParts({', '.join(map(str, self.parts))})"


def _known(epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    return {partition: epoch for partition, epoch in epochs.items() if epoch >= 0}


FEWEST_OFFSETS: Final = 10_000
FEWEST_BYTES: Final = 2_500_000
"""Of a part, whichever it has first: a task costs some milliseconds."""
_MOST: Final = 25
"""Times that in a part, if nothing says how many tasks run at a time: an eighth of the largest batch by default."""


def split(
    ranges: Collection[OffsetRange], tasks: int | None, weights: Mapping[TopicPartition, float]
) -> Iterator[OffsetRange]:
    """Parts of about the same size, as many as there are `tasks` at a time if the ranges are large enough.

    `weights`: see `RangeData.weight`.
    """
    sizes = {each: _size(each, weights.get(each.topic_partition, 0.0)) for each in ranges}
    most = _MOST if tasks is None else max(sum(sizes.values()) / tasks, 1)
    for each, size in sizes.items():
        pieces = min(max(math.ceil(size / most), 1), max(each.until - each.first, 1))
        bounds = [each.first + (each.until - each.first) * n // pieces for n in range(pieces + 1)]
        for first, until in pairwise(bounds):
            yield each._replace(first=first, until=until)


_MOST_TOGETHER: Final = 20
"""Partitions; a task that is run again fetches them all again."""


def task_ranges(
    ranges: Collection[OffsetRange], tasks: int | None, weights: Mapping[TopicPartition, float]
) -> list[list[OffsetRange]]:
    """The parts of `split` that each task fetches: small ones share a task, which costs more than they do, unless fewer
    than `tasks` would be left. Two parts of one partition share none."""
    parts = [*split(ranges, tasks, weights)]
    most = _MOST_TOGETHER if tasks is None else min(_MOST_TOGETHER, len(parts) // tasks)
    found: list[list[OffsetRange]] = []
    size = math.inf  # of the last one
    for each in parts:
        own = _size(each, weights.get(each.topic_partition, 0.0))
        if size + own > 1 or len(found[-1]) >= most or found[-1][-1].topic_partition == each.topic_partition:
            found.append([])
            size = 0.0
        found[-1].append(each)
        size += own
    return found


def _size(part: OffsetRange, weight: float) -> float:
    offsets = part.until - part.first
    return max(offsets / FEWEST_OFFSETS, offsets * weight / FEWEST_BYTES)
