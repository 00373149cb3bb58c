"""Hostile values through every destination: what readers find is what went in, or the value is refused by name.

One batch for each destination; the rows come from `tests.support.hostile_values`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.orc as orc
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kzconsumer.sinks.interface import Batch, RecordsRejectedError, SinkContext
from kzconsumer_files.parquet import ParquetSink
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.destinations.jdbc_writer import JdbcDestination
from kzconsumer_spark.ranges.batch import Shaped, SparkBatch
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker.range_writers import FilesDestination, FunctionDestination, StepRecorder, TableDestination
from kzconsumer_spark.worker_protocol.messages import BatchRange, To, ToDelta, ToFiles, ToIceberg, ToJdbc
from tests.support.duckdb_reader import delta_by_duckdb, iceberg_by_duckdb
from tests.support.extent import extent, only_nightly
from tests.support.hostile_records import decoded, differences, records, rows_of_table, sent
from tests.support.hostile_records import refused as refused_records
from tests.support.hostile_values import (
    COLUMNS,
    DIFFERENT,
    FLAT,
    NOT_IN_ORC,
    Value,
    page,
    plain,
    refused,
    table,
    values,
)
from tests.support.placed_records import PERMITTED, placed_frame
from tests.support.postgres import Postgres
from tests.support.producing import produce
from tests.support.range_data import range_data, record
from tests.support.source_query import run_to_the_end, source

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]
GOOD = values()
BAD = refused()


class Rows:
    """A shaping: the row of each record is that of its offset."""

    leaves_out_rows = True
    columns = None

    def __init__(self, session: SparkSession, found: Sequence[Value], columns: Sequence[str]) -> None:
        self.rows = sql.broadcast(session.createDataFrame(table(list(found)).select(["n", *columns])))

    def shape(self, frame: DataFrame, ranges: Sequence[BatchRange]) -> Shaped:
        own = [name for name in frame.columns if name.startswith("_kz_")]
        joined = frame.select("offset", *own).join(self.rows, sql.col("offset") == sql.col("n"))
        return Shaped(joined.drop("offset"), {})

    def has_rows(self, shaped: DataFrame) -> bool:
        return True


def batch(session: SparkSession, directory: Path, records: int) -> SparkBatch:
    frame, ranges = placed_frame(
        session, directory, range_data("t", 0, 0, records, [record(n) for n in range(records)])
    )
    return SparkBatch(1, frame, ranges)


def destination(session: SparkSession, to: To, shaping: Rows) -> Any:
    side = destination_for(to)
    side.mark(TargetOwner(cluster="c", group="g"))
    match side.to:
        case ToFiles() as files:
            return FilesDestination(session, files, PERMITTED, shaping)
        case ToDelta() as delta:
            return TableDestination(RangeFiles(session, delta.files, shaping), DeltaTarget(delta), PERMITTED)
        case ToIceberg() as iceberg:
            files_of = RangeFiles(session, iceberg.files, shaping, keep_columns=True)
            return TableDestination(files_of, IcebergTarget(iceberg), PERMITTED)
        case ToJdbc() as jdbc:
            return JdbcDestination(session, jdbc, PERMITTED, shaping)
    raise AssertionError(to)


def write(
    session: SparkSession,
    to: To,
    directory: Path,
    columns: Sequence[str] = tuple(COLUMNS),
    found: Sequence[Value] = GOOD,
    zone: str = "UTC",
) -> None:
    """In the session's time zone `zone`; PySpark itself makes and reads local times in UTC only."""
    made = destination(session, to, Rows(session, found, columns))
    whole = batch(session, directory / "records", len(found))
    session.conf.set("spark.sql.session.timeZone", zone)
    try:
        assert made.write(whole)[0] == len(found)
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
        made.close()


