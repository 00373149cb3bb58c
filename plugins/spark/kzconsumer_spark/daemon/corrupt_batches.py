"""Corrupt batches that tasks have met: the member passes over them, as `[fetch] on_corrupt` says, and logs them.

A task that meets one fails, so nothing of its batch is published before that is decided. The next attempt fetches what
is before and behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from kzconsumer.fetcher.delivery import CorruptPolicy
from kzconsumer.fetcher.range_reader import range_reader
from kzconsumer.model import OffsetRange, count_offsets
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.pipe.messages import BatchRange


class CorruptBatches:
    """Those of the ranges in hand."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._policy = CorruptPolicy(settings.fetch)
        self._passed: list[OffsetRange] = []

    def begin(self, ranges: Iterable[OffsetRange]) -> None:
        """Forget those of other ranges; these may be written again."""
        whole = [*ranges]
        self._passed = [each for each in self._passed if any(_overlap(each, part) for part in whole)]

    async def carry_out(self, span: OffsetRange) -> bool:
        """Pass over the batch at the beginning of `span`; False if it can be read now, as from another leader.

        Raises UnusableBatchError if there is no way over it, KzConsumerError if it cannot be set aside; as
        `range_reader` and `RangeReader.way_over` for servers that do not answer.
        """
        async with range_reader(self._settings) as reader:
            until = await reader.way_over(span, self._policy)
        if until > span.first:
            self._passed.append(span._replace(until=until))
        return until > span.first

    def without(self, part: BatchRange) -> BatchRange:
        """What is to be fetched of the range."""
        spans = part.spans
        for passed in self._passed:
            spans = tuple(rest for span in spans for rest in _outside(span, passed))
        gone = count_offsets(part.spans) - count_offsets(spans)
        return msgspec.structs.replace(part, spans=spans, records=max(part.records - gone, 0)) if gone else part


def _overlap(one: OffsetRange, other: OffsetRange) -> bool:
    return one.topic_partition == other.topic_partition and one.first < other.until and other.first < one.until


def _outside(span: OffsetRange, passed: OffsetRange) -> Iterator[OffsetRange]:
    if not _overlap(span, passed):
        yield span
        return
    if span.first < passed.first:
        yield span._replace(until=passed.first)
    if passed.until < span.until:
        yield span._replace(first=passed.until)
