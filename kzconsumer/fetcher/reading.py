"""What a fetcher makes of the bytes it fetched: columns of records, few records one by one, or the bytes themselves.

Owns no state. Chosen once for a connector, by what its caller wants; run by the BrokerFetcher, in a thread where it
takes long.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import pyarrow as pa

from kzconsumer.brokers.protocol.fetch import FetchedPartition
from kzconsumer.model import Wants
from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.few_records import FewRecords, read_few
from kzconsumer.records.whole_batches import keep

SMALL = 16 * 1024
"""Bytes in which it is worth while to look for few records."""

VIEWED_SHARE = 5
"""Raw bytes that are a fifth of their response or more are not copied: a few equal partitions fill it together, and are
mostly held together. By itself a chunk keeps at most five times its bytes."""


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
        if len(part.records) > SMALL or part.aborted:
            return columns(part, start, room)
        found = read_few(part.records, start)
        if found is None:
            return columns(part, start, room)
        records, until = found
        copied = msgspec.structs.replace(part, records=memoryview(bytes(part.records)))  # a view keeps the response
        few = FewRecords(records, lambda: columns(copied, start).batch)
        return Decoded(None, until, False, None, len(part.records), few=few)

    return few_or_columns if few else columns


def _raw(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
    found = keep(part.records, start)
    return found if found.raw is None else msgspec.structs.replace(found, raw=_own(found.raw))


def _own(view: memoryview) -> memoryview:
    """The bytes of a view, copied if they are less than a `VIEWED_SHARE` of the response that it keeps in memory."""
    if VIEWED_SHARE * len(view) >= memoryview(view.obj).nbytes:
        return view
    copy = memoryview(pa.allocate_buffer(len(view))).cast("B")
    copy[:] = view
    return copy.toreadonly()
