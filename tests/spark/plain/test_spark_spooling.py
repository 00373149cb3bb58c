"""Spool files of the Spark sink: written ahead, used once, and removed when no longer needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError, SinkContext
from kzconsumer_spark.daemon import spool as spool_module
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.daemon.spool import Spooled, Spooling, SpoolPlace
from tests.support.range_data import range_data, record

ONE = [range_data("t", 0, 0, 5), range_data("t", 1, 7, 9)]
NEXT = [range_data("t", 0, 5, 8), range_data("t", 1, 9, 10)]


def files(directory: Path) -> list[Path]:
    return sorted(each for each in directory.rglob("*") if each.is_file())


def rows(spooled: Spooled) -> list[int]:
    return [pq.read_metadata(each.file).num_rows for each in spooled.files if each.file is not None]


async def test_prepared_files_are_used_and_not_written_again(tmp_path: Path) -> None:
    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    await spool.prepare(ONE)
    ahead = files(tmp_path)
    taken = await spool.take(ONE)
    assert (files(tmp_path), rows(taken)) == (ahead, [5, 2])
    await spool.prepare(NEXT)  # while that one is written
    assert len(files(tmp_path)) == 4
    await spool.remove(taken)
    assert rows(await spool.take(NEXT)) == [3, 1]
    assert len(files(tmp_path)) == 2


async def test_files_of_lost_ranges_are_removed_with_the_rest(tmp_path: Path) -> None:
    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    await spool.prepare(ONE)
    taken = await spool.take(ONE[1:])
    assert [each.partition for each in taken.files] == [1]
    await spool.remove(taken)
    assert files(tmp_path) == []


async def test_a_range_without_its_rejected_records_is_spooled_again(tmp_path: Path) -> None:
    """It was prepared with them. What a trial spools leaves the prepared files alone."""
    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    await spool.prepare(ONE)
    tried = await spool.fresh([ONE[0].between(0, 2)])
    assert rows(tried) == [2]
    await spool.remove(tried)
    assert rows(await spool.take([ONE[0].without(((1, 2),)), ONE[1]])) == [4, 2]


async def test_a_prepared_batch_that_is_never_written_is_removed(tmp_path: Path) -> None:
    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    await spool.prepare(ONE)
    await spool.prepare(NEXT)
    assert len(files(tmp_path)) == 2
    other = await spool.take([range_data("t", 2, 0, 4)])  # this one is not written either
    assert rows(other) == [4]
    assert len(files(tmp_path)) == 1
    await spool.remove(other)
    assert files(tmp_path) == []


async def test_a_range_delivered_again_during_its_write_has_two_files(tmp_path: Path) -> None:
    """Its claim was lost and made again while the batch continues for its other partitions."""
    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    taken = await spool.take(ONE)
    await spool.prepare(ONE)
    await spool.remove(taken)
    assert rows(await spool.take(ONE)) == [5, 2]


async def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(place: SpoolPlace, ranges: Sequence[RangeData]) -> None:
        Path(place.path, "half.parquet").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    spool = Spooling(SpoolPlace.in_directory(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(spool_module, "write_spool", fill)
        with pytest.raises(OSError, match="No space"):
            await spool.prepare(ONE)
    assert files(tmp_path) == []
    assert rows(await spool.take(ONE)) == [5, 2]


async def test_a_record_without_a_time_that_spark_reads_is_rejected_before_it_is_spooled(tmp_path: Path) -> None:
    """A timestamp in nanoseconds: a file with it fails the tasks that read it, whatever record they need."""
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
    sink = SparkSink({"destination": "parquet", "path": str(tmp_path / "out")}, context)
    part = range_data("t", 0, 0, 3, [record(0), record(1, timestamp=1_700_000_000_000_000_000), record(2)])
    with pytest.raises(RecordsRejectedError) as raised:
        await sink.write(Batch((part,)))
    (found,) = raised.value.records
    assert (found.offset, found.error_class) == (1, "unstorable")
