"""How a fetcher decodes what it fetched, chosen once for a member by the form in which its consumer wants records."""

from __future__ import annotations

from typing import Protocol

from kzconsumer.brokers.protocol.fetch import FetchedPartition
from kzconsumer.model import Wants
from kzconsumer.records.decode import Decoded, decode
from kzconsumer.records.whole_batches import keep


class Reading(Protocol):
    """Decodes one partition's part of a response."""

    def __call__(self, part: FetchedPartition, start: int, room: int | None = None, /) -> Decoded:
        """`start`: the offset that was asked for; `room`: as for `decode`. Never raises."""
        ...


def reading(wants: Wants, largest_body: int) -> Reading:
    """`largest_body`: bytes to which a batch may decompress before it counts as corrupt; raw ones stay compressed."""

    def decoded(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
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

    def raw(part: FetchedPartition, start: int, room: int | None = None) -> Decoded:
        return keep(part.records, start)

    return raw if wants == "raw" else decoded
