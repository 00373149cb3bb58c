"""Batches that Spark writes into tables of PostgreSQL; what this destination and the others refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.records.checksums import Contents
from kzconsumer_spark.columns.shaping import Shaping as ColumnShaping
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.destinations.jdbc_writer import JdbcDestination
from kzconsumer_spark.ranges.batch import SCHEMA, TAGS, PartsRead, RowsLost, SparkBatch
from kzconsumer_spark.worker.query import failure
from kzconsumer_spark.worker.range_writers import FilesDestination, StepRecorder
from kzconsumer_spark.worker.worker_main import RangeWriter, writer_for
from kzconsumer_spark.worker_protocol.column_options import Columns
from kzconsumer_spark.worker_protocol.messages import (
    RunBatch,
    StartWorker,
    To,
    ToDelta,
    ToFiles,
    ToIceberg,
    ToJdbc,
)
from tests.spark.spark.test_spark_destinations import OWNER, Shaping, batch, delta, evens, frame_of
from tests.support.extent import extent
from tests.support.placed_records import PERMITTED, placed
from tests.support.postgres import Postgres
from tests.support.range_data import range_data, record


@pytest.fixture
def jdbc(database: Postgres, monkeypatch: pytest.MonkeyPatch, unique: str) -> ToJdbc:
    monkeypatch.setenv("DATABASE_PASSWORD", database.password)
    return ToJdbc(url=database.url, table=f"public.{unique}", user=database.user, password_env="DATABASE_PASSWORD")


def claimed(to: ToJdbc) -> ToJdbc:
    side = destination_for(to)
    side.mark(OWNER)
    assert isinstance(side.to, ToJdbc)
    return side.to


def rows_of(database: Postgres, to: ToJdbc, columns: str) -> list[tuple[Any, ...]]:
    return database.query(f'SELECT {columns} FROM public."{to.table.removeprefix("public.")}" ORDER BY 1, 2, 3')


def test_unshaped_records_in_a_table_created_for_them(
    spark: SparkSession, database: Postgres, jdbc: ToJdbc, tmp_path: Path
) -> None:
    to = claimed(jdbc)
    destination = JdbcDestination(spark, to, PERMITTED)
    headers = [{"key": "h", "value": b"1"}]
    with_headers = range_data("h", 0, 0, 2, [record(0, headers=headers), record(1, value=None)])
    more = placed(tmp_path / "records", with_headers)
    ranges = [*batch(tmp_path / "records"), *more]
    assert destination.write(frame_of(spark, tmp_path / "records", 1, ranges)) == (2005, 4, 0)
    assert rows_of(database, to, 'topic, "partition", "offset", value, extract(epoch from timestamp) * 1000') == [
        ("h", 0, 0, b"v0", 1_700_000_000_000),
        ("h", 0, 1, None, 1_700_000_000_001),
        *(("t.a", 0, n, b"v%d" % n, 1_700_000_000_000 + n) for n in range(2000)),
        *(("t.a", 1, n, b"odd", 1_700_000_000_000 + n) for n in (1, 3, 7)),
    ]
    assert rows_of(database, to, 'topic, "partition", "offset", headers->0->>\'key\'')[0] == ("h", 0, 0, "h")
    ledger = 'SELECT topic, "partition", first, until, records_in, records_out FROM kzconsumer_ledger WHERE owner = %s'
    assert sorted(database.query(ledger, [to.owner_id])) == [
        ("b", 0, 5, 9, 0, 0),
        ("h", 0, 0, 2, 2, 2),
        ("t.a", 0, 0, 2000, 2000, 2000),
        ("t.a", 1, 1, 8, 3, 3),
    ]
    again = JdbcDestination(spark, to, PERMITTED)
    assert again.write(frame_of(spark, tmp_path / "records", 1, ranges)) == (0, 0, 4)
    again.close()
    destination.close()
    assert database.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kzconsumer_stage%%'") == []


def test_shaped_rows_in_an_existing_table_with_a_key(
    spark: SparkSession, database: Postgres, jdbc: ToJdbc, tmp_path: Path
) -> None:
    name = jdbc.table.removeprefix("public.")
    columns = (
        "id bigserial NOT NULL, n bigint UNIQUE, text varchar(9), tags text[], body jsonb NOT NULL, at timestamptz"
    )
    database.query(f'CREATE TABLE "{name}" ({columns})')
    database.query(f"INSERT INTO \"{name}\" (n, text, body) VALUES (4, 'mine', '{{}}')")

    def shape(frame: DataFrame) -> DataFrame:
        return evens(frame).selectExpr(
            "n",
            "text",
            "array('a', text) AS tags",
            "struct(n AS m) AS body",
            "timestamp'2024-01-01 12:00' AS at",
            *TAGS,
        )

    to = claimed(msgspec.structs.replace(jdbc, unique_key=("n",)))
    destination = JdbcDestination(spark, to, PERMITTED, Shaping(shape))
    assert destination.write(frame_of(spark, tmp_path / "records", 1, batch(tmp_path / "records"))) == (1000, 3, 0)
    found = rows_of(database, to, "n, text, tags, body->>'m', extract(epoch from at)")
    assert found[2] == (4, "mine", None, None, None)
    del found[2]
    noon = 1_704_110_400
    assert found == [(n, f"v{n}", ["a", f"v{n}"], str(n), noon) for n in range(0, 2000, 2) if n != 4]
    destination.close()


def test_a_failure_leaves_nothing_and_the_next_attempt_has_a_stage_of_its_own(
    spark: SparkSession, database: Postgres, jdbc: ToJdbc, tmp_path: Path
) -> None:
    to = claimed(jdbc)
    ranges = batch(tmp_path / "records")
    broken = [False, True]

    def shape(frame: DataFrame) -> DataFrame:
        return frame.where("offset < 1990 or raise_error('no') is null") if broken.pop() else frame

    destination = JdbcDestination(spark, to, PERMITTED, Shaping(shape))
    with pytest.raises(Exception, match="no"):
        destination.write(frame_of(spark, tmp_path / "records", 1, ranges))
    assert rows_of(database, to, 'topic, "partition", "offset"') == []
    assert database.query("SELECT tablename FROM pg_tables WHERE tablename LIKE 'kzconsumer_stage%%'") == []
    assert destination.write(frame_of(spark, tmp_path / "records", 1, ranges)) == (2003, 3, 0)
    # A lost connection fails at most one attempt.
    database.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kzconsumer'")
    assert destination.write(frame_of(spark, tmp_path / "records", 1, ranges)) == (0, 0, 3)
    destination.close()


@pytest.mark.parametrize("kind", extent(["parquet", "delta", "jdbc"], ["parquet", "delta", "iceberg", "jdbc"]))
def test_a_batch_that_follows_what_is_missing_is_refused(
    spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/house"}
    to: dict[str, Callable[[], To]] = {
        "parquet": lambda: ToFiles(path=str(tmp_path / "out")),
        "delta": lambda: ToDelta(path=str(tmp_path / "out")),
        "iceberg": lambda: ToIceberg(table="lake.orders", catalog_options=catalog),
        "jdbc": lambda: request.getfixturevalue("jdbc"),
    }
    side = destination_for(to[kind]())
    side.mark(OWNER)
    start = StartWorker(scratch="", master="local[2]", conf={}, destination=side.to, next_batch=1, safe_until=0.0)
    destination = writer_for(start, spark, PERMITTED, ColumnShaping(spark, Columns(), SCHEMA), StepRecorder(print))
    data = [range_data("t", 0, 5 * number, 5 * number + 5) for number in range(4)]
    parts = [placed(tmp_path / "records", part) for part in data]
    frames = [frame_of(spark, tmp_path / "records", number, part) for number, part in enumerate(parts)]
    assert destination.write(frames[0]) == (5, 1, 0)
    assert destination.write(frames[1]._replace(follows=[data[0].identity])) == (5, 1, 0)
    for _ in range(2):
        with pytest.raises(DestinationWentBackError, match="t-0: offsets 10 to 15 were written and committed") as lost:
            destination.write(frames[3]._replace(follows=[data[2].identity]))
    answer = failure(RunBatch(number=3, ranges=()), lost.value)
    assert (answer.lacks, answer.ends) == (data[2].identity, 10)
    assert side.has([part.identity for part in data]) == [part.identity for part in data[:2]]
    destination.close()


@pytest.mark.parametrize("kind", extent(["parquet", "delta"], ["parquet", "json", "delta"]))
def test_rows_that_spark_loses_are_noticed(
    spark: SparkSession, tmp_path: Path, kind: Literal["parquet", "json", "delta"]
) -> None:
    """Their number is compared with that of the records that tasks have read; those that were left out do not count."""
    out = str(tmp_path / "out")
    side = destination_for(ToDelta(path=out) if kind == "delta" else ToFiles(path=out, format=kind))
    side.mark(OWNER)
    destination: RangeWriter
    if isinstance(side.to, ToDelta):
        destination = delta(spark, side.to)
    else:
        assert isinstance(side.to, ToFiles)
        destination = FilesDestination(spark, side.to, PERMITTED)
    data = range_data("t", 0, 0, 2000)
    (part,) = placed(tmp_path / "records", data)
    whole = frame_of(spark, tmp_path / "records", 1, [part])

    def read(records: int) -> SparkBatch:
        return whole._replace(read=lambda: {part.range.topic_partition: PartsRead(Contents(records), rejected=3)})

    with pytest.raises(RowsLost, match=r"wrote 2000 rows of t-0\[0..2000\), and its tasks read 2001"):
        destination.write(read(2004))
    assert not side.has([data.identity])
    assert destination.write(read(2003)) == (2000, 1, 0)
    assert side.has([data.identity])
    destination.close()
