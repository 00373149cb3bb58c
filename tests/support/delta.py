"""Ranges committed to a table (Delta, Iceberg) without Spark: Arrow writes their files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any, Generic, TypeVar

import msgspec
import pytest

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.parquet import record_table, write_records
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.worker.range_writers import TableTarget
from kzconsumer_spark.worker_protocol.messages import BatchRange, ToDelta
from tests.support.range_data import range_data

Target = TypeVar("Target", bound=TableTarget[Any])
OWNER = TargetOwner(cluster="c", group="g")
_HEADER = {"name": "key", "type": "string"}, {"name": "value", "type": "binary"}
_HEADERS = {
    "type": "array",
    "elementType": {"type": "struct", "fields": [{**each, "nullable": True, "metadata": {}} for each in _HEADER]},
    "containsNull": True,
}
_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "timestampType": "integer",
    "headers": _HEADERS,
}


def spark_columns(**types: object) -> str:
    """Columns as Spark reports them; without arguments, those of its Kafka source."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in (types or _TYPES).items()
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def claimed(path: Path, owner: TargetOwner = OWNER, partition_by: tuple[str, ...] = ()) -> DeltaTarget:
    target = DeltaTarget(ToDelta(path=str(path), partition_by=partition_by))
    target.mark(owner)
    return target


def race(writers: Sequence[Writer[Any]], rounds: int) -> list[bytes]:
    """All write the same range at once, again and again, and each knows how many it wrote: one wins each time.

    Returns the values that are in the table then.
    """
    with ThreadPoolExecutor(len(writers)) as threads:
        for first in range(rounds):
            start = Barrier(len(writers))

            def write(writer: Writer[Any], first: int = first, start: Barrier = start) -> int:
                staged = writer.stage(range_data("t", 0, first, first + 1))
                start.wait()
                return writer.publish(staged)

            assert sum(threads.map(write, writers)) == 1
    return sorted(b"v%d" % offset for offset in range(rounds))


def require_refused(writer: Writer[Any], copy: Callable[[], Callable[[], None]]) -> None:
    """A table that is restored from a copy while `writer` writes is not written behind a gap."""
    parts = [range_data("t", 0, 10 * n, 10 * n + 10) for n in range(5)]
    writer.publish(writer.stage(parts[0]))
    restore = copy()
    for before, part in pairwise(parts[:4]):
        assert writer.publish(writer.stage(part), follows=[before.identity]) == 1, "a copy changes nothing"
    restore()
    for _ in range(2):
        with pytest.raises(DestinationWentBackError, match="t-0: offsets 10 to 40 were written and committed, and are"):
            writer.publish(writer.stage(parts[4]), follows=[parts[3].identity])
    assert writer.target.has([part.identity for part in parts]) == [parts[0].identity]
    assert writer.publish(writer.stage(range_data("t", 1, 0, 10))) == 1, "what follows nothing is taken"


class Writer(Generic[Target]):
    """What the destination in the worker does, without Spark. Its scratch directory is its own."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self.target = target
        self._scratch = scratch

    def stage(self, *ranges: RangeData) -> list[StagedRange]:
        directory = self._scratch / uuid.uuid4().hex
        directory.mkdir(parents=True)
        return [self._staged(part, directory) for part in ranges]

    def publish(
        self,
        staged: Sequence[StagedRange],
        require_lease: Callable[[], None] = lambda: None,
        columns: str | None = None,
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        output = columns or (spark_columns() if any(each.files for each in staged) else None)
        return self.target.publish(self.target.open(), staged, uuid.uuid4().hex, output, require_lease, follows)

    def _staged(self, data: RangeData, directory: Path) -> StagedRange:
        part = BatchRange.of(data)
        if not part.records:
            return StagedRange(part, 0, 0, ())
        file = directory / f"staged-{part.topic}-{part.partition}"
        write_records(record_table(data), file, "snappy")
        return StagedRange(part, part.records, 0, [(file, file.name)])
