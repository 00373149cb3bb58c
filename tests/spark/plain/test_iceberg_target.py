"""An Iceberg table as the Spark sink writes it, without Spark: the contract of sinks, and changes by others."""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate
from pyiceberg.transforms import DayTransform

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Sink
from kzconsumer_files.layout import Misfit
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import NotOurs, TargetOwner
from kzconsumer_spark.daemon.marked_destination import destination_for, mark
from kzconsumer_spark.destinations import iceberg_log
from kzconsumer_spark.destinations.iceberg_columns import further_columns
from kzconsumer_spark.destinations.iceberg_log import IcebergLog, TableError, local, redacted_line
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.worker_protocol.messages import ToIceberg
from tests.support.batch_ranges import batch_range
from tests.support.copied import copied
from tests.support.delta import OWNER, Writer
from tests.support.duckdb_reader import iceberg_by_duckdb
from tests.support.extent import extent, only_nightly
from tests.support.failed_syncs import require_written_again
from tests.support.range_data import range_data
from tests.support.sink_contract import OurSinkContract
from tests.support.table_sink import TableSink
from tests.support.table_suite import Offsets, TableSuite, offsets, once

pytestmark = pytest.mark.timeout(120)
TABLE = "lake.orders"


def options(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": (directory / "lake").as_uri()}


def claimed(directory: Path, owner: TargetOwner = OWNER, partition_by: tuple[str, ...] = ()) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=options(directory), partition_by=partition_by))
    target.mark(owner)
    return target


def catalog(directory: Path) -> Catalog:
    return load_catalog("default", **options(directory))


def rows(directory: Path) -> Offsets:
    """By `pyiceberg`, and the same by DuckDB."""
    table = catalog(directory).load_table(TABLE)
    found, same = (
        sorted((row["partition"], row["offset"]) for row in each.to_pylist())
        for each in (table.scan(selected_fields=("partition", "offset")).to_arrow(), iceberg_by_duckdb(table))
    )
    assert same == found
    return found


class TestIceberg(TableSuite):
    made_of_rows = False
    log = IcebergLog

    def committed(self, directory: Path) -> list[Path]:
        return metadata_of(claimed(directory))

    def claimed(self, directory: Path, owner: TargetOwner = OWNER) -> IcebergTarget:
        return claimed(directory, owner)

    def rows(self, directory: Path) -> Offsets:
        return rows(directory)


class TestContract(OurSinkContract):
    sets_aside = True
    kills = int(os.environ.get("KZCONSUMER_KILLS", extent("2", "40")))
    zombies = extent(2, 20)
    races = extent(4, 40)

    def sink(self, directory: Path) -> Sink:
        return TableSink(claimed(directory), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        table = catalog(directory).load_table(TABLE)
        found: list[bytes | None] = table.scan(selected_fields=("value",)).to_arrow()["value"].to_pylist()
        assert Counter(iceberg_by_duckdb(table)["value"].to_pylist()) == Counter(found)
        return found

    def copy(self, directory: Path) -> Callable[[], None]:
        return copied(directory)


@pytest.fixture
def writer(tmp_path: Path) -> Writer[IcebergTarget]:
    return Writer(claimed(tmp_path), tmp_path / "scratch")


RACED = extent(30, 2000)
PROCESSES = partial(ProcessPoolExecutor, mp_context=get_context("spawn"))


def won_in_race(directory: Path, name: str) -> int:
    writer = Writer(claimed(directory), directory / name)
    return sum(writer.publish(writer.stage(range_data("t", 0, first, first + 10))) for first in range(0, RACED, 10))


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, pytest.param(PROCESSES, marks=only_nightly)])
def test_two_writers_make_a_table_and_write_the_same_ranges(tmp_path: Path, pool: Callable[..., Executor]) -> None:
    """Processes by day, too: `test_two_members_write_at_once` of the contract, into a table that is there."""
    with pool(2) as racers:
        won = racers.map(won_in_race, (tmp_path, tmp_path), ("racer-a", "racer-b"))
    assert sum(won) * 10 == RACED
    assert rows(tmp_path) == offsets(0, 0, RACED)


