"""The sink of the contract's tests for tables (Delta, Iceberg)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from tests.support.delta import Writer


class TableSink:
    """A destination without Spark, so that a kill can happen between any two of its own steps."""

    def __init__(self, target: DeltaTarget | IcebergTarget, scratch: Path) -> None:
        """`target` is claimed."""
        self._target = target
        self._writer = Writer(target, scratch)
        self.fingerprint = target.fingerprint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return self._target.has(ranges)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return self._target.set_aside(part, records)

    async def write(self, batch: Batch) -> None:
        self._writer.publish(self._writer.stage(*batch.ranges), follows=batch.follows)
