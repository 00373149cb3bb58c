"""What is kept of a Delta table's log is what `deltalake` finds in it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from io import BufferedIOBase
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from kzconsumer.errors import DestinationWentBackError
from kzconsumer_files.range_names import TargetOwner
from kzconsumer_spark.destinations.delta_log import Applications, DeltaDirectory
from tests.support.copied import copied
from tests.support.delta import Writer, claimed, spark_columns
from tests.support.range_data import range_data

NAMES = ("p0", "p1", "p2")


def append(path: Path, **versions: int) -> None:
    """A commit of any writer."""
    marks = [Transaction(name, version) for name, version in versions.items()]
    rows = pa.table({"a": [1]})
    write_deltalake(path, rows, mode="append", commit_properties=CommitProperties(app_transactions=marks))


class Counted:
    """`Applications` of a table; counts the entries that it reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entries = 0
        self._kept = Applications(self._open)

    def _open(self, name: str) -> BufferedIOBase:
        self.entries += 1
        return (self._path / name).open("rb")

    def open(self) -> DeltaTable:
        self._kept.opened()
        return DeltaTable(self._path)

    def all(self) -> Mapping[str, int]:
        return self._kept.all(self.open())

    def require_right(self, table: DeltaTable) -> None:
        for name in NAMES:
            assert self._kept.version(table, name) == table.transaction_version(name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often `deltalake` has been asked since the last call."""
    count = 0
    ask = DeltaTable.transaction_version

    def counted(table: DeltaTable, application: str) -> int | None:
        nonlocal count
        count += 1
        return ask(table, application)

    def taken() -> int:
        nonlocal count
        found, count = count, 0
        return found

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    return taken


def test_commits_of_others_are_followed(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    append(tmp_path, p0=3)
    table = DeltaTable(tmp_path)
    kept.require_right(table)
    read = kept.entries
    append(tmp_path, p0=5, p1=1)
    append(tmp_path)
    append(tmp_path, p0=9)
    kept.require_right(table)  # as it was read
    later = DeltaTable(tmp_path)
    kept.require_right(later)
    assert kept.entries == read + 3
    kept.require_right(table)
    kept.require_right(later)
    assert kept.entries == read + 3


def test_a_table_that_is_made_again(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    append(tmp_path, p0=30, p1=30)
    kept.require_right(DeltaTable(tmp_path))
    shutil.rmtree(tmp_path)
    append(tmp_path, p0=1)
    append(tmp_path, p2=2)
    kept.require_right(DeltaTable(tmp_path))


@pytest.mark.parametrize("parts", [0, 2])
def test_all_applications_are_those_of_checkpoint_and_entries(tmp_path: Path, parts: int) -> None:
    """Spark may write a checkpoint of several files. Entries that it contains are removed one day."""
    kept, log = Counted(tmp_path), tmp_path / "_delta_log"
    append(tmp_path, p0=3)
    assert kept.all() == {"p0": 3}
    append(tmp_path, p0=4)
    append(tmp_path, p1=1)
    DeltaTable(tmp_path).create_checkpoint()
    if parts:
        (whole,) = log.glob("*.checkpoint.parquet")
        rows = pq.read_table(whole)
        whole.unlink()
        for part in range(parts):
            some = rows.take(list(range(part, rows.num_rows, parts)))
            pq.write_table(some, log / f"{2:020d}.checkpoint.{part + 1:010d}.{parts:010d}.parquet")
        (log / "_last_checkpoint").write_text(json.dumps({"version": 2, "size": rows.num_rows, "parts": parts}))
    for cleaned in (0, 1):
        (log / f"{cleaned:020d}.json").unlink()
    append(tmp_path, p2=2)
    for each in (kept, Counted(tmp_path)):
        assert each.all() == {"p0": 4, "p1": 1, "p2": 2}
    append(tmp_path, p1=7)
    read = kept.entries
    assert kept.all() == {"p0": 4, "p1": 7, "p2": 2}
    assert kept.all() is kept.all()
    assert kept.entries == read + 4, "the new one, and the last one whenever the table is opened"


@pytest.mark.parametrize("later", [2, 3, 6])
def test_a_table_that_was_restored_and_has_grown_again(tmp_path: Path, later: int) -> None:
    """To the version that was known, or a later one."""
    kept, path, copy = Counted(tmp_path / "table"), tmp_path / "table", tmp_path / "copy"
    append(path, p0=1, p1=1)
    shutil.copytree(path, copy)
    append(path, p0=2)
    append(path, p0=3)
    kept.require_right(kept.open())
    shutil.rmtree(path)
    copy.rename(path)
    for version in range(later):
        append(path, p2=version)
    kept.require_right(kept.open())


@pytest.mark.parametrize("further", [0, 2])
def test_a_restored_table_has_another_entry_in_the_place_of_ours(tmp_path: Path, further: int) -> None:
    """It was the last one that we have committed, and was not read since."""
    target = claimed(tmp_path / "out")
    writer = Writer(target, tmp_path / "scratch")
    others = Writer(claimed(tmp_path / "out", TargetOwner(cluster="c", group="other")), tmp_path / "others")
    parts = [range_data("t", 0, n, n + 1) for n in range(4)]
    writer.publish(writer.stage(parts[0]))
    restore = copied(tmp_path / "out")
    for part in parts[1:3]:
        writer.publish(writer.stage(part))
    restore()
    for number in range(2 + further):
        others.publish(others.stage(range_data("t", 0, number, number + 1)))
    with pytest.raises(DestinationWentBackError, match="offsets 1 to 3 were written"):
        writer.publish(writer.stage(parts[3]), follows=[parts[2].identity])
    assert target.has([part.identity for part in parts]) == [parts[0].identity]


def test_a_known_table_costs_one_entry_each_time_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    read = DeltaDirectory.open

    def counted(place: DeltaDirectory, name: str) -> BufferedIOBase:
        names.append(name)
        return read(place, name)

    monkeypatch.setattr(DeltaDirectory, "open", counted)
    target = claimed(tmp_path / "out")
    writer = Writer(target, tmp_path / "scratch")
    for first in range(3):
        writer.publish(writer.stage(range_data("t", 0, first, first + 1)))
    for first in (3, 4):
        names.clear()
        staged = writer.stage(range_data("t", 0, first, first + 1))
        table = target.open()
        assert target.missing(table, [each.part for each in staged]) == [each.part for each in staged]
        target.publish(table, staged, f"{first}", spark_columns(), lambda: None)
        assert len(names) == 1, "the entry that was committed by the batch before"
    names.clear()
    for _ in range(3):
        assert target.has([range_data("t", 0, 4, 5).identity])
    assert len(names) == 3


def test_entries_that_are_gone_or_too_many(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    append(tmp_path, p0=3)
    kept.require_right(DeltaTable(tmp_path))
    append(tmp_path, p0=4)
    append(tmp_path, p1=1)
    DeltaTable(tmp_path).create_checkpoint()
    for cleaned in (0, 1):
        (tmp_path / "_delta_log" / f"{cleaned:020d}.json").unlink()
    kept.require_right(DeltaTable(tmp_path))
    for version in range(5, 40):
        append(tmp_path, p0=version)
    read = kept.entries
    kept.require_right(DeltaTable(tmp_path))
    assert kept.entries == read + 1, "a log that has grown much is asked for again"


def test_a_batch_of_many_partitions_does_not_read_the_log_for_each(tmp_path: Path, asked: Callable[[], int]) -> None:
    target = claimed(tmp_path / "out")
    writer = Writer(target, tmp_path / "scratch")

    def batch(offset: int) -> None:
        staged = writer.stage(*(range_data("t", partition, offset, offset + 1) for partition in range(20)))
        assert len(target.missing(target.open(), [each.part for each in staged])) == 20
        assert writer.publish(staged) == 20

    batch(0)
    assert asked() <= 20
    batch(1)
    assert asked() == 0
