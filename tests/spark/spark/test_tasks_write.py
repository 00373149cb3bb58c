"""Files that Spark's tasks write for a store are those that Spark's own writer makes: directories, types and values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kzconsumer_spark.executors import task_files
from kzconsumer_spark.executors.task_files import TaskFiles, TaskWriter, nowhere
from kzconsumer_spark.ranges.batch import TAGS
from kzconsumer_spark.ranges.staged_files import RangeFiles, StagedFiles
from kzconsumer_spark.worker.spark_session import JARS_FIRST, with_jars_first
from kzconsumer_spark.worker_protocol.messages import ToFiles
from tests.spark.spark.test_spark_destinations import Shaping
from tests.support.extent import NIGHTLY
from tests.support.placed_records import placed, records_of
from tests.support.range_data import range_data

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]
# Of each type, and of text that names a directory: null, with blanks, and with what is escaped.
COLUMNS = (
    "key AS bytes",
    "CAST(offset AS STRING) AS text",
    "offset % 2 = 0 AS yes",
    "CAST(offset AS TINYINT) AS byte",
    "CAST(offset AS SMALLINT) AS short",
    "CAST(offset AS INT) AS int",
    "offset AS long",
    "CAST(offset AS FLOAT) / 3 AS float",
    "offset / 3D AS double",
    "CAST(offset AS DECIMAL(9, 2)) AS small",
    "CAST(offset AS DECIMAL(18, 2)) AS middle",
    "CAST(offset AS DECIMAL(38, 10)) AS large",
    "date'1582-10-10' + CAST(offset AS INT) AS day",
    "timestamp'0001-01-01 00:00:00Z' + make_interval(0, 0, 0, 0, 0, 0, offset / 1000000) AS early",
    "timestamp_ntz'9999-12-31 23:59:59.999999' AS late",
    "headers",
    "array(offset, NULL) AS numbers",
    "map('a', named_struct('x', offset, 'y', array(map(1, value)))) AS nested",
    "IF(offset % 3 = 0, NULL, offset) AS holes",
    "element_at(array('a/b=c', ' y', NULL, '{x} ü%', 'plain'), CAST(offset % 5 AS INT) + 1) AS place",
    "IF(offset % 4 = 0, NULL, date'2026-01-01' + CAST(offset % 3 AS INT)) AS on",
)
BY = ("place", "on")


def shaped(frame: DataFrame) -> DataFrame:
    return frame.where("offset % 7 <> 1").selectExpr(*COLUMNS, *TAGS)


def made_of(session: SparkSession, found: StagedFiles, place: Path) -> tuple[StructType, dict[str, list[str]]]:
    """Types, and the rows of each directory, as Spark reads them. `place` has files that were put."""
    directories = {}
    for each in found.ranges:
        for number, (file, name) in enumerate(each.files):
            stored = place / f"x{each.stored[number]}" if each.stored else file
            directories[str(stored)] = f"{each.part.topic}-{each.part.partition}/{name.rpartition('/')[0]}"
    frame = session.read.parquet(*(f"file://{file}" for file in directories))
    rows: dict[str, list[str]] = {}
    for file, row in frame.selectExpr("input_file_name()", "to_json(struct(*))").collect():
        rows.setdefault(directories[unquote(file.removeprefix("file://"))], []).append(row)
    assert sum(map(len, rows.values())) == sum(each.rows for each in found.ranges)
    return frame.schema, {where: sorted(each) for where, each in rows.items()}


def test_what_tasks_write_is_what_spark_writes(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()

    def put(file: Path, name: str, place: str = str(store)) -> None:
        shutil.copyfile(file, f"{place}/x{name}")  # Spark reads no file whose name begins with _

    parts = placed(tmp_path / "in", range_data("t.a", 0, 0, 12), range_data("_b", 3, 5, 12))
    frame = records_of(spark, tmp_path / "in", parts)
    files = RangeFiles(spark, ToFiles(path="", partition_by=BY, write_options={"compression": "zstd"}), Shaping(shaped))
    by_spark = files.stage(frame, parts, tmp_path / "spark")
    by_tasks = files.stage(frame, parts, tmp_path / "tasks", TaskFiles(put))
    assert by_tasks.columns == by_spark.columns
    assert [each.rows for each in by_tasks.ranges] == [each.rows for each in by_spark.ranges] == [10, 6]
    assert made_of(spark, by_tasks, store) == made_of(spark, by_spark, store)
    assert {f"x{name}" for each in by_tasks.ranges for name in each.stored} == {each.name for each in store.iterdir()}

    if NIGHTLY is None:  # of the columns of records the headers are among the types above
        return
    plain = RangeFiles(spark, ToFiles(path=""))
    found = plain.stage(frame, parts, tmp_path / "plain by tasks", TaskFiles(put))
    assert made_of(spark, found, store) == made_of(spark, plain.stage(frame, parts, tmp_path / "plain"), store)


def test_tasks_get_their_rows_a_thousand_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark 4.3 looks at all headers of an Arrow batch for each of its rows."""

    class Measuring(TaskWriter):  # defined here, so that Spark sends it to its tasks
        def files(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            most = 0
            for batch in batches:
                most = max(most, batch.num_rows)
            raise ValueError(f"at most {most} rows")

    monkeypatch.setattr(task_files, "TaskWriter", Measuring)
    parts = placed(tmp_path, range_data("t", 0, 0, 2_500))
    frame = records_of(spark, tmp_path, parts)
    with pytest.raises(Exception, match="at most 1000 rows"):
        RangeFiles(spark, ToFiles(path="")).stage(frame, parts, tmp_path / "staged", TaskFiles(nowhere))


def test_java_reads_what_tasks_have_fetched_without_checks_of_its_own(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm
    assert java is not None
    assert not java.org.apache.arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert not java.org.apache.arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_rows_reach_python_through_unix_domain_sockets(spark: SparkSession) -> None:
    assert spark.range(1).mapInArrow(lambda batches: batches, "id long").count() == 1
    place = Path(str(spark.conf.get("spark.python.unix.domain.socket.dir")))
    bound = {Path(line.split()[-1]).parent for line in Path("/proc/net/unix").read_text().splitlines()}
    assert place in bound


def test_java_looks_for_classes_first_where_most_of_them_are(spark: SparkSession) -> None:
    java = spark.sparkContext._jvm
    assert java is not None
    path = [Path(each).name for each in java.java.lang.System.getProperty("java.class.path").split(os.pathsep)]
    assert [jar for jar, name in zip(JARS_FIRST, path, strict=False) if name.startswith(jar)] == list(JARS_FIRST)
    assert with_jars_first("/mine.jar", Path("/none")) == "/mine.jar"
