"""Files that tasks have put into an object store: the driver publishes what one attempt of each task reported, once.

Without Spark: a task is what `TaskWriter` does in one. tests/spark/spark/test_chaos_cluster.py has a cluster.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.holdings import files as held_files
from kzconsumer_files.object_store import ObjectStore as Place
from kzconsumer_files.object_store import Put
from kzconsumer_files.object_target import ObjectTarget
from kzconsumer_files.parquet import record_table
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import TargetOwner, data_file
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.executors.task_files import TaskWriter, stand_in
from kzconsumer_spark.ranges.batch import RANGE_COLUMNS
from kzconsumer_spark.worker_protocol.messages import BatchRange, ToDelta, ToIceberg
from tests.support.delta import spark_columns
from tests.support.extent import only_nightly
from tests.support.object_store import ObjectStore
from tests.support.range_data import range_data

pytestmark = pytest.mark.timeout(600)
OWNER = TargetOwner(cluster="c", group="g")
TABLE = "lake.orders"
EACH = pytest.mark.parametrize(
    "store", ["s3", *(pytest.param(each, marks=only_nightly) for each in ("gs", "abfss"))], indirect=True
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with ExitStack() as stack:
        if request.param == "s3":
            server = request.getfixturevalue("amazon")
        else:
            server = stack.enter_context(ObjectStore.running(tmp_path / "store", "all", request.param))
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        yield server


def put_by_a_task(data: RangeData, put: Put, driver: Path, by: str | None = None, *, keep: bool = False) -> StagedRange:
    """One attempt of a task, and what the driver makes of its report. `keep`: files have the column `by`, too."""
    part = BatchRange.of(data)
    rows = record_table(data)
    keys = [part.topic, str(part.partition)]
    names = (*RANGE_COLUMNS, *((by,) if by else ()))
    named: list[Any] = [pa.array([key] * rows.num_rows) for key in keys]
    if by:
        named.append(rows.column(by).cast(pa.string()).combine_chunks())
        rows = rows if keep else rows.drop_columns([by])
    for number, column in enumerate(named):
        rows = rows.append_column(f"_kz_named_{number}", column)
    writer = TaskWriter(names, {(keys[0], keys[1]): part}, uuid.uuid4().hex, "snappy", put)
    (found,) = writer.files(iter(rows.combine_chunks().to_batches()))
    files, stored = [], []
    for number, each in enumerate(found.to_pylist()):
        here = driver / each["name"]
        stand_in(here, each["size"], each["footer"])
        place = "".join(f"{part}/" for part in each["directory"].split("/")[2:])
        files.append((here, f"{place}{data_file(part, number=number)}"))
        stored.append(each["name"])
    return StagedRange(part, rows.num_rows, 0, files, stored)


def target_in(store: ObjectStore) -> ObjectTarget:
    target = ObjectTarget(Place(store.uri("lake"), store.options))
    target.mark(OWNER)
    target.settle_layout("parquet", ())
    return target


def offsets(store: ObjectStore, names: list[str]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for name in names:
        found.update(pq.read_table(name, filesystem=store.filesystem, partitioning=None).column("offset").to_pylist())
    return found


@EACH
def test_files_are_those_that_the_decision_names(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a task was run twice, and though the writer dies before any of them has its final name."""
    data = range_data("t", 0, 0, 100)
    writer = target_in(store)
    attempt = PrivateDirectory(writer.attempts).path / "1"
    attempt.mkdir()
    for_nothing = put_by_a_task(data, writer.put(attempt), attempt)
    staged = put_by_a_task(data, writer.put(attempt), attempt)

    class Killed(Exception): ...

    def killed(*arguments: object) -> None:
        raise Killed

    with monkeypatch.context() as dying:
        dying.setattr(Place, "copy", killed)
        with pytest.raises(Killed):
            writer.publish([staged], attempt, lambda: None)
    assert not list(target_in(store).visible())
    other = target_in(store)
    assert other.missing([staged.part]) == []
    put_by_a_task(data, writer.put(attempt), attempt)  # by an executor that was given up
    assert list(other.visible()) == [data_file(staged.part)]
    assert offsets(store, [f"lake/{data_file(staged.part)}"]) == dict.fromkeys(range(100), 1)
    assert writer.publish([staged], attempt, lambda: None) == 1, "they were ours"
    held = held_files(other, "parquet", True)
    assert [(each.rows, each.faults) for each in held.ranges] == [(100, ())]
    assert held.strays == ()
    (leftover,) = held.leftovers
    assert leftover.startswith("2 staged objects (")
    left = [name for name in store.objects() if "/attempts/" in name]
    assert any(name.endswith(for_nothing.stored[0]) for name in left)
    # The control: a driver that publishes whatever is there has each record three times.
    assert offsets(store, [*left, f"lake/{data_file(staged.part)}"]) == dict.fromkeys(range(100), 3)


