"""A target directory: its owner, what is published, and files of dead processes."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import ConfigError, DestinationWentBackError, SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import SinkContext
from kzconsumer_files.directory_target import Target
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import (
    NotOurs,
    RangeOverlap,
    TargetOwner,
    data_file,
    identity_of,
    range_name,
)
from kzconsumer_files.target_marker import MARKER
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import SETTINGS, batch_range
from tests.support.copied import copied

OWNER = TargetOwner(cluster="c", group="g")


def planned(partition: int, records: int) -> BatchRange:
    return batch_range(partition=partition, records=records)


def numbered(number: int) -> BatchRange:
    """The ranges of one partition, without rows."""
    return msgspec.structs.replace(planned(0, 0), first=9 * number, until=9 * number + 9)


def free() -> None:
    """A lease that always holds."""


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "deep" / "out")
    made.mark(OWNER)
    return made


def attempt_of(target: Target, name: str = "mine") -> Path:
    made = target.attempts / name / "1"
    made.mkdir(parents=True)
    return made


def staged(attempt: Path, partition: int, text: str, *directories: str) -> StagedRange:
    """A range whose rows contain `text`, in one file for each directory (or none)."""
    files = []
    for number, directory in enumerate(directories):
        file = attempt / f"{partition}-{number}"
        pq.write_table(pa.table({"text": [text]}), file)
        part = planned(partition, 1)
        files.append((file, str(Path(directory, data_file(part)))))
    return StagedRange(planned(partition, len(files)), len(files), 0, files)


def texts(target: Target) -> list[str]:
    """What a reader of the directory finds."""
    table = ds.dataset(target.path, format="parquet", schema=pa.schema([("text", pa.string())])).to_table()
    return sorted(str(text) for text in table.column("text").to_pylist())


async def test_the_sink_has_what_the_ledger_has(tmp_path: Path) -> None:
    def sink(**options: object) -> SparkSink:
        output = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
        made = SparkSink(options, output)
        made.target.mark(OWNER)
        return made

    path = tmp_path / "out"
    parquet = sink(destination="parquet", path=str(path))
    made = Target(path)
    attempt = attempt_of(made)
    made.publish([staged(attempt, 0, "x")], attempt, free)
    there, not_there = (RangeIdentity("t", partition, 1, 0, 0, 9) for partition in (0, 1))
    assert await parquet.has([there, not_there, there._replace(epoch=1), there._replace(until=8)]) == [there]
    for name in ("orc", "by-day"):  # with the same id, and nothing else
        (tmp_path / name / "_kzconsumer").mkdir(parents=True)
        shutil.copy(path / "_kzconsumer" / "owner.json", tmp_path / name / "_kzconsumer")
    prints = {
        parquet.fingerprint,
        sink(destination="parquet", path=str(tmp_path / "other")).fingerprint,
        sink(destination="orc", path=str(tmp_path / "orc")).fingerprint,
        sink(destination="parquet", path=str(tmp_path / "by-day"), partition_by=["day"]).fingerprint,
    }
    assert len(prints) == 4
    assert sink(destination="function", function="tests.support.spark_functions:obey").fingerprint == ""
    (tmp_path / "mount").symlink_to(path)
    assert sink(destination="parquet", path=f"file:{tmp_path}/mount").fingerprint == parquet.fingerprint


def test_a_target_is_claimed_again_only_by_its_owner(target: Target) -> None:
    target.mark(OWNER)
    with pytest.raises(NotOurs, match="belongs to group g of cluster c, sink spark; this is group other of"):
        target.mark(TargetOwner(cluster="c", group="other"))
    with pytest.raises(NotOurs, match=r"give another path$"):
        target.mark(TargetOwner(cluster="d", group="g"))


def test_a_cluster_that_gets_an_id_keeps_its_target(target: Target, tmp_path: Path) -> None:
    """By an upgrade of its brokers from before 0.10.1. Without an id, it is known by `[zookeeper] connect`."""
    before, after = (TargetOwner(cluster=cluster, group="g") for cluster in ("zk1:2181/kafka", "K1u165aN"))
    place = Target(tmp_path / "upgraded")
    known = place.mark(before)
    marker = place.path / "_kzconsumer" / "owner.json"
    with pytest.raises(NotOurs, match=rf'or if that is the same cluster, .*, set "cluster" in {marker} to "K1u165aN"$'):
        place.mark(after)
    marker.write_text(marker.read_text().replace("zk1:2181/kafka", "K1u165aN"))
    assert place.mark(after) == known, "plans name the same destination"
    with pytest.raises(NotOurs, match=r"give another path$"):
        target.mark(before)


def test_a_directory_with_files_and_no_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    (tmp_path / "data.csv").touch()
    with pytest.raises(NotOurs, match=r"is not empty \(data.csv\)"):
        Target(tmp_path).mark(OWNER)
    assert sorted(each.name for each in tmp_path.iterdir()) == [".hidden", "data.csv"], "nothing is made there"
    (tmp_path / "data.csv").unlink()
    Target(tmp_path).mark(OWNER)


def test_a_target_is_not_inside_another_one_whose_readers_would_see_its_files(tmp_path: Path) -> None:
    outer = tmp_path / "out"
    inside = Target(outer / "day=1" / "sub")
    inside.mark(OWNER)
    with pytest.raises(NotOurs, match="is not empty"):
        Target(outer).mark(OWNER)
    (outer / "_kzconsumer" / "attempts").mkdir(parents=True)
    Target(outer / "day=2").mark(OWNER)  # earlier versions left a directory of ours in a place that they refused
    (outer / "_kzconsumer" / MARKER).write_text("{}")
    inside.mark(OWNER)  # as earlier versions allowed it
    (tmp_path / "link").symlink_to(outer)
    for other in (outer / "other", outer / "day=1" / "other", tmp_path / "link" / "other"):
        with pytest.raises(NotOurs, match=f"^{other} is inside the target {outer}, whose readers would see it, too: "):
            Target(other).mark(OWNER)
        assert not other.exists()
    for skipped in ("_other", ".other", "_others/below"):
        Target(outer / skipped).mark(OWNER)


def test_a_target_is_not_inside_an_iceberg_table_whose_orphan_files_are_removed(tmp_path: Path) -> None:
    table = tmp_path / "lake [1]" / "orders"
    (table / "metadata").mkdir(parents=True)
    Target(table / "other").mark(OWNER)  # a directory of this name makes no table
    (table / "metadata" / "00000-5e9d.metadata.json").touch()
    with pytest.raises(NotOurs, match=r"more is inside the Iceberg table .*, whose removal of orphan files would"):
        Target(table / "sub" / "more").mark(OWNER)
    Target(table.parent / "other").mark(OWNER)


def test_a_relative_path_below_a_directory_that_may_not_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process keeps the directory in which it was started, even if it may not search the directories above."""
    home, user = tmp_path / "closed" / "home", os.geteuid()
    home.mkdir(parents=True)
    home.chmod(0o777)
    monkeypatch.chdir(home)
    home.parent.chmod(0o000)
    try:
        os.seteuid(user or 65534)  # root may search every directory
        known = Target(Path("out")).mark(OWNER)
    finally:
        os.seteuid(user)
        home.parent.chmod(0o700)
    assert Target(home / "out").mark(OWNER) == known


