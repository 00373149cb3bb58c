"""What destinations publish through a real Spark, compared with the input: formats, layouts, shapes, a database.

All share one Spark session in this process, made like the worker's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer_files.layout import Misfit
from kzconsumer_files.parquet import Codec, ParquetSink
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_spark.columns.shaping import Shaping as ColumnShaping
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.ranges.batch import SCHEMA, TAGS, Shaped, SparkBatch
from kzconsumer_spark.ranges.staged_files import RangeFiles, read_part
from kzconsumer_spark.worker.range_writers import FilesDestination, TableDestination
from kzconsumer_spark.worker_protocol.column_options import Columns
from kzconsumer_spark.worker_protocol.messages import (
    BatchRange,
    ToDelta,
    ToFiles,
    ToIceberg,
)
from tests.support.duckdb_reader import delta_by_duckdb, iceberg_by_duckdb
from tests.support.extent import extent
from tests.support.placed_records import PERMITTED, placed, records_of
from tests.support.range_data import range_data, record

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]
NAMES = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
OWNER = TargetOwner(cluster="c", group="g")


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark


class Shaping:
    """A shaping that is one function of the frame; `quarantined` are reported, whatever the frame has."""

    leaves_out_rows = True
    columns = None

    def __init__(self, function: Callable[[DataFrame], DataFrame], quarantined: int = 0) -> None:
        self._function = function
        self._quarantined = quarantined

    def shape(self, frame: DataFrame, ranges: Sequence[BatchRange]) -> Shaped:
        return Shaped(self._function(frame), dict.fromkeys((part.range for part in ranges), self._quarantined))

    def has_rows(self, shaped: DataFrame) -> bool:
        return not shaped.isEmpty()


def sorted_rows(table: pa.Table, **columns: Literal["ascending", "descending"]) -> list[dict[str, Any]]:
    return table.sort_by(list(columns.items())).to_pylist()


def batch(directory: Path) -> list[BatchRange]:
    """Three ranges: with gaps, one of which `evens` leaves empty, and one without records."""
    ranges = (
        range_data("t.a", 0, 0, 2000),
        range_data("t.a", 1, 1, 8, [record(offset, value=b"odd") for offset in (1, 3, 7)]),
        range_data("b", 0, 5, 9, []),
    )
    return list(placed(directory, *ranges))


def frame_of(session: SparkSession, directory: Path, number: int, ranges: Sequence[BatchRange]) -> SparkBatch:
    """What a query hands over, of ranges that are placed in the directory."""
    return SparkBatch(number, records_of(session, directory, ranges), ranges)


def evens(frame: DataFrame) -> DataFrame:
    """Other columns than the input, fewer rows, and no column with a row's origin."""
    return frame.where("offset % 2 = 0").select(
        sql.col("offset").alias("n"),
        sql.col("value").cast("string").alias("text"),
        sql.expr("'line\nbreak, \"quoted\"'").alias("awkward"),
        sql.expr("date_add(date'2024-01-01', cast(offset % 6 as int))").alias("day"),
        *TAGS,
    )


def entries(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    found = [json.loads(each.read_text()) for each in (path / "_kzconsumer").glob("*+*.json")]
    return {(each["topic"], each["partition"]): each for each in found}


@pytest.mark.parametrize("codec", extent(["zstd"], ["snappy", "zstd"]))
async def test_the_same_files_as_those_of_the_sink_parquet(session: SparkSession, tmp_path: Path, codec: Codec) -> None:
    """So a group may change from one to the other, into a directory of its own, and readers see no difference."""
    headers = [{"key": "a", "value": b"1"}, {"key": "", "value": None}]
    records = [
        record(3, key=None, headers=headers),
        record(4, value=None, timestamp=None, timestamp_type=-1),
        record(9, timestamp_type=1),
    ]
    data = range_data("t.a", 0, 0, 2000), range_data("b", 1, 3, 12, records)
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)
    async with ParquetSink({"path": str(tmp_path / "arrow"), "codec": codec}, context) as sink:
        await sink.write(Batch(data))
    ranges = placed(tmp_path / "records", *data)
    to = ToFiles(path=str(tmp_path / "spark"), write_options={"compression": codec})
    destination_for(to).mark(OWNER)
    assert FilesDestination(session, to, PERMITTED).write(frame_of(session, tmp_path / "records", 1, ranges)) == (
        2003,
        2,
        0,
    )
    output = {}
    for by in ("arrow", "spark"):
        files = sorted((tmp_path / by).glob("*.parquet"))
        footers = [pq.read_metadata(file) for file in files]
        output[by] = (
            [file.name for file in files],
            [read_part(file)[1:] for file in files],
            [footer.row_group(0).column(1).compression for footer in footers],
            {
                (field.name, field.physical_type, str(field.logical_type))
                for field in map(footers[0].schema.column, range(footers[0].num_columns))
            },
            pa.concat_tables(map(pq.read_table, files)).select(NAMES).to_pylist(),
            session.read.parquet(str(tmp_path / by)).schema,
            sorted(session.read.parquet(str(tmp_path / by)).collect(), key=lambda row: (row.topic, row.offset)),
        )
        assert {"arrow" in str(footer.created_by) for footer in footers} == {by == "arrow"}
    assert output["arrow"] == output["spark"]


