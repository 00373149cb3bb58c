"""A Delta table as the Spark sink writes it, without Spark: the contract of sinks, and changes by others."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.errors import DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Sink
from kzconsumer_files.directory_target import Target
from kzconsumer_files.layout import Misfit
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import NotOurs, TargetOwner
from kzconsumer_spark.destinations.delta_log import DeltaLog, statistics
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.worker_protocol.messages import ToDelta
from tests.support.copied import copied
from tests.support.delta import OWNER, Writer, claimed, spark_columns
from tests.support.duckdb_reader import delta_by_duckdb
from tests.support.extent import extent, only_nightly
from tests.support.range_data import range_data, record
from tests.support.sink_contract import OurSinkContract
from tests.support.store_in_memory import StoreInMemory
from tests.support.table_sink import TableSink
from tests.support.table_suite import Offsets, TableSuite, offsets, once

pytestmark = pytest.mark.timeout(120)


class TestDelta(TableSuite):
    made_of_rows = True
    log = DeltaLog

    def committed(self, directory: Path) -> list[Path]:
        found = sorted((directory / "table" / "_delta_log").glob("*.json"))
        assert found
        return found

    def claimed(self, directory: Path, owner: TargetOwner = OWNER) -> DeltaTarget:
        return claimed(directory / "table", owner)

    def rows(self, directory: Path) -> Offsets:
        return rows(directory / "table")


class TestContract(OurSinkContract):
    sets_aside = True
    kills = int(os.environ.get("KZCONSUMER_KILLS", extent("2", "40")))
    zombies = extent(2, 20)
    races = extent(4, 40)

    def sink(self, directory: Path) -> Sink:
        return TableSink(claimed(directory / "table"), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        found = DeltaTable(directory / "table").to_pyarrow_table(columns=["value"])["value"].to_pylist()
        assert Counter(delta_by_duckdb(directory / "table")["value"].to_pylist()) == Counter(found)
        return found

    def copy(self, directory: Path) -> Callable[[], None]:
        return copied(directory / "table")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "table"


@pytest.fixture
def writer(out: Path, tmp_path: Path) -> Writer[DeltaTarget]:
    return Writer(claimed(out), tmp_path / "scratch")


def rows(out: Path) -> Offsets:
    """By `deltalake`, and the same by DuckDB."""
    found, same = (
        sorted((row["partition"], row["offset"]) for row in table.to_pylist())
        for table in (DeltaTable(out).to_pyarrow_table(columns=["partition", "offset"]), delta_by_duckdb(out))
    )
    assert same == found
    return found


def free() -> None:
    """A lease that holds."""


TABLES = extent(6, 15)
PROCESSES = partial(ProcessPoolExecutor, mp_context=get_context("spawn"))


def published_in_race(directory: Path, name: str) -> int:
    published = 0
    for table in range(TABLES):
        writer = Writer(claimed(directory / f"table-{table}"), directory / name)
        batches = [writer.stage(*(range_data("t", n, first, first + 5) for n in range(3))) for first in (0, 5)]
        at_once(directory, name, table)
        published += sum(writer.publish(each) for each in batches)
    return published


def at_once(directory: Path, name: str, number: int) -> None:
    """Release two writers at the same time."""
    (directory / f"{name}-{number}").touch()
    deadline = time.monotonic() + 60
    while len(list(directory.glob(f"racer-?-{number}"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.long
@pytest.mark.parametrize("pool", [ThreadPoolExecutor, pytest.param(PROCESSES, marks=only_nightly)])
def test_two_writers_create_a_table_and_write_the_same_ranges(tmp_path: Path, pool: Callable[..., Executor]) -> None:
    """Processes by day, too: `test_two_members_write_at_once` of the contract, into a table that is there."""
    with pool(2) as racers:
        output = [*racers.map(published_in_race, (tmp_path, tmp_path), ("racer-a", "racer-b"))]
    assert sum(output) == TABLES * 6, output
    for number in range(TABLES):
        assert rows(tmp_path / f"table-{number}") == [at for partition in range(3) for at in offsets(partition, 0, 10)]


def test_constraints_added_to_a_table_meanwhile_are_respected(writer: Writer[DeltaTarget], out: Path) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 5)))
    add: Any = {"small": '"offset" < 1000000'}
    rule = once(lambda: DeltaTable(out).alter.add_constraint(add))
    with pytest.raises(NotOurs, match=r"has delta\.constraints\.small, which is not supported"):
        writer.publish(writer.stage(range_data("t", 0, 5, 9)), rule)
    assert rows(out) == offsets(0, 0, 5)
    with pytest.raises(NotOurs, match=r"has delta\.constraints\.small"):
        claimed(out)


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_range_set_aside_while_the_table_is_created(writer: Writer[DeltaTarget], out: Path, when: str) -> None:
    """Its writer creates the table, so that there is no log yet in which it could be recorded."""
    part = range_data("t", 0, 0, 10)

    class Early(DeltaTarget):
        """Finds no table the first time, though one is created at that moment."""

        looked = False

        def open(self) -> DeltaTable | None:
            early, self.looked = not self.looked, True
            return None if early else super().open()

    other = Early(writer.target.to)
    asides: list[bool] = []

    def set_aside() -> None:
        asides.append(other.set_aside(part.identity, 10))

    if when == "before":
        set_aside()
    if when == "after":
        assert writer.publish(writer.stage(part)) == 1
        set_aside()
    else:
        with pytest.raises(SetAside):
            writer.publish(writer.stage(part, range_data("t", 1, 0, 3)), once(set_aside) if when == "while" else free)
    assert asides == [when != "after"]
    assert rows(out) == (offsets(0, 0, 10) if when == "after" else offsets(1, 0, 3))
    assert writer.target.has([part.identity]) == ([part.identity] if when == "after" else [])
    assert claimed(out).set_aside(part.identity, 10) is (when != "after")


def test_table_maintenance_forgets_no_range(writer: Writer[DeltaTarget], out: Path) -> None:
    """OPTIMIZE, VACUUM, a checkpoint, and the removal of earlier log entries."""
    for first in range(0, 50, 10):
        writer.publish(writer.stage(range_data("t", 0, first, first + 10)))
    found = writer.target.held(True)
    assert [(each.identity[4:], each.records_out, each.rows) for each in found.ranges] == [
        ((first, first + 10), 10, 10) for first in range(0, 50, 10)
    ]
    table = DeltaTable(out)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(list(out.glob("*.parquet"))) == 1
    assert {each.rows for each in writer.target.held(True).ranges} == {None}
    assert writer.target.held(True).leftovers == (
        "files of 5 ranges are no longer the table's (compaction, say): their rows are not counted",
    )
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    table.cleanup_metadata()
    ours = [RangeIdentity("t", 0, 0x2A, 0, first, first + 10) for first in range(0, 60, 10)]
    assert claimed(out).has(ours) == ours[:-1]
    assert "the table's log begins at version" in writer.target.held(True).leftovers[0]
    assert writer.publish(writer.stage(range_data("t", 0, 50, 60), range_data("t", 1, 0, 5))) == 2
    assert rows(out) == offsets(0, 0, 60) + offsets(1, 0, 5)
    assert len(writer.target.held(True).ranges) == 2


def test_a_missing_file_is_reported(writer: Writer[DeltaTarget], out: Path) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 10), range_data("t", 1, 0, 10)))
    lost, cut = sorted(out.glob("*.parquet"))
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    (gone, damaged) = writer.target.held(True).ranges
    assert (gone.faults, gone.rows) == ((f"{lost.name} is gone",), None)
    assert damaged.faults[0].startswith(f"{cut.name} cannot be read: ")
    assert not any(each.faults for each in writer.target.held(False).ranges)


def test_readers_skip_files_by_their_statistics(writer: Writer[DeltaTarget], out: Path) -> None:
    start = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)  # the first record's, in whole seconds
    for first in (0, 10_000):
        records = [record(offset) for offset in range(first, first + 10)]
        writer.publish(writer.stage(range_data("t", 0, first, first + 10, records)))
    log = [json.loads(line) for line in (out / "_delta_log" / f"{2:020}.json").read_text().splitlines()]
    (stats,) = [json.loads(each["add"]["stats"]) for each in log if "add" in each]
    assert stats["numRecords"] == 10
    assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (10_000, 10_009)
    assert (stats["minValues"]["timestamp"], stats["maxValues"]["timestamp"]) == (
        "2023-11-14T22:13:30.000Z",
        "2023-11-14T22:13:30.009Z",
    )
    assert stats["nullCount"] == dict.fromkeys(("topic", "partition", "offset", "timestamp", "timestampType"), 0)
    for file in out.glob("*-00000000000000000000-*.parquet"):
        file.unlink()  # a reader that reads the file now has not used the statistics
    late = DeltaTable(out).to_pyarrow_table(
        columns=["offset"], filters=[("timestamp", ">", start + datetime.timedelta(seconds=10, milliseconds=4))]
    )
    assert set(late.column("offset").to_pylist()) == set(range(10_005, 10_010))


def _days(*years: int) -> list[datetime.datetime]:
    return [datetime.datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=datetime.UTC) for year in years]


def _file(path: Path, times: list[datetime.datetime]) -> pa.Table:
    table = pa.table({"offset": list(range(len(times))), "at": pa.array(times, pa.timestamp("us", tz="UTC"))})
    pq.write_table(table, path)
    return table


@given(
    times=st.lists(st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)), min_size=1, max_size=4),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=4),
)
def test_no_row_is_outside_of_its_files_statistics(times: list[datetime.datetime], numbers: list[int]) -> None:
    """Readers skip a file by them. Times have microseconds, statistics milliseconds."""
    rows = max(len(times), len(numbers))
    at = [each.replace(tzinfo=datetime.UTC) for each in (times * rows)[:rows]]
    table = pa.table({"at": pa.array(at, pa.timestamp("us", tz="UTC")), "number": (numbers * rows)[:rows]})
    with tempfile.NamedTemporaryFile() as file:
        pq.write_table(table, file.name, row_group_size=2)
        found = json.loads(statistics(Path(file.name)))
    lowest, highest = (
        {**found[name], "at": datetime.datetime.fromisoformat(found[name]["at"])} for name in ("minValues", "maxValues")
    )
    close = datetime.timedelta(milliseconds=1)
    assert min(at) - close < lowest["at"] <= min(at)
    assert max(at) <= highest["at"] < max(at) + close
    assert (lowest["number"], highest["number"]) == (min(numbers), max(numbers))
    assert (found["numRecords"], found["nullCount"]) == (rows, {"at": 0, "number": 0})


def test_statistics_have_years_of_four_digits_or_are_left_out(tmp_path: Path) -> None:
    _file(tmp_path / "early", _days(1, 999))
    early = json.loads(statistics(tmp_path / "early"))
    assert early["minValues"]["at"] == "0001-12-31T23:59:59.999Z"
    assert early["maxValues"]["at"] == "1000-01-01T00:00:00.000Z"
    _file(tmp_path / "late", _days(2000, 9999))
    late = json.loads(statistics(tmp_path / "late"))
    assert late["minValues"]["at"] == "2000-12-31T23:59:59.999Z"
    assert "at" not in late["maxValues"]
    beyond = pa.table({"at": pa.array([0, 253_402_300_800_000_000], pa.timestamp("us", tz="UTC"))})
    pq.write_table(beyond, tmp_path / "beyond")
    assert json.loads(statistics(tmp_path / "beyond"))["numRecords"] == 2


def test_what_the_page_says_makes_rows_visible_that_wrong_statistics_hid(tmp_path: Path) -> None:
    """They had no zeros before a year."""
    write_deltalake(tmp_path, _file(tmp_path / "outside", _days(1, 999, 2026)))
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    wrong = log.read_text().replace("0001-12-31T", "1-12-31T").replace("2026-12-31T", "10-12-31T")
    assert wrong != log.read_text()
    log.write_text(wrong)

    def old() -> int:
        year = datetime.datetime(1000, 1, 1, tzinfo=datetime.UTC)
        return int(DeltaTable(tmp_path).to_pyarrow_table(filters=[("at", "<", year)]).num_rows)

    assert old() == 0
    page = (Path(__file__).parents[3] / "docs" / "spark-tables.md").read_text()
    (repair,) = re.findall(r"^DeltaTable\(.*$", page, re.MULTILINE)
    eval(repair, {"DeltaTable": lambda _: DeltaTable(tmp_path)})
    assert old() == 2


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"offset": "long", "an extra": "string"}, 'cannot have a column "an extra"'),
        ({"offset": "integer"}, 'column "offset" is integer, in the table long'),
        ({"Offset": "long"}, 'no column "Offset", but "offset"'),
    ],
)
def test_rows_that_do_not_fit_are_refused_in_one_line(
    writer: Writer[DeltaTarget], out: Path, columns: dict[str, object], fault: str
) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    with pytest.raises(Misfit, match=fault) as caught:
        writer.publish(writer.stage(range_data("t", 0, 2, 4)), columns=spark_columns(**columns))
    assert "\n" not in str(caught.value)
    assert str(out) in str(caught.value)
    assert rows(out) == offsets(0, 0, 2)
    assert len(list(out.glob("*.parquet"))) == 1


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_marker_that_cannot_be_read_is_refused(out: Path, content: str) -> None:
    claimed(out)
    (marker,) = (out / "_kzconsumer").glob("*.json")
    marker.write_text(content)
    with pytest.raises(NotOurs, match=f"^{marker} cannot be read: "):
        claimed(out)


def test_further_columns_are_added(writer: Writer[DeltaTarget], out: Path) -> None:
    """By whichever member has them first; earlier rows have null, and rows without them still fit."""
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    types = {each.name: each.type for each in DeltaTable(out).schema().fields}
    late = writer.target.open()
    further = spark_columns(offset="long", extra="string")
    writer.publish(writer.stage(range_data("t", 0, 2, 4)), columns=further)
    assert DeltaTable(out).version() == 3
    staged = writer.stage(range_data("t", 0, 4, 6))
    assert writer.target.publish(late, staged, "late", further, lambda: None) == 1
    writer.publish(writer.stage(range_data("t", 0, 6, 8)))
    assert DeltaTable(out).version() == 5, "the columns are added once"
    found = {each.name: str(each.type) for each in DeltaTable(out).schema().fields}
    assert found == {**{name: str(kind) for name, kind in types.items()}, "extra": 'PrimitiveType("string")'}
    assert rows(out) == offsets(0, 0, 8)
    assert DeltaTable(out).to_pyarrow_table(columns=["extra"])["extra"].null_count == 8


def test_members_that_add_columns_at_once(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second to commit reads the table again: it has the first one's column."""
    one, other = (Writer(claimed(out), tmp_path / name) for name in ("one", "other"))
    one.publish(one.stage(range_data("t", 0, 0, 2)))
    take, table = one.target.log.take_columns, one.target.open()

    def overtaken(table: DeltaTable, columns: str) -> bool:
        monkeypatch.setattr(one.target.log, "take_columns", take)
        other.publish(other.stage(range_data("t", 1, 0, 2)), columns=spark_columns(offset="long", theirs="string"))
        return take(table, columns)

    monkeypatch.setattr(one.target.log, "take_columns", overtaken)
    staged = one.stage(range_data("t", 0, 2, 4))
    assert one.target.publish(table, staged, "one", spark_columns(offset="long", ours="long"), lambda: None) == 1
    assert {each.name for each in DeltaTable(out).schema().fields} >= {"theirs", "ours"}
    assert rows(out) == [*offsets(0, 0, 4), *offsets(1, 0, 2)]


