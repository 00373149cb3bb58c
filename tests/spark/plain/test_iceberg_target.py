"""An Iceberg table as the Spark sink writes it, without Spark: the contract of sinks, and changes by others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.transforms import DayTransform
from pyiceberg.types import StringType

from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import Batch, RangeData, Sink
from kzconsumer_files.layout import Misfit
from kzconsumer_files.names import NotOurs, Owner
from kzconsumer_files.publication import KeptAside
from kzconsumer_spark.iceberg.holdings import held
from kzconsumer_spark.iceberg.log import IcebergLog, local
from kzconsumer_spark.iceberg.target import IcebergTarget
from kzconsumer_spark.pipe.messages import ToIceberg
from kzconsumer_spark.ranges.positions import Overtaken
from tests.support.delta import OWNER, Writer
from tests.support.disk import watched_disk
from tests.support.extent import extent
from tests.support.range_data import range_data
from tests.support.sink_contract import OurSinkContract

pytestmark = pytest.mark.timeout(120)
TABLE = "lake.orders"
Offsets = list[tuple[int, int]]


def options(directory: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": (directory / "lake").as_uri()}


def claimed(directory: Path, owner: Owner = OWNER, partition_by: tuple[str, ...] = ()) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=options(directory), partition_by=partition_by))
    target.claim(owner)
    return target


def catalog(directory: Path) -> Catalog:
    return load_catalog("default", **options(directory))


def rows(directory: Path) -> Offsets:
    table = catalog(directory).load_table(TABLE).scan(selected_fields=("partition", "offset")).to_arrow()
    return sorted((row["partition"], row["offset"]) for row in table.to_pylist())


def offsets(partition: int, first: int, until: int) -> Offsets:
    return [(partition, offset) for offset in range(first, until)]


class IcebergSink:
    """The destination without Spark, so that a kill can happen between any two of its own steps."""

    def __init__(self, directory: Path) -> None:
        self._target = claimed(directory)
        self._writer = Writer(self._target, directory / "scratch")
        self.fingerprint = self._target.fingerprint

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return self._target.has(ranges)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return self._target.set_aside(part, records)

    async def write(self, batch: Batch) -> None:
        self._writer.publish(self._writer.stage(*batch.ranges))


class TestContract(OurSinkContract):
    sets_aside = True
    kills = int(os.environ.get("KZCONSUMER_KILLS", extent("4", "40", "2")))

    def sink(self, directory: Path) -> Sink:
        return IcebergSink(directory)

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        table = catalog(directory).load_table(TABLE).scan(selected_fields=("value",)).to_arrow()
        found: list[bytes | None] = table["value"].to_pylist()
        return found


@pytest.fixture
def writer(tmp_path: Path) -> Writer[IcebergTarget]:
    return Writer(claimed(tmp_path), tmp_path / "scratch")


def once(run: Callable[[], object]) -> Callable[[], None]:
    """Suspends a writer right before its first commit while another one does something."""
    left = [run]

    def step() -> None:
        if left:
            left.pop()()

    return step


def test_of_two_writers_the_first_wins_and_the_second_finds_it(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    """The second one has read the table before the first one wrote to it, like a zombie."""
    other = Writer(claimed(tmp_path), tmp_path / "other")
    same = range_data("t", 0, 0, 10), range_data("t", 1, 0, 4)
    published: list[int] = []
    first = once(lambda: published.append(other.publish(other.stage(*same))))
    assert writer.publish(writer.stage(*same, range_data("t", 2, 0, 3)), first) == 1
    assert published == [2]
    assert rows(tmp_path) == offsets(0, 0, 10) + offsets(1, 0, 4) + offsets(2, 0, 3)
    late = writer.stage(range_data("t", 0, 10, 20))
    assert writer.publish(late, once(lambda: other.publish(other.stage(range_data("t", 1, 4, 6))))) == 1
    assert rows(tmp_path) == offsets(0, 0, 20) + offsets(1, 0, 6) + offsets(2, 0, 3)
    assert catalog(tmp_path).load_table(TABLE).properties.get("commit.retry.num-retries") is None


RACER = f"""
import sys
from pathlib import Path
from tests.spark.plain.test_iceberg_target import claimed
from tests.support.delta import Writer
from tests.support.range_data import range_data
directory, name = Path(sys.argv[1]), sys.argv[2]
writer, won = Writer(claimed(directory), directory / name), 0
for first in range(0, {extent("30", "2000", "30")}, 10):
    won += writer.publish(writer.stage(range_data("t", 0, first, first + 10)))