def test_columns_are_added_and_their_types_kept(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    table = catalog(tmp_path).load_table(TABLE)
    with table.update_schema() as others:
        others.add_column("note", table.schema().find_type("topic"))
    assert writer.publish(writer.stage(range_data("t", 0, 2, 4))) == 1
    assert rows(tmp_path) == offsets(0, 0, 4)


def test_columns_that_do_not_fit_are_refused(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    def remade(*columns: pa.Field[Any]) -> Writer[IcebergTarget]:
        catalog(tmp_path).drop_table(TABLE)
        catalog(tmp_path).create_table(TABLE, pa.schema(columns))
        return Writer(claimed(tmp_path), tmp_path / "scratch")

    part = range_data("t", 0, 0, 2)
    with pytest.raises(Misfit, match=r'^Iceberg table lake\.orders: column "key" is binary, in the table string$'):
        (again := remade(pa.field("key", pa.string()))).publish(again.stage(part))
    with pytest.raises(Misfit, match=r'the table\'s column "id" is required'):
        (again := remade(pa.field("id", pa.int64(), nullable=False))).publish(again.stage(part))
    with pytest.raises(OSError, match=r"lake\.orders was dropped and made again: restart the member"):
        writer.publish(writer.stage(part))
    writer = remade()
    writer.publish(writer.stage(part))
    with catalog(tmp_path).load_table(TABLE).update_schema() as others:
        others.rename_column("value", "payload")
    with pytest.raises(Misfit, match=r'had a column "value" that was renamed or dropped'):
        writer.publish(writer.stage(range_data("t", 0, 2, 4)))
    assert catalog(tmp_path).load_table(TABLE).scan().to_arrow()["payload"].to_pylist() == [b"v0", b"v1"]


def staged(directory: Path, number: int, c: pa.Array[Any]) -> StagedRange:
    """A range whose rows have this one column."""
    part = batch_range("t", number, 0, len(c))
    file = directory / f"rows-{number}.parquet"
    pq.write_table(pa.table({"c": c}), file, write_statistics=number % 2 == 0)
    return StagedRange(part, part.records, 0, [(file, file.name)])


def test_partitions_have_the_values_of_their_rows(tmp_path: Path) -> None:
    """Statistics of a file may be missing, and do not distinguish empty text and null in one file."""
    target = claimed(tmp_path, partition_by=("c",))
    table = catalog(tmp_path).load_table(TABLE)
    with table.transaction() as change:
        change.set_properties({"write.metadata.metrics.default": "none"})
    values: list[str | None] = ["a", "b", "", None]
    ranges = [staged(tmp_path, number, c=pa.array([value] * 2, pa.string())) for number, value in enumerate(values)]
    assert target.publish(target.open(), ranges, "x", "{}", lambda: None) == 4
    for value in values:
        chosen = catalog(tmp_path).load_table(TABLE).scan("c is null" if value is None else f"c = '{value}'")
        assert [each.file.partition[0] for each in chosen.plan_files()] == [value]
        assert chosen.to_arrow()["c"].to_pylist() == [value] * 2
    mixed = staged(tmp_path, 9, c=pa.array(["", None], pa.string()))
    with pytest.raises(Misfit, match='partition_by: a file has 2 values of "c"'):
        target.publish(target.open(), [mixed], "y", "{}", lambda: None)
    double = staged(tmp_path, 10, c=pa.array([1.5]))
    with pytest.raises(Misfit, match='partition_by: "c" is double; it can be text, a whole number'):
        target.publish(target.open(), [double], "z", "{}", lambda: None)


def test_a_batch_of_which_no_row_is_left(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    """There are columns, and no file that has them."""
    (each,) = writer.stage(range_data("t", 0, 0, 5))
    assert writer.publish([each._replace(rows=0, files=())], columns="{}") == 1
    assert writer.target.has([range_data("t", 0, 0, 5).identity])
    assert not catalog(tmp_path).load_table(TABLE).schema().fields


def test_a_commit_that_is_made_and_reported_as_refused(
    writer: Writer[IcebergTarget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request finds what the first one has changed."""
    from pyiceberg.catalog.sql import SqlCatalog  # with SQLAlchemy, which processes without this test need not load

    commit, left = SqlCatalog.commit_table, [True]

    def lost(catalog: SqlCatalog, table: Table, requirements: Any, updates: Any) -> Any:
        done = commit(catalog, table, requirements, updates)
        if any(isinstance(each, AddSnapshotUpdate) for each in updates) and left:
            left.pop()
            raise CommitFailedException("the table has changed")
        return done

    monkeypatch.setattr(SqlCatalog, "commit_table", lost)
    for first in (0, 5):
        writer.publish(writer.stage(range_data("t", 0, first, first + 5)))
    assert not left
    assert rows(tmp_path) == offsets(0, 0, 10)


@pytest.mark.parametrize("change", ["column", "partitioning"])
def test_the_table_changes_right_before_the_commit(writer: Writer[IcebergTarget], tmp_path: Path, change: str) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))

    def by_others() -> None:
        table = catalog(tmp_path).load_table(TABLE)
        if change == "column":
            with table.update_schema() as update:
                update.delete_column("key")
        else:
            with table.update_spec() as spec:
                spec.add_field("timestamp", DayTransform())

    part = writer.stage(range_data("t", 0, 2, 4))
    with pytest.raises((Misfit, NotOurs), match=r'column "key" that was renamed or dropped|is partitioned by'):
        writer.publish(part, once(by_others))
    assert rows(tmp_path) == offsets(0, 0, 2)


def test_a_warehouse_may_have_any_path(tmp_path: Path) -> None:
    for name in ("a b", "50%", "ä#1"):
        place = tmp_path / name
        place.mkdir()
        given = options(tmp_path) | {"uri": f"sqlite:///{place}/catalog.db", "warehouse": f"{place}/lake"}
        target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=given))
        target.mark(OWNER)
        writer = Writer(target, place / "scratch")
        assert writer.publish(writer.stage(range_data("t", 0, 0, 2))) == 1
        assert load_catalog("default", **given).load_table(TABLE).scan().to_arrow().num_rows == 2
        assert [each.rows for each in target.held(True).ranges] == [2]


def test_a_table_that_is_partitioned_otherwise_or_elsewhere_is_refused(
    writer: Writer[IcebergTarget], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    for change, fault in (
        (
            {"location": "hdfs://n/lake"},
            "at hdfs://n/lake: supported are directories, and s3://, s3a://, gs://, abfss://",
        ),
        ({"format_version": 3}, "has format version 3; 1 and 2 are supported"),
    ):
        table = writer.target.open()
        monkeypatch.setattr(table, "metadata", table.metadata.model_copy(update=change))
        with pytest.raises(NotOurs, match=f"^the table lake.orders (is )?{fault}$"):
            IcebergLog(writer.target.to).require_simple(table)
    with pytest.raises(NotOurs, match=r"partition_by is \['topic'\], and the table lake.orders is partitioned by \[\]"):
        claimed(tmp_path, partition_by=("topic",))
    with catalog(tmp_path).load_table(TABLE).update_spec() as others:
        others.add_field("timestamp", DayTransform())
    with pytest.raises(NotOurs, match=r"is partitioned by \['day timestamp_day'\]"):
        writer.publish(writer.stage(range_data("t", 0, 2, 4)))
    assert [each.name for each in catalog(tmp_path).load_table(TABLE).spec().fields] == ["timestamp_day"]
    with pytest.raises(NotOurs, match=r"there is no Iceberg table lake\.more in the catalog default"):
        IcebergTarget(ToIceberg(table="lake.more", catalog_options=options(tmp_path))).find(OWNER)
    wrong = ToIceberg(table=TABLE, catalog_options=options(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"^Iceberg table lake.orders: .*unable to open database file"):
        IcebergTarget(wrong).mark(OWNER)
    memory = ToIceberg(table=TABLE, catalog_options={"type": "in-memory", "warehouse": "s3://bucket"})
    with pytest.raises(NotOurs, match="the catalog default is a InMemoryCatalog: supported are those of type sql"):
        IcebergTarget(memory).mark(OWNER)


def test_hive_without_its_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.hive", None)
    to = ToIceberg(table=TABLE, catalog_options={"type": "hive", "uri": "thrift://127.0.0.1:1"})
    said = "Iceberg table lake.orders: Apache Hive support not installed: pip install 'pyiceberg[hive]'"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'[sink.options]: {said}')}$"):
        mark(destination_for(to), OWNER)


def test_maintenance_forgets_no_range(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    """Files that are rewritten, and snapshots that expire."""
    for first in range(0, 30, 10):
        writer.publish(writer.stage(range_data("t", 0, first, first + 10)))
    table = catalog(tmp_path).load_table(TABLE)
    table.overwrite(table.scan().to_arrow())
    last = table.current_snapshot()
    assert last is not None
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.snapshots() if each.snapshot_id != last.snapshot_id]
    ).commit()
    assert writer.publish(writer.stage(range_data("t", 0, 20, 30))) == 0
    assert writer.publish(writer.stage(range_data("t", 0, 30, 40))) == 1
    assert rows(tmp_path) == offsets(0, 0, 40)
    found = writer.target.held(True)
    assert [(each.identity.until, each.rows) for each in found.ranges] == [(40, 10)]
    assert found.leftovers == (
        "the table's first snapshots may have expired: ranges that were committed in them are not looked at",
    )


def metadata_of(target: IcebergTarget) -> list[Path]:
    """The table's own files, but for those of earlier states."""
    table = target.open()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    names = [table.metadata_location, snapshot.manifest_list]
    return [local(name) for name in [*names, *(each.manifest_path for each in snapshot.manifests(table.io))]]


def test_a_commit_is_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    """Also by the next member, which finds the range in the table."""

    def publish(directory: Path) -> list[Path]:
        target = claimed(directory)
        part = range_data("t", 0, 0, 5)
        if not target.has([part.identity]):
            writer = Writer(target, directory / f"scratch-{uuid.uuid4().hex}")
            writer.publish(writer.stage(part))
        return metadata_of(target)

    require_written_again(tmp_path, publish)


@pytest.mark.parametrize(
    ("error", "raised", "connections"),
    [
        (ValidationError("expired"), Misfit, 1),
        (Misfit("expired"), Misfit, 1),
        (NotOurs("expired"), NotOurs, 1),
        (NoSuchTableError("expired"), None, 1),
        (ValueError("expired"), TableError, 2),
    ],
)
def test_after_an_error_of_the_connection_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception] | None, connections: int
) -> None:
    """Its token may have expired."""
    answers = iter((error, "the table"))

    class SqlCatalog:
        def __init__(self, *_: object) -> None:
            self.properties: dict[str, str] = {}
            connected.append(self)

        def load_table(self, name: str) -> str:
            match next(answers):
                case str(table):
                    return f"{table} {name}"
                case wrong:
                    raise wrong

    connected: list[SqlCatalog] = []
    monkeypatch.setattr(iceberg_log, "load_catalog", SqlCatalog)
    log = IcebergLog(ToIceberg(table=TABLE))
    if raised is None:
        assert log.open() is None
    else:
        with pytest.raises(raised, match=r"^(Iceberg table lake\.orders: )?expired$"):
            log.open()
    assert str(log.open()) == "the table lake.orders"
    assert len(connected) == connections


def test_an_error_of_a_catalog_is_one_line_without_its_password() -> None:
    error = ValueError("\n  GET https://loader:s3cret@catalog/v1/tables: 503\nmore of it")
    assert redacted_line(error).startswith("GET https://")
    assert redacted_line(error).endswith("catalog/v1/tables: 503")
    assert "s3cret" not in redacted_line(error)
    assert redacted_line(ValueError("")) == "ValueError"


def test_columns_that_a_name_mapping_lacks_are_refused(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    """Files have names only: a reader finds no column without a mapping, and the former one if it has two names."""
    writer.publish(writer.stage(range_data("t", 0, 0, 5)))
    table = catalog(tmp_path).load_table(TABLE)
    whole = table.metadata.name_mapping() or table.schema().name_mapping
    without = [each for each in whole.model_dump() if "key" not in each["names"]]
    former = [
        {**each, "names": [*each["names"], "more"] if "value" in each["names"] else each["names"]}
        for each in whole.model_dump()
    ]
    columns = pq.read_schema(next(tmp_path.rglob("*.parquet")))
    for mapping, found, reason in (
        (None, columns, None),
        (whole.model_dump(), columns, None),
        (without, columns, 'name mapping is without column "key": files could not be read'),
        (former, columns, None),
        (former, columns.append(pa.field("more", pa.int64())), 'had a column "more" that was renamed or dropped'),
    ):
        with table.transaction() as change:
            if mapping is None:
                change.remove_properties("schema.name-mapping.default")
            else:
                change.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
        metadata = catalog(tmp_path).load_table(TABLE).metadata
        if reason is None:
            assert further_columns(metadata, found) == []
        else:
            with pytest.raises(Misfit, match=reason):
                further_columns(metadata, found)