@pytest.mark.parametrize(
    ("columns", "partition_by", "fault"),
    [
        ({"a b": "long"}, (), 'cannot have a column "a b"'),
        ({"a": "interval day"}, (), 'cannot have the type interval day of column "a"'),
        ({"a": {"type": "array", "elementType": "void", "containsNull": True}}, (), "the type void of"),
        ({"a": "timestamp"}, ("a",), '"a" is timestamp; it can be one of boolean, byte, date'),
        ({"a": "long"}, ("b",), '"b" is no column'),
    ],
)
def test_columns_that_no_table_can_have_are_refused(
    out: Path, tmp_path: Path, columns: dict[str, object], partition_by: tuple[str, ...], fault: str
) -> None:
    writer = Writer(claimed(out, partition_by=partition_by), tmp_path / "scratch")
    with pytest.raises(Misfit, match=fault):
        writer.publish(writer.stage(range_data("t", 0, 0, 2)), columns=spark_columns(**columns))
    assert not (out / "_delta_log").exists()


def test_partition_values_round_trip(out: Path, tmp_path: Path) -> None:
    """However Spark has encoded them in the names of directories."""
    columns = spark_columns(offset="long", kind="string", day="date", Größe="integer")
    writer = Writer(claimed(out, partition_by=("kind", "day", "Größe")), tmp_path / "scratch")
    kinds = {"a%2Fb%3Dc": "a/b=c", "x y+z%25": "x y+z%", "ä": "ä", "__HIVE_DEFAULT_PARTITION__": None}
    for partition, named in enumerate(kinds):
        (staged,) = writer.stage(range_data("t", partition, 0, 1))
        ((file, name),) = staged.files
        table = pq.read_table(file, columns=["offset"])
        pq.write_table(table, file)
        directories = f"kind={named}/day=2024-02-29/Größe={partition}"
        writer.publish([staged._replace(files=[(file, f"{directories}/{name}")])], columns=columns)
    found = DeltaTable(out).to_pyarrow_table().sort_by("Größe").to_pylist()
    day = datetime.date(2024, 2, 29)
    assert found == [{"offset": 0, "kind": kind, "day": day, "Größe": n} for n, kind in enumerate(kinds.values())]
    assert DeltaTable(out).to_pyarrow_table(filters=[("kind", "=", "a/b=c")]).num_rows == 1


