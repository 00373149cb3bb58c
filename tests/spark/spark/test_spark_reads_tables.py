"""Delta and Iceberg tables of the sink in a Spark that has their own packages: its rows, and its maintenance.

The newest Spark that both packages support, in a process of its own: `make nightly` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from kzconsumer_files.target_writer import WriteResult
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.ranges.batch import TAGS
from kzconsumer_spark.ranges.staged_files import RangeFiles
from kzconsumer_spark.worker.range_writers import TableDestination
from kzconsumer_spark.worker_protocol.messages import ToDelta, ToIceberg
from tests.spark.spark.test_spark_destinations import OWNER, Shaping, batch, evens, frame_of, sorted_rows
from tests.support.duckdb_reader import delta_by_duckdb, iceberg_by_duckdb
from tests.support.extent import only_nightly
from tests.support.hive_metastore import hive_metastore
from tests.support.other_spark import OtherSpark, other_spark, table_formats
from tests.support.placed_records import PERMITTED

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("default"), only_nightly]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def metastore(lake: Path) -> Iterator[dict[str, str]]:
    with hive_metastore(lake / "metastore") as options:
        yield options


@pytest.fixture(scope="module")
def reader(lake: Path, metastore: dict[str, str]) -> Iterator[OtherSpark]:
    """Its catalogs `iceberg` and `hive` are those of pyiceberg."""
    iceberg = "org.apache.iceberg.spark"
    conf = {
        "spark.jars": table_formats("4.1"),
        "spark.sql.extensions": (
            f"io.delta.sql.DeltaSparkSessionExtension,{iceberg}.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.catalog.iceberg.type": "jdbc",
        "spark.sql.catalog.iceberg.uri": f"jdbc:sqlite:{lake}/catalog.db",
        "spark.sql.catalog.iceberg.warehouse": lake.as_uri(),
        "spark.sql.catalog.hive.type": "hive",
        "spark.sql.catalog.hive.uri": metastore["uri"],
    }
    for name in ("iceberg", "hive"):
        conf[f"spark.sql.catalog.{name}"] = f"{iceberg}.SparkCatalog"
        conf[f"spark.sql.catalog.{name}.cache-enabled"] = "false"
    with other_spark("4.1.4", lake / "spark", conf) as spark:
        yield spark


DELTA = "OPTIMIZE {name}", "VACUUM {name} RETAIN 0 HOURS"
ICEBERG = (
    "CALL {kind}.system.rewrite_data_files(table => 'shop.evens', options => map('min-input-files', '2'))",
    "CALL {kind}.system.rewrite_manifests('shop.evens')",
    "CALL {kind}.system.expire_snapshots(table => 'shop.evens', older_than => timestamp'2100-01-01', retain_last => 1)",
)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "hive"])
def test_rows_before_and_after_its_maintenance(
    spark: SparkSession, reader: OtherSpark, metastore: dict[str, str], lake: Path, tmp_path: Path, kind: str
) -> None:
    """All readers find the same rows; the sink goes on, and knows what it has written."""
    in_file = {"type": "sql", "uri": f"sqlite:///{lake}/catalog.db", "warehouse": lake.as_uri()}
    by = ("day", "kind")
    to: ToDelta | ToIceberg = ToDelta(path=str(lake / "evens"), partition_by=by)
    if kind != "delta":
        options = metastore if kind == "hive" else in_file
        to = ToIceberg(catalog=kind, table="shop.evens", catalog_options=options, partition_by=by)
    target: Any = DeltaTarget(to) if isinstance(to, ToDelta) else IcebergTarget(to)
    target.mark(OWNER)
    ranges = batch(tmp_path / "records")

    def write(number: int) -> WriteResult:
        """Three ranges of their own for each number; from the second time on with a column more."""
        further = [f"{number} AS number"] if number else []

        def shape(frame: DataFrame) -> DataFrame:
            kinds = "cast(n AS decimal(9, 2)) AS price", "map('k', n) AS map", "struct(array(text) AS l) AS nested"
            times = "timestamp'2024-01-01 12:00' AS at", "if(n < 2, null, concat('ä/', n % 4)) AS kind"
            return evens(frame).selectExpr("n", "text", *kinds, *times, "day", *further, *TAGS)

        files = RangeFiles(spark, to.files, Shaping(shape), keep_columns=kind != "delta")
        destination = TableDestination(files, target, PERMITTED)
        written = destination.write(
            frame_of(spark, tmp_path / "records", 1, [msgspec.structs.replace(each, epoch=number) for each in ranges])
        )
        destination.close()
        return written

    name = f"delta.`{lake}/evens`" if kind == "delta" else f"{kind}.shop.evens"

    def rows() -> list[dict[str, Any]]:
        read = by_delta if kind == "delta" else by_iceberg
        first, *others = (
            sorted_rows(each, number="ascending", n="ascending")
            for each in (reader.sql(f"SELECT * FROM {name}"), *read(target.open()))
        )
        assert others == [first, first]
        return first

    assert [write(number) for number in range(3)] == [(1000, 3, 0)] * 3
    before, many = rows(), len(target.files(target.open()))
    for statement in DELTA if kind == "delta" else ICEBERG:
        reader.sql(statement.format(name=name, kind=kind))
    assert len(target.files(target.open())) == many / 3
    assert rows() == before
    assert [write(number) for number in range(3)] == [(0, 0, 3)] * 3
    assert write(3) == (1000, 3, 0)
    numbers = [(row["number"] or 0, row["n"]) for row in rows()]
    assert sorted(numbers) == [(number, n) for number in range(4) for n in range(0, 2000, 2)]


def by_delta(table: DeltaTable) -> tuple[pa.Table, ...]:
    return table.to_pyarrow_table(), delta_by_duckdb(table.table_uri)


def by_iceberg(table: Table) -> tuple[pa.Table, ...]:
    return table.scan().to_arrow(), iceberg_by_duckdb(table)