def test_the_first_publication_of_a_range_stays(target: Target) -> None:
    first, second = attempt_of(target, "first"), attempt_of(target, "second")
    assert target.publish([staged(first, 0, "first", ""), staged(first, 1, "none")], first, free) == 2
    assert target.missing([planned(0, 1), planned(1, 0), planned(2, 1)]) == [planned(2, 1)]
    assert target.publish([staged(second, 0, "second", "")], second, free) == 0
    assert texts(target) == ["first"]
    entry = json.loads((target.path / "_kzconsumer" / f"{range_name(planned(0, 1))}.json").read_text())
    assert (entry["records_in"], entry["records_out"], entry["records_quarantined"]) == (1, 1, 0)
    assert entry["files"] == [data_file(planned(0, 1))]
    assert not list((target.path / "_kzconsumer" / "publishing").iterdir())


def identity(partition: int) -> RangeIdentity:
    return RangeIdentity("t", partition, 1, 0, 0, 9)


def test_a_range_set_aside_is_not_published_by_a_late_writer(target: Target) -> None:
    """A member that has lost its partition without knowing it, with a range that its successor cannot write."""
    late, again = attempt_of(target, "late"), attempt_of(target, "again")
    ranges = [staged(late, 0, "aside", ""), staged(late, 1, "x", "")]
    assert target.set_aside(identity(0), 1)
    with pytest.raises(SetAside, match=r'^t\+0\+.* set aside .* on_batch_failure = "quarantine"'):
        target.publish(ranges, late, free)
    assert texts(target) == ["x"]
    # Nor by a member that finds its plan: the range must stay set aside, not count as written.
    with pytest.raises(SetAside):
        target.require_published(planned(0, 1))
    with pytest.raises(SetAside):
        target.publish([staged(again, 0, "again", "")], again, free)
    assert target.set_aside(identity(0), 1)
    assert not target.set_aside(identity(1), 1)
    assert texts(target) == ["x"]


