"""Ranges as Spark's worker gets them."""

from __future__ import annotations

from typing import Final

from kzconsumer.model import OffsetRange
from kzconsumer.settings.settings import Settings
from kzconsumer_spark.worker_protocol.messages import BatchRange

SETTINGS: Final = Settings.from_dict({"zookeeper": {"connect": "127.0.0.1:1"}, "group": {"id": "g"}})
"""Of a member whose servers are not there: for sinks that are not to fetch."""


def batch_range(
    topic: str = "t",
    partition: int = 0,
    first: int = 0,
    until: int = 9,
    *,
    records: int | None = None,
    incarnation: int = 1,
    epoch: int = 0,
) -> BatchRange:
    """All of it is to be fetched, and has a record at each offset if `records` does not say otherwise."""
    return BatchRange(
        topic=topic,
        partition=partition,
        first=first,
        until=until,
        incarnation=incarnation,
        epoch=epoch,
        records=until - first if records is None else records,
        spans=(OffsetRange(topic, partition, first, until),) if first < until else (),
    )
