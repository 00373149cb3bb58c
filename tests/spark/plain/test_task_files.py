"""Files that a task writes and puts into a store, and what stands for them on the driver's machine; without Spark."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types

from kzconsumer.errors import PluginError
from kzconsumer.file_names import MOST_BYTES
from kzconsumer_files.layout import Misfit
from kzconsumer_files.object_store import StorePut
from kzconsumer_spark.destinations.delta_log import statistics
from kzconsumer_spark.executors import task_files
from kzconsumer_spark.executors.task_files import TaskWriter, Values, directory, nowhere, stand_in
from kzconsumer_spark.ranges.batch import RANGE_COLUMNS, tag_of
from kzconsumer_spark.worker_protocol.messages import BatchRange
from kzconsumer_spark.worker_protocol.spark_settings import codec_of
from tests.support.batch_ranges import batch_range


class PutInto(msgspec.Struct, frozen=True):
    """A store that is a directory: as in one, a later object of a name takes the place of the earlier one."""

    place: Path

    def __call__(self, file: Path, name: str) -> None:
        (self.place / name).write_bytes(file.read_bytes())


class Interrupted(Exception): ...


def writer(place: Path, *ranges: BatchRange, by: Sequence[str] = (), attempt: str = "f" * 32) -> TaskWriter:
    place.mkdir(exist_ok=True)
    found: dict[Values, BatchRange] = {(tag_of(part.topic), str(part.partition)): part for part in ranges}
    return TaskWriter((*RANGE_COLUMNS, *by), found, attempt, "snappy", PutInto(place))


def rows(*given: tuple[str | None, ...], value: bytes = b"v") -> pa.RecordBatch:
    """Of topic, partition and what further directories are named by; a value for each, which says its number."""
    columns: dict[str, pa.Array[Any]] = {
        "n": pa.array(range(len(given)), pa.int64()),
        "value": pa.array([value] * len(given), pa.binary()),
    }
    columns |= {f"by{number}": pa.array(column, pa.string()) for number, column in enumerate(zip(*given, strict=True))}
    return pa.RecordBatch.from_pydict(columns)


def files(made: TaskWriter, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    (found,) = made.files(iter(batches))
    return found.to_pylist()


def test_rows_are_in_the_directories_that_spark_would_make(tmp_path: Path) -> None:
    long = batch_range("x" * 249, 1)
    made = writer(tmp_path / "store", batch_range("t.a"), long, by=["day", "a/b"])
    found = files(
        made,
        rows(("t.a", "0", "1", "x=y"), ("t.a", "0", None, ""), ("t.a", "0", "1", "x=y"), ("t.a", "0", "", None)),
        rows((tag_of(long.topic), "1", "ä", "%")),
        rows(("t.a", "0", "1", "x=y")),
        rows(),
    )
    null = "__HIVE_DEFAULT_PARTITION__"
    first = "_kz_topic=t.a/_kz_partition=0"
    read = {each["name"]: pq.read_table(tmp_path / "store" / each["name"]) for each in found}
    by_directory: dict[str, list[Any]] = {}
    for each in found:
        by_directory.setdefault(each["directory"], []).extend(read[each["name"]].column("n").to_pylist())
        assert len(each["name"].encode()) <= MOST_BYTES
    assert {place: sorted(numbers) for place, numbers in by_directory.items()} == {
        f"{first}/day=1/a%2Fb=x%3Dy": [0, 0, 2],
        f"{first}/day={null}/a%2Fb={null}": [1, 3],
        f"_kz_topic={tag_of(long.topic)}/_kz_partition=1/day=ä/a%2Fb=%25": [0],
    }
    assert {each.name for each in (tmp_path / "store").iterdir()} == set(read)
    assert {tuple(table.column_names) for table in read.values()} == {("n", "value")}


def test_a_task_that_is_run_again_puts_other_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the same time, after it was given up, or in another attempt of the batch."""
    numbers = iter((7, 8, 8))

    class Context:
        @staticmethod
        def get() -> Context:
            return Context()

        def taskAttemptId(self) -> int:
            return next(numbers)

    monkeypatch.setattr(task_files, "TaskContext", Context)
    part = batch_range()
    names = []
    for attempt in ("a" * 32, "a" * 32, "b" * 32):
        made: TaskWriter = pickle.loads(pickle.dumps(writer(tmp_path / "store", part, attempt=attempt)))
        (found,) = files(made, rows(("t", "0"), ("t", "0")))
        names.append(found["name"])
    assert len(set(names)) == 3
    assert sorted(names) == sorted(each.name for each in (tmp_path / "store").iterdir())
    assert all(name.startswith("t-0-1.0-00000000000000000000-00000000000000000009-") for name in names)