async def test_the_sink_does_not_have_ranges_set_aside(tmp_path: Path) -> None:
    output = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    sink = SparkSink({"destination": "parquet", "path": str(tmp_path)}, output)
    sink.target.mark(OWNER)
    assert await sink.set_aside(identity(0), 9)
    assert await sink.has([identity(0)]) == []
    assert list((tmp_path / "_kzconsumer" / "attempts").iterdir()) == []


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_ledger_that_cannot_be_read_for_a_moment(tmp_path: Path, comes_back: bool) -> None:
    output = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    path = tmp_path / "out"
    options = {"destination": "parquet", "path": str(path), "attempts": 3, "retry_backoff": "200ms"}
    sink = SparkSink(options, output)
    sink.target.mark(OWNER)
    made = Target(path)
    attempt = attempt_of(made)
    made.publish([staged(attempt, 0, "x")], attempt, free)
    decisions = path / "_kzconsumer" / "publishing"
    decisions.rmdir()
    decisions.touch()  # reading what is decided is an OSError

    with capture_logs() as logs:

        async def come_back() -> None:
            while len(logs) < 2:
                await anyio.sleep(0.01)
            decisions.unlink()
            decisions.mkdir()

        if comes_back:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_back)
                assert await sink.has([identity(0), identity(1)]) == [identity(0)]
        else:
            with pytest.raises(SinkError, match=r"ledger could not be read in 3 attempts: .*publishing") as raised:
                await sink.has([identity(1)])
            assert "\n" not in str(raised.value)
    assert [line["attempt"] for line in logs] == ([1, 2] if comes_back else [1, 2, 3])
    assert all(str(decisions) in line["error"] for line in logs)


def test_a_range_that_overlaps_a_published_one_is_refused(target: Target) -> None:
    """There is no other check: a range that is cut differently has another name."""

    def publish(name: str, first: int, until: int, **other: int) -> int:
        attempt = attempt_of(target, name)
        part = msgspec.structs.replace(planned(0, 0), first=first, until=until, **other)
        return target.publish([StagedRange(part, 0, 0, ())], attempt, free)

    assert publish("first", 0, 1000) == 1
    assert publish("again", 0, 1000) == 0
    for n, (first, until) in enumerate([(400, 1000), (0, 400), (999, 1200), (400, 600), (0, 1001)]):
        with pytest.raises(RangeOverlap, match=rf"t-0 \[{first}, {until}\).* overlaps \[0, 1000\).*offsets reset"):
            publish(f"bad{n}", first, until)
    with pytest.raises(RangeOverlap):
        target.set_aside(identity(0)._replace(first=400, until=1000), 1)
    assert publish("behind", 1000, 1200) == 1
    for other in ({"epoch": 1}, {"incarnation": 2}, {"partition": 1}):
        assert publish(f"other{other}", 400, 1000, **other) == 1
    assert len(target.entries()) == 5
    assert target.decisions() == []


def test_an_overlap_fails_its_own_range_and_names_the_remedy(target: Target) -> None:
    first = attempt_of(target, "first")
    parts = [msgspec.structs.replace(planned(0, 0), first=at, until=at + 100) for at in (0, 100)]
    for part in parts:
        target.publish([StagedRange(part, 0, 0, ())], first, free)
    attempt = attempt_of(target, "second")
    across = StagedRange(msgspec.structs.replace(planned(0, 0), first=50, until=150), 0, 0, ())
    with pytest.raises(RangeOverlap, match=r"kzconsumer offsets reset GROUP --to-offset 200 --topic t:0 --execute$"):
        target.publish([across, staged(attempt, 1, "good", "")], attempt, free)
    beyond = StagedRange(msgspec.structs.replace(planned(0, 0), first=50, until=201), 0, 0, ())
    with pytest.raises(RangeOverlap, match=r"--to-offset 200 --topic t:0 --execute --republish$"):
        target.publish([beyond], attempt, free)
    assert target.missing([across.part, planned(1, 1)]) == [across.part]
    assert texts(target) == ["good"]
    assert target.decisions() == []


@pytest.mark.parametrize("folded", [False, True])
def test_a_range_that_a_later_epoch_has_is_refused(target: Target, folded: bool) -> None:
    """The group's nodes are of before a reset: its records would be there twice, in ranges of two epochs."""
    attempt = attempt_of(target, "later")
    later = [msgspec.structs.replace(planned(0, 0), first=at, until=at + 10, epoch=2) for at in range(100, 500, 10)]
    for part in later:
        target.publish([StagedRange(part, 0, 0, ())], attempt, free)
    assert not folded or target.fold()
    for first, until in ((100, 110), (95, 101), (300, 600), (105, 106)):
        part = msgspec.structs.replace(planned(0, 0), first=first, until=until)
        with pytest.raises(
            RangeOverlap, match=r"of epoch 0 .* of a later epoch.* --to-offset 500 --topic t:0 --execute"
        ):
            target.publish([StagedRange(part, 0, 0, ())], attempt, free)
    for changed in ({"epoch": 0, "first": 50, "until": 100}, {"epoch": 1, "first": 500}, {"epoch": 3, "first": 105}):
        part = msgspec.structs.replace(planned(0, 0), **{"until": 600, **changed})
        assert target.publish([StagedRange(part, 0, 0, ())], attempt, free) == 1