def require_same(
    where: str, reader: str, columns: Sequence[str], rows: Sequence[dict[str, Any]], found: Sequence[Value] = GOOD
) -> None:
    wanted = table(list(found)).select(["n", *columns]).to_pylist()
    by_number = {row["n"]: row for row in rows}
    assert len(rows) == len(wanted)
    different: dict[str, tuple[object, ...]] = {}
    for value, row in zip(found, wanted, strict=True):
        there = by_number[row["n"]]
        for name in columns:
            one, other = (plain(each[name], COLUMNS[name]) for each in (row, there))
            if one != other:
                different[value.name] = (*different.get(value.name, ()), name, one, other)
    known = {name for at, by, name in DIFFERENT if (at, by) == (where, reader)}
    assert different.keys() == known, (where, reader, {name: str(each)[:300] for name, each in different.items()})


ALL = tuple(COLUMNS)
DUCKDB = {
    "at": "TIMESTAMPTZ",
    "wall": "TIMESTAMP",
    "day": "DATE",
    "price": "DECIMAL(10,2)",
    "exact": "DECIMAL(38,18)",
    "real": "DOUBLE",
    "single": "FLOAT",
    "number": "BIGINT",
    "small": "INT",
    "yes": "BOOLEAN",
    "text": "VARCHAR",
}


ZONES = extent(["America/New_York"], ["America/New_York", "UTC", "Asia/Kolkata", "Europe/Dublin"])
in_zones = pytest.mark.parametrize("zone", ZONES)