print(won)
"""


def test_two_processes_write_the_same_ranges(tmp_path: Path) -> None:
    claimed(tmp_path)
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in ("racer-a", "racer-b")]
    won = [int(each.communicate(timeout=100)[0]) for each in racers]
    last = sum(won) * 10
    assert [each.returncode for each in racers] == [0, 0]
    assert rows(tmp_path) == offsets(0, 0, last)
    assert last == int(extent("30", "2000", "30"))


def test_a_range_that_is_partly_in_the_table_is_refused(writer: Writer[IcebergTarget]) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 10)))
    with pytest.raises(Overtaken, match=r"has t-0 up to offset 10, within t-0\[5\.\.15\)"):
        writer.publish(writer.stage(range_data("t", 0, 5, 15)))
    assert writer.target.has([RangeIdentity("t", 0, 0x2A, 0, 5, 15)]) == []


def test_a_range_set_aside_is_not_published_by_a_late_writer(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    aside, other = range_data("t", 0, 0, 10), range_data("t", 1, 3, 5)
    late = once(lambda: asides.append(claimed(tmp_path).set_aside(aside.identity, 10)))
    asides: list[bool] = []
    with pytest.raises(KeptAside, match=r'^t\+0\+.* set aside .* on_batch_failure = "quarantine"'):
        writer.publish(writer.stage(aside, other), late)
    assert asides == [True]
    assert rows(tmp_path) == offsets(1, 3, 5)
    with pytest.raises(KeptAside):
        writer.target.missing(writer.target.open(), [each.part for each in writer.stage(aside)])
    assert writer.target.has([aside.identity, other.identity]) == [other.identity]
    assert claimed(tmp_path).set_aside(aside.identity, 10)
    assert not claimed(tmp_path).set_aside(other.identity, 2)
    assert writer.publish(writer.stage(range_data("t", 0, 10, 12))) == 1
    found = held(writer.target.to, True)
    assert sorted(each.identity[1::4] for each in found.ranges) == [(0, 12), (1, 5)]
    assert found.leftovers == ("t-0[0..10) was set aside by a member that could not write it: it is never written",)


def test_ranges_without_records_are_known_too(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    empty = range_data("t", 0, 0, 10, [])
    assert writer.publish(writer.stage(empty)) == 1
    assert writer.target.has([empty.identity]) == [empty.identity]
    assert writer.publish(writer.stage(empty, range_data("t", 1, 0, 2))) == 1
    assert rows(tmp_path) == offsets(1, 0, 2)
    counted = [(each.identity.partition, each.records_in, each.rows) for each in held(writer.target.to, True).ranges]
    assert sorted(counted) == [(0, 0, 0), (1, 2, 2)]


def test_columns_are_added_and_their_types_kept(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    table = catalog(tmp_path).load_table(TABLE)
    with table.update_schema() as others:
        others.add_column("note", table.schema().find_type("topic"))
    assert writer.publish(writer.stage(range_data("t", 0, 2, 4))) == 1
    assert rows(tmp_path) == offsets(0, 0, 4)
    catalog(tmp_path).drop_table(TABLE)
    catalog(tmp_path).create_table(TABLE, pa.schema([("key", pa.string())]))
    with pytest.raises(Misfit, match=r'^Iceberg table lake\.orders: column "key" is binary, in the table string$'):
        writer.publish(writer.stage(range_data("t", 0, 4, 6)))
    assert catalog(tmp_path).load_table(TABLE).schema().find_type("key") == StringType()


def test_a_table_that_is_partitioned_otherwise_or_elsewhere_is_refused(
    writer: Writer[IcebergTarget], tmp_path: Path
) -> None:
    writer.publish(writer.stage(range_data("t", 0, 0, 2)))
    with pytest.raises(NotOurs, match=r"partition_by is \['topic'\], and the table lake.orders is partitioned by \[\]"):
        claimed(tmp_path, partition_by=("topic",))
    with catalog(tmp_path).load_table(TABLE).update_spec() as others:
        others.add_field("timestamp", DayTransform())
    with pytest.raises(NotOurs, match=r"is partitioned by \['day timestamp_day'\]"):
        writer.publish(writer.stage(range_data("t", 0, 2, 4)))
    with pytest.raises(NotOurs, match=r"there is no Iceberg table lake\.more in the catalog default"):
        IcebergTarget(ToIceberg(table="lake.more", catalog_options=options(tmp_path))).find(OWNER)
    wrong = ToIceberg(table=TABLE, catalog_options=options(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"^Iceberg table lake.orders: .*unable to open database file"):
        IcebergTarget(wrong).claim(OWNER)


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
    found = held(writer.target.to, True)
    assert [(each.identity.until, each.rows) for each in found.ranges] == [(40, 10)]
    assert found.leftovers == (
        "the table's first snapshots have expired: ranges that were committed in them are not looked at",
    )


def test_groups_share_a_table_with_separate_offsets(writer: Writer[IcebergTarget], tmp_path: Path) -> None:
    other = Writer(claimed(tmp_path, Owner(cluster="c", group="h")), tmp_path / "other")
    for each in (writer, other):
        assert each.publish(each.stage(range_data("t", 0, 0, 10))) == 1
    assert rows(tmp_path) == sorted(offsets(0, 0, 10) * 2)
    assert len(held(writer.target.to, False).ranges) == 1


def metadata_of(target: IcebergTarget) -> list[Path]:
    """The table's own files, but for those of earlier states."""
    table = target.open()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    names = [table.metadata_location, snapshot.manifest_list]
    return [local(name) for name in [*names, *(each.manifest_path for each in snapshot.manifests(table.io))]]


def test_files_are_synced_before_the_commit_and_the_commit_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pyiceberg` syncs nothing that it writes."""

    class Dies(Exception):
        pass

    def die(log: IcebergLog, table: object) -> None:
        raise Dies

    with watched_disk(tmp_path) as disk:
        target = claimed(tmp_path)
        writer = Writer(target, tmp_path / "scratch")
        data = local(target.open().location()) / "data"
        asked: list[int] = []

        def before_the_commit() -> None:
            files = list(data.glob("*.parquet"))
            disk.require(*files)
            asked.append(len(files))

        for first in (0, 5):
            writer.publish(writer.stage(range_data("t", 0, first, first + 5)), before_the_commit)
            disk.require(*metadata_of(target))
        assert asked == [1, 2]
        asks: list[Callable[[RangeData], object]] = [
            lambda part: claimed(tmp_path).has([part.identity]),
            lambda part: claimed(tmp_path).missing(target.open(), [each.part for each in writer.stage(part)]),
        ]
        for number, ask in enumerate(asks):
            part = range_data("t", 1 + number, 0, 5)
            with monkeypatch.context() as patch:
                patch.setattr(IcebergLog, "sync", die)
                with pytest.raises(Dies):
                    writer.publish(writer.stage(part))
            assert any(disk.missing(file) is not None for file in metadata_of(target))
            ask(part)
            disk.require(*metadata_of(target))
