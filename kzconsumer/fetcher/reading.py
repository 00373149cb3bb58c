"""What a fetcher makes of the bytes it fetched: columns of records, or the bytes themselves.

Owns no state. Chosen once for a connector, by what its caller wants; run in threads by the BrokerFetcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from kzconsumer.model import Wants
from kzconsumer.protocol.fetch import FetchedPartition
from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.whole_batches import keep

Reading: TypeAlias = Callable[[FetchedPartition, int], Decoded]
"""Of one partition's part of a response and the offset that was asked for; never raises."""


def reading(wants: Wants, largest_body: int) -> Reading:
    """`largest_body`: bytes a batch may decompress to, before it counts as corrupt; raw ones are not decompressed."""
    if wants == "raw":
        return _raw

    def columns(part: FetchedPartition, start: int) -> Decoded:
        topic, partition = part.topic_partition
        return decode(
            part.records,
            topic=topic,
            partition=partition,
            start=start,
            aborted=part.aborted,
            largest_body=largest_body,
        )

    return columns


def _raw(part: FetchedPartition, start: int) -> Decoded:
    return keep(part.records, start)
