"""One row of a range that a destination cannot hold, or that only it knows to be unusable: which one is it?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kzconsumer.errors import ContentRefusedError, SinkError
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError
from kzconsumer.sinks.sink_rejections import Separating
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.daemon.marked_destination import destination_for
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.destinations.jdbc_writer import JdbcDestination
from kzconsumer_spark.ranges.batch import SCHEMA, SparkBatch
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker.range_writers import FilesDestination, TableDestination
from kzconsumer_spark.worker.spark_errors import refuses_content
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions
from kzconsumer_spark.worker_protocol.messages import ToDelta, ToFiles, ToIceberg, ToJdbc
from tests.spark.spark.test_spark_destinations import OWNER
from tests.support.extent import extent, only_nightly
from tests.support.placed_records import PERMITTED, placed_frame
from tests.support.postgres import Postgres
from tests.support.range_data import range_data, record

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]
BAD, ALL = 5, 8
TRIED_BAD, TRIED = extent((1, 2), (BAD, ALL))
"""Of records that are tried: each trial is a job of Spark."""
YEAR_10000 = 253_402_300_800_000_000
YEAR_0 = -62_135_596_800_000_001
LAST = YEAR_10000 - 1000
FILES = ("parquet", "orc", "json", "csv")
IN_PARQUET = ("parquet", "delta", "iceberg")


class Place(NamedTuple):
    """A destination in the worker, and how many rows it has."""

    destination: Any
    count: Any


class Places:
    def __init__(self, session: SparkSession, path: Path, database: Postgres | None, table: str) -> None:
        self.table = table
        self.session = session
        self.path = path
        self.database = database
        self._batches = 0

    def place(self, kind: str, select: str, partition_by: Sequence[str] = (), ddl: str = "") -> Place:
        value = FieldOptions(format="json", schema="n BIGINT, us BIGINT, text STRING, nested STRUCT<a: ARRAY<STRING>>")
        shaping = Shaping(self.session, Columns(value=value, select=select), SCHEMA)
        out = str(self.path / "out")
        by = tuple(partition_by)
        if kind in FILES:
            to = msgspec.convert({"path": out, "format": kind, "partition_by": by, "type": "files"}, ToFiles)
            destination_for(to).mark(OWNER)
            schema = None if kind != "csv" else "n bigint"
            return Place(
                FilesDestination(self.session, to, PERMITTED, shaping),
                lambda: self.session.read.format(kind).load(out, schema=schema).count(),
            )
        if kind == "delta":
            delta = self._claimed(ToDelta(path=out, partition_by=by))
            files = RangeFiles(self.session, delta.files, shaping)
            return Place(
                TableDestination(files, DeltaTarget(delta), PERMITTED),
                lambda: DeltaTable(out).count(),
            )
        if kind == "iceberg":
            place = {"type": "sql", "uri": f"sqlite:///{self.path}/c.db", "warehouse": f"file://{self.path}/house"}
            iceberg = self._claimed(ToIceberg(table="lake.rows", catalog_options=place, partition_by=by))
            files = RangeFiles(self.session, iceberg.files, shaping, keep_columns=True)
            target = IcebergTarget(iceberg)
            return Place(TableDestination(files, target, PERMITTED), lambda: len(target.open().scan().to_arrow()))
        assert self.database is not None
        database = self.database
        name = self.table
        if ddl:
            self.database.query(f'CREATE TABLE "{name}" ({ddl})')
        jdbc = self._claimed(
            ToJdbc(
                url=self.database.url,
                table=f"public.{name}",
                user=self.database.user,
                password_env="KZCONSUMER_TEST_PASSWORD",
            )
        )
        query = f'SELECT count(*) FROM "{name}"'
        return Place(
            JdbcDestination(self.session, jdbc, PERMITTED, shaping),
            lambda: database.query(query)[0][0],
        )

    def _claimed(self, to: Any) -> Any:
        side = destination_for(to)
        side.mark(OWNER)
        return side.to

    def batch(self, part: RangeData) -> SparkBatch:
        self._batches += 1
        directory = self.path / f"records-{self._batches}"
        return SparkBatch(self._batches, *placed_frame(self.session, directory, part))


@pytest.fixture
def places(
    spark: SparkSession, tmp_path: Path, unique: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Places:
    database = None
    if "jdbc" in request.node.name:
        database = request.getfixturevalue("database")
        monkeypatch.setenv("KZCONSUMER_TEST_PASSWORD", database.password)
    return Places(spark, tmp_path, database, unique)


def rows(bad: dict[str, Any], of: int = ALL) -> RangeData:
    usual = {"us": LAST, "text": "t", "nested": {"a": ["x", None]}}
    contents = [{"n": n} | usual | (bad if n == BAD else {}) for n in range(of)]
    return range_data("t", 0, 0, of, [record(n, value=json.dumps(each).encode()) for n, each in enumerate(contents)])


TIME = "value.n, timestamp_micros(value.us) AS at"
NESTED = "value.n, array(named_struct('at', timestamp_micros(value.us))) AS list"
TEXT = "value.n, value.text AS text"
OUTSIDE = "is outside of the years 1 to 9999"
LONG, NUL = "is too long for the name of a directory", "has the character U+0000"
CASES = [
    # Times, which are checked for every kind of destination alike: test_value_matrix.py.
    ("json", TEXT, ("text",), {"text": "/" * 90}, f"column text: {LONG}"),
    ("jdbc", "value.n, value.nested", (), {"nested": {"a": ["\0"]}}, f"column nested: {NUL}"),
    *(
        pytest.param(*case, marks=only_nightly)
        for case in (
            *(
                (kind, TIME, (), {"us": YEAR_10000}, f"column at: {OUTSIDE}")
                for kind in (*FILES, "delta", "iceberg", "jdbc")
            ),
            ("parquet", NESTED, (), {"us": YEAR_10000}, f"column list: {OUTSIDE}"),
            ("parquet", TEXT, ("text",), {"text": "x" * 300}, f"column text: {LONG}"),
            ("parquet", TIME, (), {"us": YEAR_0}, f"column at: {OUTSIDE}"),
            *((kind, TEXT, ("text",), {"text": "x" * 300}, f"column text: {LONG}") for kind in ("delta", "iceberg")),
            *((kind, TEXT, ("text",), {"text": "a\0b"}, f"column text: {NUL}") for kind in IN_PARQUET),
            ("jdbc", TEXT, (), {"text": "a\0b"}, f"column text: {NUL}"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "select", "by", "bad", "reason"), CASES)
def test_the_row_is_named_and_all_others_are_written(
    places: Places, kind: str, select: str, by: tuple[str, ...], bad: dict[str, Any], reason: str
) -> None:
    place, part = places.place(kind, select, by), rows(bad)
    with pytest.raises(RecordsRejectedError) as raised:
        place.destination.write(places.batch(part))
    (found,) = raised.value.records
    assert (found.topic, found.partition, found.offset, found.error_class) == ("t", 0, BAD, "unstorable")
    assert found.reason.startswith(reason)
    assert place.destination.write(places.batch(part.without(((BAD, BAD + 1),)))).rows == ALL - 1
    assert place.count() == ALL - 1
    place.destination.close()


REFUSED = [
    ("jdbc", "value.n, value.text AS text", "n bigint, text text CHECK (text <> 'no')", {"text": "no"}),
    *(
        pytest.param(*case, marks=only_nightly)
        for case in (
            ("parquet", "cast(value.text AS INT) AS n", "", {"text": "x"}),  # Spark itself, in ANSI mode
            ("delta", "10 / value.n AS n", "", {"n": 0}),
            ("jdbc", "value.n, value.text AS text", "n bigint, text varchar(5)", {"text": "too long"}),
            ("jdbc", f"if(value.n = {TRIED_BAD}, null, value.n) AS n", "n bigint NOT NULL", {}),
            ("jdbc", "value.n, value.text AS text", "n bigint, text jsonb", {"text": "{"}),
        )
    ),
]


@pytest.mark.parametrize(("kind", "select", "ddl", "bad"), REFUSED)
async def test_what_only_the_destination_knows_is_found_by_trials_that_leave_nothing(
    places: Places, kind: str, select: str, ddl: str, bad: dict[str, Any]
) -> None:
    place = places.place(kind, select, (), ddl)
    usual = {"text": "1", "n": 7} if kind != "jdbc" else {"text": "1"}
    contents = [{"n": n} | usual | (bad if n == TRIED_BAD else {}) for n in range(TRIED)]
    records = [record(n, value=json.dumps(each).encode()) for n, each in enumerate(contents)]
    part = range_data("t", 0, 0, TRIED, records)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        place.destination.write(places.batch(part))
    assert refuses_content(raised.value), raised.value

    async def trial(batch: Batch) -> None:
        try:
            place.destination.trial(places.batch(batch.ranges[0]))
        except Exception as error:
            raise (ContentRefusedError if refuses_content(error) else SinkError)(str(error)) from error

    found = await Separating(trial).refused(part)
    assert [each.offset for each in found] == [TRIED_BAD]
    assert place.destination.write(places.batch(part.without(((TRIED_BAD, TRIED_BAD + 1),)))).rows == TRIED - 1
    assert place.count() == TRIED - 1
    place.destination.close()