def test_of_a_batch_that_is_published_in_part_the_rest_is_written(session: SparkSession, tmp_path: Path) -> None:
    """The frame has all of it. Of the rows that are left out Spark's first task writes an empty file."""
    data = [range_data("t", n, 0, 2000 - n) for n in range(3)]
    ranges = placed(tmp_path / "records", *data)
    to = ToFiles(path=str(tmp_path / "out"))
    destination_for(to).mark(OWNER)
    destination = FilesDestination(session, to, PERMITTED)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges[:1])) == (2000, 1, 0)
    assert destination.write(frame_of(session, tmp_path / "records", 2, ranges)) == (1999 + 1998, 2, 1)
    destination.close()
    rows = session.read.parquet(to.path).groupBy("partition").count().orderBy("partition").collect()
    assert [tuple(row) for row in rows] == [(0, 2000), (1, 1999), (2, 1998)]


def test_a_range_that_was_set_aside_does_not_count_as_written(session: SparkSession, tmp_path: Path) -> None:
    """Otherwise its records would be lost: the member that set it aside may have been killed before storing them."""
    part = range_data("t", 0, 0, 5)
    ranges = placed(tmp_path / "records", part)
    to = ToFiles(path=str(tmp_path / "out"))
    side = destination_for(to)
    side.mark(OWNER)
    assert side.set_aside(part.identity, 5)
    with pytest.raises(SetAside):
        FilesDestination(session, to, PERMITTED).write(frame_of(session, tmp_path / "records", 1, ranges))
    assert list((tmp_path / "out").glob("*.parquet")) == []


# What formats differ in is tried with every value by day: test_value_matrix.py.
@pytest.mark.parametrize("kind", extent(["parquet"], ["parquet", "orc", "json", "csv"]))
def test_shaped_rows_in_any_format_below_the_users_directories(
    session: SparkSession, tmp_path: Path, kind: Any
) -> None:
    out = tmp_path / "out"
    gzip = {"compression": "gzip"} if kind in ("json", "csv") else {}
    to = ToFiles(path=str(out), format=kind, partition_by=("day",), write_options=gzip)
    destination_for(to).mark(OWNER)
    destination = FilesDestination(session, to, PERMITTED, Shaping(evens, 1))
    ranges = batch(tmp_path / "records")
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (1000, 3, 0)
    output = entries(out)
    counts = {
        key: (each["records_in"], each["records_out"], each["records_quarantined"]) for key, each in output.items()
    }
    assert counts == {("t.a", 0): (2000, 1000, 1), ("t.a", 1): (3, 0, 1), ("b", 0): (0, 0, 0)}
    extension = {"json": "json.gz", "csv": "csv.gz"}.get(kind, kind)
    name = f"t.a+0+2a.0+00000000000000000000+00000000000000002000.{extension}"
    assert sorted(output["t.a", 0]["files"]) == [f"day=2024-01-0{day}/{name}" for day in (1, 3, 5)]
    assert not output["t.a", 1]["files"]
    visible = [each for each in out.rglob("*") if each.is_file() and "_kzconsumer" not in each.parts]
    assert sorted(str(each.relative_to(out)) for each in visible) == sorted(output["t.a", 0]["files"])
    read = session.read.schema("n bigint, text string, awkward string, day date")
    rows = read.format(kind).load(str(out), multiLine=kind == "csv").orderBy("n").collect()
    assert [(row.n, row.text, row.day.day) for row in rows] == [(n, f"v{n}", n % 6 + 1) for n in range(0, 2000, 2)]
    assert all(row.awkward == 'line\nbreak, "quoted"' for row in rows)
    # The same ranges again, as from another writer.
    other = FilesDestination(
        session, to, PERMITTED, Shaping(lambda frame: evens(frame).withColumn("day", sql.lit("2030-01-01")))
    )
    assert other.write(frame_of(session, tmp_path / "records", 2, ranges)) == (0, 0, 3)
    for each in (destination, other):
        each.close()
    assert not any((out / "_kzconsumer" / "attempts").iterdir())