def test_a_table_of_the_users_with_columns_of_its_own(out: Path, tmp_path: Path) -> None:
    fields = json.loads(spark_columns())["fields"]
    note = {"name": "note", "type": "string", "nullable": True, "metadata": {}}
    DeltaTable.create(out, Schema.from_json(json.dumps({"type": "struct", "fields": [note, *reversed(fields)]})))
    writer = Writer(claimed(out), tmp_path / "scratch")
    assert writer.publish(writer.stage(range_data("t", 0, 0, 2))) == 1
    write_deltalake(out, DeltaTable(out).to_pyarrow_table(), mode="append")  # other writers are not restricted
    assert writer.publish(writer.stage(range_data("t", 0, 2, 4))) == 1
    assert rows(out) == sorted(offsets(0, 0, 4) + offsets(0, 0, 2))
    assert set(DeltaTable(out).to_pyarrow_table().column("note").to_pylist()) == {None}


def test_invalid_locations(out: Path, tmp_path: Path) -> None:
    files = tmp_path / "files"
    Target(files).mark(OWNER)
    with pytest.raises(NotOurs, match="is a target of files: give another path"):
        claimed(files)
    table = tmp_path / "made"
    writer = Writer(claimed(table), tmp_path / "scratch")
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    with pytest.raises(NotOurs, match="is not empty"):
        Target(table).mark(OWNER)
    for mark in (claimed, lambda path: Target(path).mark(OWNER)):
        with pytest.raises(
            NotOurs, match=f"{table}/sub is inside the Delta table {table}, whose VACUUM would remove it"
        ):
            mark(table / "sub")
    with pytest.raises(NotOurs, match=f"{files}/sub is inside the target {files}, whose readers would see it, too"):
        claimed(files / "sub")
    claimed(tmp_path / "without rows")
    with pytest.raises(NotOurs, match=r"/without rows/sub is inside the Delta table "):
        Target(tmp_path / "without rows" / "sub").mark(OWNER)
    with pytest.raises(NotOurs, match=r"/without rows is a Delta table: give another path"):
        Target(tmp_path / "without rows").mark(OWNER)
    with StoreInMemory().reached() as store:
        store.put("lake/_kzconsumer/owner.json", b"{}")
        with pytest.raises(NotOurs, match="s3://bucket/lake/sub is inside the target s3://bucket/lake, whose readers"):
            DeltaTarget(ToDelta(path=store.uri("lake/sub"))).mark(OWNER)
    shutil.rmtree(table / "_kzconsumer")
    for file in table.glob("*.parquet"):
        file.unlink()
    with pytest.raises(NotOurs, match=r"is not empty \(_delta_log\)"):
        Target(table).mark(OWNER)
    assert claimed(table).open() is not None
    with pytest.raises(NotOurs, match=r"partition_by is \['day'\], and the table at .* is partitioned by \[\]"):
        claimed(table, partition_by=("day",))
    shutil.rmtree(table / "_kzconsumer")
    with pytest.raises(NotOurs, match="partition_by is"):
        claimed(table, partition_by=("day",))
    assert [each.name for each in table.iterdir()] == ["_delta_log"], "nothing is made in a table that is refused"
    with pytest.raises(NotOurs, match="is not marked as a Delta table"):
        DeltaTarget(ToDelta(path=str(tmp_path / "nowhere"))).find(OWNER)
    out.mkdir()
    (out / "somebodys.csv").touch()
    with pytest.raises(NotOurs, match=r"is not empty \(somebodys.csv\) and no Delta table"):
        claimed(out)
    assert [each.name for each in out.iterdir()] == ["somebodys.csv"]