@in_zones
def test_parquet(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    out = tmp_path / "out"
    write(spark, ToFiles(path=str(out)), tmp_path, zone=zone)
    require_same("Parquet", "pyarrow", ALL, ds.dataset(out).to_table().to_pylist())
    require_same("Parquet", "Spark", ALL, spark.read.parquet(str(out)).toArrow().to_pylist())
    found = duckdb.sql(f"SELECT * FROM read_parquet('{out}/*.parquet')").to_arrow_table()
    require_same("Parquet", "DuckDB", ALL, found.to_pylist())


def test_orc(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(RecordsRejectedError) as caught:
        write(spark, ToFiles(path=str(tmp_path / "all"), format="orc"), tmp_path / "all")
    assert {GOOD[each.offset].name for each in caught.value.records} == NOT_IN_ORC
    assert {each.reason for each in caught.value.records} == {
        f"column {name}: is a time that ORC does not have" for name in ("at", "wall", "day")
    }
    kept = [each for each in GOOD if each.name not in NOT_IN_ORC]
    write(spark, ToFiles(path=str(out), format="orc"), tmp_path, found=kept)
    # pyarrow has nanoseconds for ORC's times, and reads days before 1582 in the old calendar.
    timeless = [name for name in ALL if not any(kind in str(COLUMNS[name]) for kind in ("timestamp", "date32"))]
    found = orc.read_table(str(next(out.rglob("*.orc"))), columns=["n", *timeless])
    require_same("ORC", "pyarrow", timeless, found.to_pylist(), kept)
    require_same("ORC", "Spark", ALL, spark.read.orc(str(out)).toArrow().to_pylist(), kept)


def _schema(spark: SparkSession, columns: Sequence[str]) -> Any:
    return Rows(spark, GOOD, columns).rows.schema


@in_zones
def test_json(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    out = tmp_path / "out"
    write(spark, ToFiles(path=str(out), format="json"), tmp_path, zone=zone)
    require_same("JSON", "Spark", ALL, spark.read.schema(_schema(spark, ALL)).json(str(out)).toArrow().to_pylist())


@in_zones
def test_csv(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    out = tmp_path / "out"
    write(spark, ToFiles(path=str(out), format="csv"), tmp_path, FLAT, zone=zone)
    back = spark.read.schema(_schema(spark, FLAT)).option("multiLine", "true").option("maxCharsPerColumn", "-1")
    columns = ", ".join(f"{name!r}: {kind!r}" for name, kind in {"n": "BIGINT", **DUCKDB}.items())
    how = "header = false, quote = '\"', escape = '\\', new_line = '\\n', allow_quoted_nulls = false"
    how += f", auto_detect = false, max_line_size = 4194304, columns = {{{columns}}}"
    found = duckdb.sql(f"FROM read_csv('{out}/*.csv', {how})").to_arrow_table()
    require_same("CSV", "DuckDB", FLAT, found.to_pylist())
    require_same("CSV", "Spark", FLAT, back.csv(str(out)).toArrow().to_pylist())


@in_zones
def test_delta(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    out = tmp_path / "out"
    write(spark, ToDelta(path=str(out)), tmp_path, zone=zone)
    require_same("Delta", "deltalake", ALL, DeltaTable(out).to_pyarrow_table().to_pylist())
    require_same("Delta", "DuckDB", ALL, delta_by_duckdb(out).to_pylist())


@in_zones
def test_iceberg(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": (tmp_path / "lake").as_uri()}
    to = ToIceberg(table="lake.values", catalog_options=place)
    write(spark, to, tmp_path, zone=zone)
    found = IcebergTarget(to).open()
    require_same("Iceberg", "pyiceberg", ALL, found.scan().to_arrow().to_pylist())
    require_same("Iceberg", "DuckDB", ALL, iceberg_by_duckdb(found).to_pylist())


@in_zones
def test_postgresql(
    spark: SparkSession, tmp_path: Path, zone: str, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATRIX_PASSWORD", database.password)
    name = f"matrix_{zone[:3].lower()}"
    to = ToJdbc(url=database.url, table=name, user=database.user, password_env="MATRIX_PASSWORD")
    write(spark, to, tmp_path, zone=zone)
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        cursor = connection.execute(f'SELECT * FROM "{name}"'.encode())
        assert cursor.description is not None
        names = [each.name for each in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    require_same("PostgreSQL", "psycopg", ALL, rows)


@pytest.mark.parametrize("found", [GOOD, BAD], ids=["values", "those that others refuse"])
def test_what_a_function_is_given(spark: SparkSession, tmp_path: Path, found: list[Value]) -> None:
    given: list[pa.Table] = []

    def take(df: DataFrame, batch_id: int) -> None:
        given.append(df.toArrow().sort_by("n"))

    made = FunctionDestination(take, "scope", PERMITTED, Rows(spark, found, ALL), StepRecorder(lambda step: None))
    assert made.write(batch(spark, tmp_path / "records", len(found))).rows == len(found)
    (taken,) = given
    if found is GOOD:
        require_same("function", "its DataFrame", ALL, taken.to_pylist())
    else:  # Python has no times beyond 9999
        wanted = table(found)
        for name in {each.column for each in found}:
            assert taken[name].cast(COLUMNS[name]).equals(wanted[name].cast(COLUMNS[name])), name


def test_the_page_has_this_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark-values.md").read_text()
    assert page() in text, "python -c 'from tests.support.hostile_values import page; print(page())'"


@pytest.mark.parametrize(
    "kind",  # what tables and PostgreSQL cannot hold: test_poisoned_rows.py
    [
        "parquet",
        *(pytest.param(kind, marks=only_nightly) for kind in ("jdbc", "orc", "json", "csv", "delta", "iceberg")),
    ],
)
def test_refused_values_are_named_one_by_one_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path, kind: Any, database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MATRIX_PASSWORD", database.password)
    place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": (tmp_path / "lake").as_uri()}
    made: dict[str, Callable[[], To]] = {
        "delta": lambda: ToDelta(path=str(tmp_path / "out")),
        "iceberg": lambda: ToIceberg(table="lake.values", catalog_options=place),
        "jdbc": lambda: ToJdbc(url=database.url, table="refused", user=database.user, password_env="MATRIX_PASSWORD"),
    }
    to = made.get(kind, lambda: ToFiles(path=str(tmp_path / "out"), format=kind))()
    columns = FLAT if kind == "csv" else ALL
    bad = [each for each in BAD if each.column in columns]
    with pytest.raises(RecordsRejectedError) as caught:
        write(spark, to, tmp_path, columns, bad)
    assert [(each.topic, each.partition, each.offset, each.reason) for each in caught.value.records] == [
        ("t", 0, n, f"column {each.column}: is outside of the years 1 to 9999") for n, each in enumerate(bad)
    ]
    written = {".parquet", ".orc", ".csv", ".json"}
    assert [file for file in tmp_path.rglob("part-*") if file.suffix in written and "attempts" not in str(file)] == []


@pytest.mark.parametrize("kind", extent(["parquet"], ["parquet", "delta"]))
def test_text_that_names_the_directory_of_nulls_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    names = "empty", "quotes", "the word of empty partitions"
    found = [each for each in GOOD if each.column == "text" and each.name in names]
    out = str(tmp_path / "out")
    to = ToFiles(path=out, partition_by=("text",)) if kind == "parquet" else ToDelta(path=out, partition_by=("text",))
    with pytest.raises(RecordsRejectedError) as caught:
        write(spark, to, tmp_path, FLAT, found)
    reason = "column text: names the directory of nulls, as which it would be read"
    assert [(each.offset, each.reason) for each in caught.value.records] == [(0, reason), (2, reason)]


def test_raw_records_with_huge_headers_and_tombstones(spark: SparkSession, tmp_path: Path) -> None:
    headers = [{"key": f"h{n % 7}", "value": b"x" * n} for n in range(2000)]
    one = [{"key": "", "value": None}]
    records = [record(0, value=None), record(1, key=None, value=b"", headers=headers), record(2, headers=one)]
    frame, ranges = placed_frame(spark, tmp_path / "records", range_data("t", 0, 0, 3, records))
    out = tmp_path / "out"
    to = destination_for(ToFiles(path=str(out)))
    to.mark(TargetOwner(cluster="c", group="g"))
    assert FilesDestination(spark, to.to, PERMITTED).write(SparkBatch(1, frame, ranges))[0] == 3  # type: ignore[arg-type]
    rows = sorted(ds.dataset(out).to_table().to_pylist(), key=lambda row: row["offset"])
    assert [(row["key"], row["value"]) for row in rows] == [(b"k0", None), (None, b""), (b"k2", b"v2")]
    assert rows[1]["headers"] == headers
    assert rows[2]["headers"] == [{"key": "", "value": None}]


@only_nightly  # tasks without a Spark: tests/spark/servers/test_source_values.py
async def test_records_of_the_source(spark: SparkSession, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    good, bad = records(), refused_records()
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent([*good, *bad]))
    config = tmp_path / "group.toml"
    config.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{unique}"\nsubscription.topics.{unique} = 1\n'
        '[rejected]\npolicy = "skip"\n'
    )
    options = {"config": str(config), "includeHeaders": "true"}
    spark.dataSource.register(GroupSource)
    reading = spark.read.format("kzconsumer").options(**options, startingOffsets="earliest").load()
    assert differences(rows_of_table(reading.toArrow()), good) == []
    batches: list[pa.Table] = []
    frame = source(spark, cluster.connect, unique, **options)
    await asyncio.to_thread(run_to_the_end, frame, tmp_path, lambda df, number: batches.append(df.toArrow()))
    assert differences(rows_of_table(pa.concat_tables(batches)), good) == []


@only_nightly  # other readers: tests/files/plain/test_record_values.py
async def test_records_of_the_sink_parquet_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    good = records()
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: float("inf"))
    async with ParquetSink({"path": str(tmp_path / "out")}, context) as sink:
        await sink.write(Batch((range_data("t", 0, 0, len(good), decoded(good)),)))
    assert differences(rows_of_table(spark.read.parquet(str(tmp_path / "out")).toArrow()), good) == []