def test_what_stands_for_a_file_has_all_that_a_table_says_of_it(tmp_path: Path) -> None:
    made = writer(tmp_path / "store", batch_range())
    (found,) = files(made, rows(*[("t", "0")] * 1000, value=bytes(100)))
    whole, here = tmp_path / "store" / found["name"], tmp_path / "driver" / "day=1" / "here"
    for each in (here, here.with_name("there")):
        stand_in(each, found["size"], found["footer"])
    assert here.stat().st_size == whole.stat().st_size
    assert pq.read_metadata(here).to_dict() == pq.read_metadata(whole).to_dict()
    assert pq.read_schema(here) == pq.read_schema(whole)
    assert pq.read_metadata(whole).metadata is None, "types are those that Spark's files have, not Arrow's"
    assert statistics(here) == statistics(whole)
    assert b'"numRecords":1000,"minValues":{"n":0}' in statistics(here).encode()


def test_many_directories_and_much_data_in_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost where files are put early, since more are written than may be open, or their rows are many."""
    monkeypatch.setattr(task_files, "OPEN_FILES", 3)
    monkeypatch.setattr(task_files, "ROW_GROUP", 4000)
    monkeypatch.setattr(task_files, "PENDING", 10_000)
    open_files: list[int] = []
    flush = task_files.OpenFiles._flush

    def flushed(self: Any, values: Any) -> None:
        flush(self, values)
        open_files.append(len(self._open))
        assert sum(self._bytes.values()) <= 14_000

    monkeypatch.setattr(task_files.OpenFiles, "_flush", flushed)
    made = writer(tmp_path / "store", batch_range(), by=["by"])

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(60):
            yield rows(*(("t", "0", str((number * 5 + n) % 7)) for n in range(20)), value=bytes(100))

    (found,) = made.files(batches())
    counted: Counter[str] = Counter()
    for each in found.to_pylist():
        counted[each["directory"][-1]] += pq.read_metadata(tmp_path / "store" / each["name"]).num_rows
    expected = Counter(str((number * 5 + n) % 7) for number in range(60) for n in range(20))
    assert counted == expected
    assert max(open_files) == 3
    assert len(found) > 7, "some directories have several files"
    assert len({each["name"] for each in found.to_pylist()}) == len(found)


def test_a_trial_puts_nothing_and_an_interrupted_task_reports_nothing(tmp_path: Path) -> None:
    made = writer(tmp_path / "store", batch_range())
    (tried,) = files(made._replace(put=nowhere), rows(("t", "0")))
    assert tried["size"] > 0
    assert not list((tmp_path / "store").iterdir())

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield rows(("t", "0"))
        raise Interrupted

    with pytest.raises(Interrupted):
        list(made.files(interrupted()))
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.parametrize("fault", [OSError("s3://lake: no route"), PluginError("s3://lake needs obstore")])
def test_an_executor_that_does_not_reach_the_store_says_so_and_what_it_needs(tmp_path: Path, fault: Exception) -> None:
    def unreached(file: Path, name: str) -> None:
        raise fault

    made = writer(tmp_path / "store", batch_range())._replace(put=unreached)
    with pytest.raises(OSError, match=f"^the executor on .* cannot put files: {fault}. Each executor needs .* a route"):
        files(made, rows(("t", "0")))


def test_a_task_is_given_no_secret() -> None:
    """Options of a store have none; a task has the credentials of its machine."""
    put = StorePut("s3://bucket/x", {"aws_region": "r"})
    assert pickle.loads(pickle.dumps(put)) == put


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (types.NullType(), "void"),
        (types.ArrayType(types.MapType(types.StringType(), types.DayTimeIntervalType())), "array<map<string,interval"),
        (types.StructType([types.StructField("x", types.VariantType())]), "struct<x:variant>"),
    ],
)
def test_types_of_which_arrow_writes_others_are_refused(kind: types.DataType, text: str) -> None:
    with pytest.raises(Misfit, match=r'column "y" is .*, which tasks of a cluster cannot write') as refused:
        task_files.require_plain([types.StructField("x", types.DecimalType(9, 2)), types.StructField("y", kind)])
    assert text in str(refused.value)


def test_files_without_columns_are_refused() -> None:
    with pytest.raises(Misfit, match="partition_by names all columns"):
        task_files.require_plain([])


def test_the_codec_is_that_of_sparks_writer() -> None:
    assert codec_of({}, {}) == "snappy"
    assert codec_of({}, {"spark.sql.parquet.compression.codec": "zstd"}) == "zstd"
    assert codec_of({"Compression": "GZIP"}, {"spark.sql.parquet.compression.codec": "zstd"}) == "gzip"
    with pytest.raises(ValueError, match='compression "lzo" is not one of none, uncompressed, snappy, gzip, zstd'):
        codec_of({"compression": "lzo"}, {})
    with pytest.raises(ValueError, match=r"write_options\.parquet\.block\.size: .* without Spark's writer"):
        codec_of({"parquet.block.size": "1"}, {})


def test_directories_are_named_as_sparks_are() -> None:
    assert directory(["a b", "c="], ["x:y", None]) == "a b=x%3Ay/c%3D=__HIVE_DEFAULT_PARTITION__"
