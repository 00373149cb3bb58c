"""What the Spark sink reports about its directory: while ranges are published, after damage, and about dead writers."""

from __future__ import annotations

import gzip
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import SinkContext
from kzconsumer.sinks.quarantine import RangeQuarantine, kept_ranges
from kzconsumer_files.directory_target import Target
from kzconsumer_files.holdings import files
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import TargetOwner, data_file, range_name
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import SETTINGS, batch_range
from tests.support.range_data import range_data

OWNER = TargetOwner(cluster="c", group="g")


def planned(first: int, records: int = 3) -> BatchRange:
    return batch_range(first=first, until=first + 3, incarnation=-5, epoch=1, records=records)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "out")
    made.mark(OWNER)
    return made


def publish(target: Target, first: int, directory: str = "", kind: str = "parquet", quarantined: int = 0) -> Path:
    """A range of three records; returns the file in which a reader finds them."""
    attempt = target.attempts / f"by-test-{first}" / "1"
    attempt.mkdir(parents=True)
    rows = pa.table({"n": range(3)})
    part, staged = planned(first), attempt / "staged"
    name = str(Path(directory, data_file(part, {"json": "json.gz"}.get(kind, kind))))
    if kind == "parquet":
        pq.write_table(rows, staged)
    elif kind == "orc":
        orc.write_table(rows, str(staged))
    else:
        staged.write_bytes(gzip.compress(b'{"n": 1}\n' * 3) if kind == "json" else b"1\n" * 3)
    target.publish([StagedRange(part, 3, quarantined, [(staged, name)])], attempt, lambda: None)
    shutil.rmtree(attempt)
    return target.path / name


@pytest.mark.parametrize(("kind", "rows"), [("parquet", 3), ("orc", 3), ("json", 3), ("csv", None)])
def test_rows_are_counted_if_the_format_allows_it(target: Target, kind: str, rows: int | None) -> None:
    publish(target, 0, kind=kind)
    publish(target, 3, "_day=1/hour=2", kind=kind)
    found = files(target, kind, True)
    assert [each.identity for each in found.ranges] == [RangeIdentity("t", 0, -5, 1, n, n + 3) for n in (0, 3)]
    assert [(each.records_in, each.records_out, each.rows, each.faults) for each in found.ranges] == [
        (3, 3, rows, ())
    ] * 2
    assert (found.strays, found.leftovers) == ((), ())
    assert {each.rows for each in files(target, kind, False).ranges} == {None}


def test_missing_truncated_and_foreign_files_are_reported(target: Target) -> None:
    gone, cut, good = (publish(target, first) for first in (0, 3, 6))
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    for name in (data_file(planned(9)), f"_day=1/{good.name}", "day=1/copy.parquet"):
        (target.path / name).parent.mkdir(exist_ok=True)
        shutil.copy(good, target.path / name)
    for hidden in ("_SUCCESS", ".x.crc", "_temporary/x.parquet"):
        (target.path / hidden).parent.mkdir(exist_ok=True)
        shutil.copy(good, target.path / hidden)
    found = files(target, "parquet", True)
    assert [each.rows for each in found.ranges] == [None, None, 3]
    assert found.ranges[0].faults == (f"{gone.name} is gone",)
    assert found.ranges[1].faults[0].startswith(f"{cut.name} cannot be read: ")
    assert [each.removesuffix(" is of no range of the ledger") for each in found.strays] == [
        f"_day=1/{good.name}",
        "day=1/copy.parquet",
        data_file(planned(9)),
    ]