def test_unshaped_records_below_the_users_directories(session: SparkSession, tmp_path: Path) -> None:
    to = ToFiles(path=str(tmp_path / "out"), partition_by=("partition",))
    destination_for(to).mark(OWNER)
    destination = FilesDestination(session, to, PERMITTED)
    assert destination.write(frame_of(session, tmp_path / "records", 1, batch(tmp_path / "records"))) == (2003, 3, 0)
    rows = session.read.parquet(to.path).select("topic", "partition", "offset", "value").collect()
    assert sorted((row.topic, row.partition, row.offset, bytes(row.value)) for row in rows) == [
        *(("t.a", 0, n, b"v%d" % n) for n in range(2000)),
        *(("t.a", 1, n, b"odd") for n in (1, 3, 7)),
    ]
    assert {each.parent.name for each in Path(to.path).glob("*/*.parquet")} == {"partition=0", "partition=1"}
    assert not list(Path(to.path).glob("*.parquet"))
    destination.close()


@pytest.mark.parametrize("kind", extent(["parquet", "delta"], ["parquet", "csv", "delta", "iceberg"]))
def test_topics_of_249_characters_that_differ_in_the_last_one(
    session: SparkSession, tmp_path: Path, kind: Literal["parquet", "csv", "delta", "iceberg"]
) -> None:
    """Spark has a directory for each topic while it sorts rows into ranges; its name would have more than 255 bytes."""
    topics = [f"{'t' * 248}{last}" for last in "ab"]
    data = [range_data(topic, 0, 0, 100 + number) for number, topic in enumerate(topics)]
    ranges = placed(tmp_path / "records", *data)
    shaping = Shaping(lambda frame: frame.select("topic", "offset", *TAGS))
    out = str(tmp_path / "out")
    if kind in ("parquet", "csv"):
        to = ToFiles(path=out, format=kind, partition_by=("topic",) if kind == "parquet" else ())
        destination_for(to).mark(OWNER)
        destination: FilesDestination | TableDestination[Any] = FilesDestination(session, to, PERMITTED, shaping)
    elif kind == "delta":
        table = destination_for(ToDelta(path=out))
        table.mark(OWNER)
        assert isinstance(table.to, ToDelta)
        destination = delta(session, table.to, shaping)
    else:
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/house"}
        there = destination_for(ToIceberg(table="lake.orders", catalog_options=catalog))
        there.mark(OWNER)
        assert isinstance(there.to, ToIceberg)
        files = RangeFiles(session, there.to.files, shaping, keep_columns=True)
        destination = TableDestination(files, IcebergTarget(there.to), PERMITTED)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (201, 2, 0)
    assert destination.write(frame_of(session, tmp_path / "records", 2, ranges)) == (0, 0, 2)
    destination.close()
    names = [each.name for each in tmp_path.rglob("*")]
    assert max(map(len, names)) <= 255
    if kind == "parquet":
        found = session.read.parquet(out).groupBy("topic").count().collect()
        assert sorted(map(tuple, found)) == [(topic, 100 + number) for number, topic in enumerate(topics)]
    elif kind == "delta":
        assert DeltaTable(out).count() == 201


def test_a_batch_that_spark_cannot_write_leaves_nothing(session: SparkSession, tmp_path: Path) -> None:
    to = ToFiles(path=str(tmp_path / "out"))
    destination_for(to).mark(OWNER)
    ranges = batch(tmp_path / "records")
    failing = FilesDestination(session, to, PERMITTED, Shaping(lambda frame: frame.where("raise_error('no') is null")))
    with pytest.raises(Exception, match="no"):
        failing.write(frame_of(session, tmp_path / "records", 1, ranges))
    assert not entries(tmp_path / "out")
    failing.close()
    assert not any((tmp_path / "out" / "_kzconsumer" / "attempts").iterdir())


