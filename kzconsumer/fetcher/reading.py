"""What a fetcher makes of the bytes it fetched: columns of records, few records one by one, or the bytes themselves.

Owns no state. Chosen once for a connector, by what its caller wants; run by the BrokerFetcher, in a thread where it
takes long.
"""

from __future__ import annotations

from typing import Protocol

from kzconsumer.model import Wants
from kzconsumer.protocol.fetch import FetchedPartition
from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.few_records import FewRecords, read_few
from kzconsumer.records.whole_batches import keep

SMALL = 16 * 1024
"""Bytes in which it is worth while to look for few records."""


class Reading(Protocol):
    """Reads one partition's part of a response."""

    def __call__(self, part: FetchedPartition, start: int, room: int | None = None, /) -> Decoded:
        """`start`: the offset that was asked for; `room`: as for `decode`. Never raises."""
        ...


def reading(wants: Wants, largest_body: int, *, few: bool = False) -> Reading:
    """`largest_body`: bytes a batch may decompress to, before it counts as corrupt; raw ones are not decompressed.

    `few`: a small response is read one by one, and made into columns when somebody asks for them.
    """
    if wants == "raw":
        return _raw

    def columns(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        topic, partition = part.topic_partition
        return decode(
            part.records,
            topic=topic,
            partition=partition,
            start=start,
            aborted=part.aborted,
            largest_body=largest_body,
            room=room,
        )

    def few_or_columns(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        size = len(part.records)
        found = read_few(part.records, start) if size <= SMALL and not part.aborted else None
        if found is None:
            return columns(part, start, room)
        records, until = found
        few = FewRecords(records, lambda: columns(part, start).batch)
        return Decoded(None, until, False, None, size, few=few)

    return few_or_columns if few else columns


def _raw(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
    return keep(part.records, start)