async def test_an_overlapping_range_is_not_set_aside_and_is_looked_up_once(tmp_path: Path) -> None:
    output = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    sink = SparkSink({"destination": "parquet", "path": str(tmp_path), "attempts": 3, "retry_backoff": "100s"}, output)
    sink.target.mark(OWNER)
    assert await sink.set_aside(identity(0), 9)
    with pytest.raises(SinkError, match=r"overlaps \[0, 9\).* --to-offset 9 --topic t:0"):
        await sink.set_aside(identity(0)._replace(first=4, until=20), 16)


def test_a_range_that_overlaps_one_that_is_decided_is_refused(target: Target) -> None:
    """Its writer may be dead; the next one publishes it."""
    attempt = attempt_of(target)
    with pytest.raises(TimeoutError):
        target.publish([staged(attempt, 0, "first", "")], attempt, lost_after(1))
    second = attempt_of(target, "second")
    part = msgspec.structs.replace(planned(0, 0), first=4, until=12)
    with pytest.raises(RangeOverlap):
        target.publish([StagedRange(part, 0, 0, ())], second, free)


def lost_after(calls: int) -> Callable[[], None]:
    """A lease that holds for that many calls."""
    left = [None] * calls

    def require() -> None:
        if not left:
            raise TimeoutError
        left.pop()

    return require


def test_nothing_is_decided_without_a_lease(target: Target) -> None:
    attempt = attempt_of(target)
    with pytest.raises(TimeoutError):
        target.publish([staged(attempt, 0, "x", "")], attempt, lost_after(0))
    target.discard(attempt)
    assert target.missing([planned(0, 1)]) == [planned(0, 1)]
    assert texts(target) == []


def test_a_decision_whose_files_are_gone_is_reported(target: Target) -> None:
    attempt = attempt_of(target)
    with pytest.raises(TimeoutError):
        target.publish([staged(attempt, 0, "first", "")], attempt, lost_after(1))
    shutil.rmtree(attempt)
    with capture_logs() as logs:
        assert target.missing([planned(0, 1)]) == [planned(0, 1)]
    assert re.search(r"is gone, which .*publishing/t\+0\+1.0\+.*json says is published", logs[0]["error"])


def test_only_directories_of_dead_processes_are_swept(tmp_path: Path) -> None:
    mine = PrivateDirectory(tmp_path)
    code = (
        "import os, pathlib, sys; from kzconsumer_files.private_directory import PrivateDirectory;"
        "d = PrivateDirectory(pathlib.Path(sys.argv[1])); (d.path / 'left').touch(); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 4
    assert sweep(tmp_path) == 1
    assert {each.name for each in tmp_path.iterdir()} == {mine.path.name, f"{mine.path.name}.lock"}
    mine.remove()
    assert not list(tmp_path.iterdir())


async def test_another_groups_target_is_a_config_fault_before_spark_starts(target: Target) -> None:
    context = SinkContext(group="other", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    sink = SparkSink({"destination": "parquet", "path": str(target.path)}, context)
    with pytest.raises(ConfigError) as caught:
        await sink.__aenter__()
    assert "belongs to group g" in caught.value.faults[0]
    marker = json.loads((target.path / "_kzconsumer" / "owner.json").read_text())
    assert len(marker.pop("id")) == 32
    assert marker == {"version": 1, "cluster": "c", "group": "g", "sink": "spark"}


def test_a_directory_that_was_restored_takes_nothing_more(target: Target) -> None:
    """Each range follows the one before, which is in the ledger, or folded into it."""

    def publish(number: int, *follows: int) -> int:
        attempt = attempt_of(target, uuid.uuid4().hex)
        each = StagedRange(numbered(number), 0, 0, ())
        return target.publish([each], attempt, free, [identity_of(numbered(before)) for before in follows])

    for number in range(70):
        publish(number, *([number - 1] if number else []))
    assert target.fold() > 0
    assert publish(70, 0) == 1, "a range that is folded is there"
    restore = copied(target.path)
    assert publish(71, 70) == publish(72, 71) == 1, "a copy changes nothing"
    restore()
    for _ in range(2):
        with pytest.raises(DestinationWentBackError, match="t-0: offsets 639 to 657 were written and committed"):
            publish(73, 72)
    assert not target.has(numbered(73))
    assert target.decisions() == []
    assert target.set_aside(identity_of(numbered(71)), 9)
    assert publish(72, 71) == 1, "a range that was set aside counts as there"