def delta(session: SparkSession, to: ToDelta, shaping: Shaping | None = None) -> TableDestination[DeltaTable | None]:
    return TableDestination(RangeFiles(session, to.files, shaping), DeltaTarget(to), PERMITTED)


def test_delta_tables_of_unshaped_and_shaped_records(session: SparkSession, tmp_path: Path) -> None:
    """The same ranges again; failed batches leave nothing in the table."""
    ranges = batch(tmp_path / "records")
    out = tmp_path / "out"
    side = destination_for(ToDelta(path=str(out)))
    side.mark(OWNER)
    assert isinstance(side.to, ToDelta)
    destination = delta(session, side.to)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (2003, 3, 0)
    assert destination.write(frame_of(session, tmp_path / "records", 2, ranges)) == (0, 0, 3)
    table = DeltaTable(out).to_pyarrow_table().sort_by([("partition", "ascending"), ("offset", "ascending")])
    assert table.column_names == NAMES
    assert table.column("offset").to_pylist() == [*range(2000), 1, 3, 7]
    assert table.column("value").to_pylist()[-4:] == [b"v1999", b"odd", b"odd", b"odd"]
    assert table.column("timestamp").to_pylist()[1] == datetime.fromtimestamp(1_700_000_000.001, UTC)
    failing = delta(session, side.to, Shaping(lambda frame: frame.withColumn("value", sql.lit(1))))
    further = [msgspec.structs.replace(each, epoch=1) for each in ranges]
    with pytest.raises(Misfit, match='column "value" is integer, in the table binary'):
        failing.write(frame_of(session, tmp_path / "records", 1, further))
    assert DeltaTable(out).count() == 2003
    for each in (destination, failing):
        each.close()
    assert not any((out / "_kzconsumer" / "attempts").iterdir())


def test_columns_that_earlier_rows_do_not_fit_are_refused_before_a_range_is_planned(
    session: SparkSession, tmp_path: Path
) -> None:
    def columns(select: str) -> ColumnShaping:
        return ColumnShaping(session, Columns(select=select), SCHEMA)

    ranges = batch(tmp_path / "records")
    to = ToFiles(path=str(tmp_path / "out"))
    destination_for(to).mark(OWNER)
    first = FilesDestination(session, to, PERMITTED, columns("offset AS n, cast(value AS string) AS text"))
    first.write(frame_of(session, tmp_path / "records", 1, ranges[:1]))
    for select, output in (
        ("cast(offset AS string) AS n, cast(value AS string) AS text", 'column "n" is string, in the target long'),
        ("offset AS n", 'column "text" is missing'),
        ("offset AS n, cast(value AS string) AS text, 1 AS more", '"more" is new and must not be null'),
    ):
        with pytest.raises(ConfigError, match=output):
            FilesDestination(session, to, PERMITTED, columns(select))
    with pytest.raises(Misfit, match='column "n" is'):  # if columns are known only with the records
        FilesDestination(session, to, PERMITTED, Shaping(lambda frame: frame.selectExpr("true AS n", *TAGS))).write(
            frame_of(session, tmp_path / "records", 2, ranges[1:2])
        )
    more = FilesDestination(session, to, PERMITTED, columns("offset AS n, cast(value AS string) AS text, key"))
    more.write(frame_of(session, tmp_path / "records", 3, ranges[1:2]))
    rows = session.read.option("mergeSchema", "true").parquet(to.path)
    assert (rows.count(), rows.where("key IS NOT NULL").count(), rows.where("text IS NOT NULL").count()) == (
        2003,
        3,
        2003,
    )