def test_a_range_being_published_is_no_stray_but_a_dead_writers_is_reported(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = publish(target, 0)
    # The state left by a writer that is killed before the entry: decided for, with the file in place.
    entry = target.path / "_kzconsumer" / f"{range_name(planned(0))}.json"
    decision = entry.parent / "publishing" / entry.name
    entry.rename(decision)
    found = files(target, "parquet", True)
    assert (found.ranges, found.strays) == ((), ())
    assert found.leftovers == (
        "t-0[0..3) is decided for and not there yet: the next start, or the next write of it, finishes it",
    )
    # Between the first read and the last it is finished: in either order, the file never counts as a stray.
    seen = Target.visible

    def then_entered(self: Target) -> Iterator[str]:
        names = list(seen(self))
        decision.rename(entry)
        return iter(names)

    monkeypatch.setattr(Target, "visible", then_entered)
    found = files(target, "parquet", True)
    assert (len(found.ranges), found.strays, found.leftovers) == (1, (), ())
    assert file.exists()


def test_dead_attempts_are_reported_as_leftovers_and_kept(target: Target) -> None:
    (target.attempts / "dead").mkdir()
    (target.attempts / "dead" / "file").write_bytes(b"12345")
    (target.attempts / "dead.lock").touch()
    for _ in range(2):
        (output,) = files(target, "parquet", True).leftovers
        assert output == f"1 dead attempt has left 5 bytes in {target.attempts}; the next start removes it"


def sink(path: Path, group: str = "g", **options: object) -> SparkSink:
    context = SinkContext(group=group, member="", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    return SparkSink({"destination": "parquet", "path": str(path), **options}, context)


async def test_a_sink_that_was_not_entered_reports_that_and_creates_nothing(target: Target, tmp_path: Path) -> None:
    publish(target, 0)
    there = sorted(target.path.rglob("*"))
    found = await sink(target.path).holdings(count_rows=True)
    assert (found.destination, len(found.ranges)) == (f"parquet files in {target.path}", 1)
    assert sorted(target.path.rglob("*")) == there
    made = sink(target.path)
    made.target.mark(OWNER)
    assert found.fingerprint == made.fingerprint != ""
    with pytest.raises(SinkError, match=r"belongs to group g of cluster c, sink spark; this is group other"):
        await sink(target.path, "other").holdings(count_rows=False)
    with pytest.raises(SinkError, match="is not marked as a target of any group"):
        await sink(tmp_path / "none").holdings(count_rows=False)
    assert not (tmp_path / "none").exists()
    call = SinkContext(group="g", member="", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    function = SparkSink({"destination": "function", "function": "tests.support.spark_functions:obey"}, call)
    with pytest.raises(SinkError, match="a function cannot be asked what it has done"):
        await function.holdings(count_rows=False)


async def test_quarantined_records_match_the_count_in_the_ledger(target: Target, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for first, there in ((0, 2), (3, 1), (6, None)):
        publish(target, first, quarantined=2)
        if there is not None:
            pq.write_table(pa.table({"n": range(there)}), bad / data_file(planned(first)))
    value = {"format": "json", "schema": "id BIGINT", "on_error": "quarantine"}
    found = await sink(target.path, value=value, quarantine=str(bad)).holdings(count_rows=True)
    output = [each.faults for each in found.ranges]
    assert output[0] == output[2] == ()  # a missing one was dealt with by the operator
    assert output[1] == (f"{bad / data_file(planned(3))} holds 1 records, the ledger says 2",)


def test_another_target_has_its_own_directories() -> None:
    plain = {"destination": "parquet", "path": "out", "value": {"format": "json", "schema": "id INT"}}
    assert SparkSink.elsewhere(plain, "new/") == {**plain, "path": "new/"}
    aside = SparkSink.elsewhere({**plain, "quarantine": "bad"}, "new/")
    assert (aside["path"], aside["quarantine"]) == ("new/", "new/_kzconsumer/quarantine")
    table = {"destination": "jdbc", "url": "jdbc:postgresql://h/d", "table": "t", "user": "u", "quarantine": "bad"}
    assert SparkSink.elsewhere(table, "t2") == {**table, "table": "t2", "quarantine": "bad/t2"}
    with pytest.raises(ConfigError, match='destination "function" has no target that could be another one'):
        SparkSink.elsewhere({"destination": "function", "function": "a:b"}, "new")


def test_a_range_that_was_set_aside_is_not_held(target: Target) -> None:
    publish(target, 0)
    assert target.set_aside(RangeIdentity("t", 0, -5, 1, 3, 6), 3)
    held = files(target, "parquet", count_rows=True)
    assert [each.identity.first for each in held.ranges] == [0]
    assert (held.strays, held.leftovers) == (
        (),
        ("t-0[3..6) was set aside, as a member could not write it or its log was cut off: it is never written",),
    )


async def yes() -> bool:
    return True


async def test_ranges_in_the_sinks_quarantine_are_found_by_their_names(tmp_path: Path) -> None:
    assert kept_ranges(tmp_path / "none") == []
    await RangeQuarantine(tmp_path, "spark").keep(range_data("t", 3, 5, 9), "why", yes)
    (tmp_path / ".staged").touch()
    (tmp_path / "README").touch()
    (tmp_path / f"t+3+2a.0+{9:020d}+{11:020d}.bin").touch()  # raw bytes that an earlier version has kept
    assert kept_ranges(tmp_path) == [(RangeIdentity("t", 3, 0x2A, 0, 5, 9), 4)]
    older = msgspec.structs.replace(range_data("t", 3, 9, 11), incarnation=-5)
    await RangeQuarantine(tmp_path, "spark").keep(older, "why", yes)
    assert kept_ranges(tmp_path)[0] == (RangeIdentity("t", 3, -5, 0, 9, 11), 2)
