"""The streaming query that runs batches, on a real Spark: one outcome for each, also if it cannot be known."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kzconsumer_files.writer import Written
from kzconsumer_spark.pipe.messages import Done, Failed, RunBatch, SpooledRange
from kzconsumer_spark.worker.query import RangeQuery
from kzconsumer_spark.worker.tracebacks import Tracebacks

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]


def batch(number: int) -> RunBatch:
    one = SpooledRange(
        topic="t", partition=0, first=number, until=number + 1, incarnation=0, epoch=0, records=1, file="f"
    )
    return RunBatch(number=number, ranges=(one,))


def test_each_batch_has_an_outcome_and_a_batch_not_begun_never_begins(spark: SparkSession, tmp_path: Path) -> None:
    written: list[tuple[int, int]] = []

    def write(number: int, ranges: Sequence[SpooledRange]) -> Written:
        written.append((number, ranges[0].first))
        if number == 9:
            raise ValueError("no room\nleft")
        return Written(1, 1, 0)

    query = RangeQuery(spark, tmp_path / "first", 7, Tracebacks())
    for number in (7, 8):
        outcome = query.run(batch(number), write)
        assert isinstance(outcome, Done)
        assert (outcome.number, outcome.published) == (number, 1)
    failed = query.run(batch(9), write)
    assert isinstance(failed, Failed)
    assert (failed.number, failed.error) == (9, "ValueError: no room")
    query.stop()
    assert written == [(7, 7), (8, 8), (9, 9)]

    def write_and_spoil(number: int, ranges: Sequence[SpooledRange]) -> Written:
        shutil.rmtree(tmp_path / "second" / "checkpoint" / "commits")
        (tmp_path / "second" / "checkpoint" / "commits").touch()
        return write(number, ranges)

    query = RangeQuery(spark, tmp_path / "second", 20, Tracebacks())
    assert isinstance(query.run(batch(20), write_and_spoil), Done)  # it is durable; only then does Spark fail
    over = query.run(batch(21), write)
    assert isinstance(over, Failed)
    assert (over.number, "commits" in over.error) == (21, True), over.error
    query.stop()
    assert written[3:] == [(20, 20)]
    assert list(spark.streams.active) == []


def test_checkpoint_files_are_written_without_other_programs(spark: SparkSession) -> None:
    """Spark has the class under the configured name; otherwise the session would use its default."""
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass", "")
    assert manager is not None
    assert manager.endswith("FileSystemBasedCheckpointFileManager")