def test_an_iceberg_table_of_shaped_rows_by_partitions(session: SparkSession, tmp_path: Path) -> None:
    """The same ranges again; a column that comes later; rows as pyiceberg reads them."""
    place = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": (tmp_path / "lake").as_uri()}

    def shape(frame: DataFrame) -> DataFrame:
        structure = "struct(n AS m, array(text) AS l) AS nested"
        times = "timestamp'2024-01-01 12:00' AS at", "timestamp_ntz'2024-01-01 12:00' AS wall"
        kinds = "cast(n AS decimal(9, 2)) AS price", "map('k', n) AS map"
        kind = "if(n < 2, null, concat('ä/', n % 4)) AS kind"
        return evens(frame).selectExpr("n", structure, *times, *kinds, kind, "day", *TAGS)

    to = ToIceberg(table="lake.evens", catalog_options=place, partition_by=("day", "kind"))
    side = destination_for(to)
    side.mark(OWNER)
    assert isinstance(side.to, ToIceberg)
    ranges = batch(tmp_path / "records")
    target = IcebergTarget(side.to)
    files = RangeFiles(session, side.to.files, Shaping(shape, 1), keep_columns=True)
    destination = TableDestination(files, target, PERMITTED)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (1000, 3, 0)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (0, 0, 3)
    found = side.held(True).ranges
    assert sorted((each.records_in, each.records_out, each.records_quarantined, each.rows) for each in found) == [
        (0, 0, 0, 0),
        (3, 0, 1, 0),
        (2000, 1000, 1, 1000),
    ]
    odd = [msgspec.structs.replace(ranges[1], epoch=2)]
    assert destination.write(frame_of(session, tmp_path / "records", 3, odd)) == (0, 1, 0), "no row is left"
    destination.close()
    more = RangeFiles(
        session, side.to.files, Shaping(lambda frame: shape(frame).selectExpr("*", "1 AS more")), keep_columns=True
    )
    later = TableDestination(more, target, PERMITTED)
    assert (
        later.write(
            frame_of(session, tmp_path / "records", 2, [msgspec.structs.replace(each, epoch=3) for each in ranges])
        )[1]
        == 3
    )
    later.close()
    table = target.open()
    rows = sorted_rows(table.scan().to_arrow(), n="ascending", more="descending")
    noon = datetime(2024, 1, 1, 12)
    assert rows[1] == {
        "n": 0,
        "nested": {"m": 0, "l": ["v0"]},
        "at": noon.replace(tzinfo=UTC),
        "wall": noon,
        "price": Decimal(0),
        "map": [("k", 0)],
        "kind": None,
        "day": date(2024, 1, 1),
        "more": None,
    }
    assert len(rows) == 2000
    assert sorted_rows(iceberg_by_duckdb(table), n="ascending", more="descending") == rows
    chosen = table.scan(row_filter="day = '2024-01-03' and kind = 'ä/2'").to_arrow()
    assert chosen.num_rows == 2 * sum(n % 6 == 2 and n % 4 == 2 for n in range(2000))
    assert len(list(table.scan(row_filter="day = '2024-01-03' and kind = 'ä/2'").plan_files())) == 2
    assert {str(each.partition) for each in (task.file for task in table.scan().plan_files())} >= {
        "Record[19723, None]"
    }


def test_a_delta_table_of_shaped_rows_by_partitions(session: SparkSession, tmp_path: Path) -> None:
    def shape(frame: DataFrame) -> DataFrame:
        structure = "struct(n AS m, array(text) AS l) AS nested"
        times = "timestamp'2024-01-01 12:00' AS at", "timestamp_ntz'2024-01-01 12:00' AS wall"
        kinds = "cast(n AS decimal(9, 2)) AS price", "map('k', n) AS map"
        kind = "if(n < 2, null, concat('ä/', n % 4)) AS kind"
        return evens(frame).selectExpr("n", structure, *times, *kinds, kind, "day", *TAGS)

    side = destination_for(ToDelta(path=str(tmp_path / "out"), partition_by=("day", "kind")))
    side.mark(OWNER)
    assert isinstance(side.to, ToDelta)
    ranges = batch(tmp_path / "records")
    destination = delta(session, side.to, Shaping(shape, 1))
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (1000, 3, 0)
    assert destination.write(frame_of(session, tmp_path / "records", 1, ranges)) == (0, 0, 3)
    destination.close()
    found = side.held(True).ranges
    assert sorted((each.records_in, each.records_out, each.records_quarantined, each.rows) for each in found) == [
        (0, 0, 0, 0),
        (3, 0, 1, 0),
        (2000, 1000, 1, 1000),
    ]
    rows = DeltaTable(tmp_path / "out").to_pyarrow_table().sort_by("n").to_pylist()
    assert delta_by_duckdb(tmp_path / "out").sort_by("n").to_pylist() == rows
    noon = datetime(2024, 1, 1, 12)
    assert rows == [
        {
            "n": n,
            "nested": {"m": n, "l": [f"v{n}"]},
            "at": noon.replace(tzinfo=UTC),
            "wall": noon,
            "price": Decimal(n),
            "map": [("k", n)],
            "kind": f"ä/{n % 4}" if n >= 2 else None,
            "day": date(2024, 1, n % 6 + 1),
        }
        for n in range(0, 2000, 2)
    ]