def test_a_table_that_is_gone_takes_nothing_more(writer: Writer[DeltaTarget], out: Path) -> None:
    """With its log, or with the whole directory: another one is not made in its place."""
    parts = [range_data("t", 0, 10 * n, 10 * n + 10) for n in range(3)]
    writer.publish(writer.stage(parts[0]))
    writer.publish(writer.stage(parts[1]), follows=[parts[0].identity])
    for gone in (out / "_delta_log", out):
        shutil.rmtree(gone)
        for part in (parts[2], msgspec.structs.replace(parts[2], pieces=())):
            with pytest.raises(DestinationWentBackError, match=r"t-0: offsets 10 to 20 were .* perhaps with others"):
                writer.publish(writer.stage(part), follows=[parts[1].identity])
        assert not (out / "_delta_log").exists()


def test_a_range_follows_one_without_rows_from_before_the_table(writer: Writer[DeltaTarget], out: Path) -> None:
    one, two, three = (range_data("t", 0, n, n + 5, rows) for n, rows in ((0, []), (5, []), (10, None)))
    writer.publish(writer.stage(one))
    writer.publish(writer.stage(two), follows=[one.identity])
    assert writer.publish(writer.stage(three), follows=[two.identity]) == 1
    assert rows(out) == offsets(0, 10, 15)