def table_of(store: ObjectStore, tmp_path: Path, kind: str, by: str) -> DeltaTarget | IcebergTarget:
    target: DeltaTarget | IcebergTarget
    if kind == "delta":
        target = DeltaTarget(ToDelta(path=store.uri("lake"), store_options=store.options, partition_by=(by,)))
    else:
        options = {
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": store.uri("warehouse"),
            **store.properties,
        }
        target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=options, partition_by=(by,)))
    target.mark(OWNER)
    return target


def rows_of(target: DeltaTarget | IcebergTarget, store: ObjectStore) -> Counter[tuple[int, int]]:
    if isinstance(target, DeltaTarget):
        options = {**store.options, "allow_http": "true"}
        table = DeltaTable(store.uri("lake"), storage_options=options).to_pyarrow_table(columns=["partition", "offset"])
    else:
        catalog = load_catalog("default", **target.to.catalog_options)
        table = catalog.load_table(TABLE).scan(selected_fields=("partition", "offset")).to_arrow()
    return Counter((row["partition"], row["offset"]) for row in table.to_pylist())


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@EACH
def test_a_table_has_the_files_that_its_commit_names(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    """With their sizes, statistics and partition values, though the committer has only their footers."""
    target = table_of(store, tmp_path, kind, "timestampType")
    driver = tmp_path / "driver"
    parts = range_data("t", 0, 0, 100), range_data("t", 1, 0, 50)

    def attempt() -> list[StagedRange]:
        put = target.put(target.open())  # type: ignore[arg-type]
        assert put is not None
        return [put_by_a_task(data, put, driver, "timestampType", keep=kind == "iceberg") for data in parts]

    for_nothing, staged = attempt(), attempt()
    publish: Any = target.publish
    assert publish(target.open(), staged, "b" * 32, spark_columns(), lambda: None) == 2
    assert publish(target.open(), for_nothing, "c" * 32, spark_columns(), lambda: None) == 0
    expected = {(part.partition, offset): 1 for part in parts for offset in range(part.first, part.until)}
    assert rows_of(target, store) == expected
    found = target.held(True)
    assert [(each.rows, each.faults) for each in found.ranges] == [(100, ()), (50, ())]
    names = {name.rpartition("/")[2] for each in staged for name in each.stored}
    assert {name.rpartition("/")[2] for name in target.files(target.open())} == names  # type: ignore[arg-type]
    there = [name for name in store.objects() if name.endswith(".parquet")]
    assert len(there) == 4
    if isinstance(target, DeltaTarget):
        table = DeltaTable(store.uri("lake"), storage_options={**store.options, "allow_http": "true"})
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        assert {(each["num_records"], each["partition.timestampType"]) for each in actions} == {(100, 0), (50, 0)}
        for each in actions:
            assert store.filesystem.get_file_info(f"lake/{each['path']}").size == each["size_bytes"]
    # The control: all that is there has each record twice.
    assert sum(offsets(store, there).values()) == 2 * sum(expected.values())
