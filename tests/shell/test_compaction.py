"""Small files made few: nothing is lost whenever it is broken off, and no reader ever reads wrongly."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from kzconsumer_spark import compaction as compaction_module
from kzconsumer_spark import merged_file
from kzconsumer_spark.compaction import Busy, Compactions
from kzconsumer_spark.compaction_report import compact
from kzconsumer_spark.holdings import files
from kzconsumer_spark.identity import Owner, data_file
from kzconsumer_spark.merged_file import NotMergeable, write_merged
from kzconsumer_spark.messages import SpooledRange, ToDelta, ToFiles, ToFunction
from kzconsumer_spark.publication import StagedRange
from kzconsumer_spark.target import NotOurs, Target

pytestmark = pytest.mark.timeout(120)
SIZE = 1 << 20
EACH = 3
_processes = multiprocessing.get_context("fork")


def unseen(done: int, total: int) -> None:
    """Nobody is looking."""


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "out")
    made.claim(Owner(cluster="c", group="g"))
    return made


def publish(target: Target, number: int, *directories: str, discard: bool = True) -> Path:
    """The range of that number: three records in a file, in each directory given."""
    part = SpooledRange(
        topic="t", partition=0, first=number * EACH, until=(number + 1) * EACH, incarnation=5, epoch=0,
        records=EACH, file=None,
    )  # fmt: skip
    attempt = target.attempts / f"by-test-{number}" / "1"
    attempt.mkdir(parents=True)
    staged = []
    for place, directory in enumerate(directories or ("",)):
        file = attempt / f"staged-{place}"
        pq.write_table(pa.table({"offset": range(part.first, part.until)}), file)
        staged.append((file, str(Path(directory, data_file(part)))))
    target.publish([StagedRange(part, EACH * len(staged), 0, staged)], attempt, lambda: None)
    if discard:
        target.discard(attempt)
    return target.path / staged[0][1]


def offsets(target: Target) -> list[int]:
    """What a reader of Arrow finds."""
    table = ds.dataset(target.path, format="parquet").to_table(columns=["offset"])
    return sorted(row["offset"] for row in table.to_pylist())


def names(target: Target) -> list[str]:
    return sorted(
        str(each.relative_to(target.path)) for each in target.path.rglob("[!_]*.parquet") if "_kz" not in str(each)
    )


def healthy(target: Target, ranges: int) -> bool:
    found = files(target, "parquet", True)
    counted = [(each.records_out == each.rows, each.faults) for each in found.ranges]
    return (counted, found.strays, found.leftovers) == ([(True, ())] * ranges, (), ())


def test_files_become_one_and_the_ledger_stays(target: Target) -> None:
    for number in range(4):
        publish(target, number)
    ledger = target.entries()
    made, left = Compactions(target).run(SIZE, 0.0, unseen)
    assert (len(made), left) == (1, {})
    assert names(target) == [f"t+0+5.0+{0:020d}+{12:020d}.parquet"]
    assert offsets(target) == list(range(12))
    assert target.entries() == ledger
    assert healthy(target, 4)
    assert Compactions(target).plan(SIZE) == []


def test_again_with_what_came_since(target: Target) -> None:
    for number in range(6):
        publish(target, number, "d=1", *(["d=2"] if number % 2 else []))
        if number in (1, 3):
            Compactions(target).run(SIZE, 0.0, unseen)
            assert healthy(target, number + 1)
    Compactions(target).run(SIZE, 0.0, unseen)
    assert len(names(target)) == 2
    assert offsets(target) == sorted([*range(18), *(n for n in range(18) if n // 3 % 2)])
    assert healthy(target, 6)


def test_a_plan_changes_nothing_and_the_report_counts(target: Target) -> None:
    for number in range(3):
        publish(target, number)
    to, before = ToFiles(path=str(target.path)), names(target)
    (planned,) = compact(to, SIZE, 0.0, None).directories
    assert (planned.directory, planned.files, planned.into) == (".", 3, 1)
    assert names(target) == before
    seen: list[tuple[int, int]] = []
    done = compact(to, SIZE, 0.0, lambda at, total: seen.append((at, total)))
    assert (done.done, done.directories) == (True, (planned,))
    assert seen == [(0, planned.size), (planned.size, planned.size)]


@pytest.mark.parametrize(
    ("to", "says"),
    [
        (ToDelta(path="x"), "OPTIMIZE"),
        (ToFiles(path="x", format="json"), "json files in x: only Parquet"),
        (ToFunction(function="m:f"), "function m:f has no files"),
    ],
)
def test_what_cannot_be_compacted_says_so(to: ToDelta | ToFiles | ToFunction, says: str) -> None:
    with pytest.raises(NotOurs, match=says):
        compact(to, SIZE, 0.0, None)


def test_a_range_of_which_something_is_staged_waits(target: Target) -> None:
    """Its writer, stopped in the middle, might bring the file back."""
    publish(target, 0)
    publish(target, 1, discard=False)
    assert Compactions(target).plan(SIZE) == []
    target.discard(target.attempts / "by-test-1" / "1")
    assert len(Compactions(target).plan(SIZE)) == 1


def test_two_do_not_compact_at_once(target: Target) -> None:
    publish(target, 0)
    with Compactions(target)._alone(), pytest.raises(Busy, match="by another process"):
        Compactions(target).run(SIZE, 0.0, unseen)


def test_a_merged_file_that_is_gone_or_cut_is_damage_of_all_its_ranges(target: Target) -> None:
    for number in range(2):
        publish(target, number)
    Compactions(target).run(SIZE, 0.0, unseen)
    (merged,) = names(target)
    (target.path / merged).rename(target.path / "_gone")
    assert {each.faults for each in files(target, "parquet", True).ranges} == {(f"{merged} is gone",)}
    pq.write_table(pa.table({"offset": range(5)}), target.path / merged)
    assert {each.faults for each in files(target, "parquet", True).ranges} == {
        (f"{merged} has 5 rows, and was made of 6",)
    }


def in_a_process(work: Callable[[], None]) -> int | None:
    process = _processes.Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode


def killed_before_step(target: Target, number: int) -> Callable[[], None]:
    """A compaction that dies before that call of what changes names; it ends of itself when there are fewer."""

    def work() -> None:
        steps = itertools.count()

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def step(*arguments: object, **more: object) -> object:
                if next(steps) == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **more)

            return step

        for owner, call in [(Path, "replace"), (Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (os, "link")]:
            setattr(owner, call, counted(getattr(owner, call)))
        Compactions(target).run(SIZE, 0.0, unseen)

    return work


def test_killed_at_any_step_it_is_finished_by_whoever_comes_next(tmp_path: Path) -> None:
    broken_off = 0
    for step in itertools.count():
        target = Target(tmp_path / str(step))
        target.claim(Owner(cluster="c", group="g"))
        for number in range(2):
            publish(target, number, "d=1", "d=2")
        died = in_a_process(killed_before_step(target, step)) == -signal.SIGKILL
        found = files(target, "parquet", True)
        assert [(each.rows, each.faults) for each in found.ranges] == [(2 * EACH, ())] * 2, "a look in between"
        assert not found.strays
        broken_off += Compactions(target).broken_off()
        if step % 2:
            Compactions(target).finish()
            assert not Compactions(target).broken_off()
        Compactions(target).run(SIZE, 0.0, unseen)
        assert len(names(target)) == 2
        assert offsets(target) == sorted([*range(6), *range(6)])
        assert healthy(target, 2)
        if not died:
            break
    assert step > 15
    assert broken_off > 5


class Readers:
    """Readers of any pace: each lists the directory at one moment and opens what it has listed at any later ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._listings: list[dict[str, set[int | None]]] = []

    def look(self) -> None:
        self._listings.append({name: set() for name in names(self._target)})
        for listing in self._listings:
            for name, found in listing.items():
                found.add(self._rows(name))

    def _rows(self, name: str) -> int | None:
        """None for what no reader takes, or finds no more."""
        try:
            return pq.read_metadata(self._target.path / name).num_rows
        except (OSError, pa.ArrowException):
            return None

    def read(self) -> set[int]:
        """What any of them may have counted without an error."""
        found = set()
        for listing in self._listings:
            if all(rows - {None} for rows in listing.values()):
                found.add(sum(max(each for each in rows if each is not None) for rows in listing.values()))
        return found


def watched(target: Target, monkeypatch: pytest.MonkeyPatch) -> Readers:
    readers = Readers(target)

    def with_a_look(call: Callable[..., object]) -> Callable[..., object]:
        def step(*arguments: object, **more: object) -> object:
            done = call(*arguments, **more)
            readers.look()
            return done

        return step

    readers.look()
    for owner, call in [(Path, "replace"), (Path, "unlink"), (os, "link"), (time, "sleep")]:
        monkeypatch.setattr(owner, call, with_a_look(getattr(owner, call)))
    return readers


def test_no_reader_of_any_pace_reads_wrongly(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        publish(target, number)
    with monkeypatch.context() as patched:
        readers = watched(target, patched)
        Compactions(target).run(SIZE, 0.0, unseen)
    assert readers.read() == {4 * EACH}


def test_without_marks_readers_read_rows_twice(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    for number in range(4):
        publish(target, number)
    with monkeypatch.context() as patched:
        patched.setattr(Compactions, "_mark", lambda self, mark, file: None)
        readers = watched(target, patched)
        Compactions(target).run(SIZE, 0.0, unseen)
    assert max(readers.read()) == 8 * EACH


def count_for_ever(path: Path, pipe: object) -> None:
    wrong = read = failed = 0
    while not pipe.poll():  # type: ignore[attr-defined]
        try:
            rows = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=["offset"]).num_rows
        except (OSError, pa.ArrowException):
            failed += 1
        else:
            read += 1
            wrong += rows != 40 * EACH * 2
    pipe.send((wrong, read, failed))  # type: ignore[attr-defined]


def test_a_reader_beside_it_fails_or_is_right(target: Target) -> None:
    """A real one, which lists and reads all the time."""
    sizes = [publish(target, number, "d=1", "d=2").stat().st_size for number in range(40)]
    mine, theirs = _processes.Pipe()
    reader = _processes.Process(target=count_for_ever, args=(target.path, theirs), daemon=True)
    reader.start()
    for times in (4, 40):  # what was made is small for the next
        time.sleep(0.3)
        assert Compactions(target).run(times * max(sizes), 0.5, unseen)[0]
    time.sleep(0.3)
    mine.send(None)
    wrong, read, failed = mine.recv()
    reader.join()
    assert wrong == 0
    assert read > 0
    assert failed > 0
    assert healthy(target, 40)


TABLES = {
    "plain": pa.table({"key": [b"a", None], "value": [b"x", b""], "offset": [1, 2]}),
    "nested": pa.table(
        {
            "headers": pa.array(
                [[{"key": "k", "value": b"v"}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
        }
    ),
    "numbers": pa.table(
        {
            "small": pa.array([1, None], pa.int16()),
            "exact": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
            "long": pa.array([Decimal("1.50"), None], pa.decimal128(30, 2)),
            "day": pa.array([1, 2], pa.date32()),
            "at": pa.array([1, 2], pa.timestamp("us", tz="UTC")),
            "local": pa.array([1, 2], pa.timestamp("us")),
        }
    ),
}


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "none"])
def test_columns_types_and_compression_are_as_they_were(tmp_path: Path, kind: str, codec: str) -> None:
    parts = [tmp_path / f"{n}.parquet" for n in range(3)]
    for file in parts:
        pq.write_table(TABLES[kind], file, compression=codec, store_schema=False, store_decimal_as_integer=True)  # type: ignore[arg-type]
    write_merged(parts, tmp_path / "whole.parquet")
    assert pq.read_table(tmp_path / "whole.parquet").equals(pa.concat_tables([TABLES[kind]] * 3))
    old, new = (pq.read_metadata(file) for file in (parts[0], tmp_path / "whole.parquet"))
    assert merged_file.kind_of(old) == merged_file.kind_of(new)
    assert new.num_row_groups == 1


def test_a_row_group_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [tmp_path / f"{n}.parquet" for n in range(5)]
    for file in parts:
        pq.write_table(TABLES["plain"], file)
    monkeypatch.setattr(merged_file, "_ROW_GROUP_BYTES", 2 * pq.read_table(parts[0]).nbytes)
    write_merged(parts, tmp_path / "whole.parquet")
    assert pq.read_metadata(tmp_path / "whole.parquet").num_row_groups == 3


def test_timestamps_of_all_years_are_left_alone(tmp_path: Path) -> None:
    """INT96, which Spark writes when it is told so: what Arrow reads of the year 9999 is another year."""
    parts = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for file in parts:
        pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("ns"))}), file, use_deprecated_int96_timestamps=True)
    with pytest.raises(NotMergeable, match="INT96"):
        write_merged(parts, tmp_path / "whole.parquet")


def test_what_spark_says_of_its_types_is_kept_and_told_apart(tmp_path: Path) -> None:
    parts = []
    for number, said in enumerate(({"a": "1"}, {"a": "1"}, {"a": "1", "legacyDateTime": ""})):
        parts.append(tmp_path / f"{number}.parquet")
        pq.write_table(TABLES["plain"].replace_schema_metadata(said), parts[-1])
    footers = [pq.read_metadata(file) for file in parts]
    assert merged_file.kind_of(footers[0]) == merged_file.kind_of(footers[1]) != merged_file.kind_of(footers[2])
    write_merged(parts[:2], tmp_path / "whole.parquet")
    assert pq.read_metadata(tmp_path / "whole.parquet").metadata == footers[0].metadata


def test_a_file_that_is_damaged_inside_is_told_and_the_others_are_merged(target: Target) -> None:
    for number in range(4):
        publish(target, number, "d=1", "d=2")
    broken = next((target.path / "d=1").glob("*+00000000000000000003+*"))
    content = bytearray(broken.read_bytes())
    content[4:40] = b"\xff" * 36
    broken.write_bytes(content)
    made, left = Compactions(target).run(SIZE, 0.0, unseen)
    assert [Path(each.name).parent.name for each in made] == ["d=2"]
    (reason,) = left.values()
    assert broken.name in reason


def test_a_directory_that_was_deleted_meanwhile_is_nobodys_trouble(target: Target) -> None:
    for number in range(3):
        publish(target, number, "d=1", "d=2")
    assert in_a_process(dies_when_decided(target)) == -signal.SIGKILL
    shutil.rmtree(target.path / "d=1")
    Compactions(target).finish()
    assert not Compactions(target).broken_off()
    assert offsets(target) == list(range(9))


def test_what_is_brought_back_from_a_copy_is_a_stray(target: Target) -> None:
    first = publish(target, 0)
    publish(target, 1)
    copy = first.read_bytes()
    Compactions(target).run(SIZE, 0.0, unseen)
    first.write_bytes(copy)
    assert files(target, "parquet", True).strays == (f"{first.name} has rows that are in a merged file",)


def test_a_look_beside_the_next_compaction_finds_no_damage(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        publish(target, number)
    Compactions(target).run(SIZE, 0.0, unseen)
    publish(target, 2)
    seen = pq.read_metadata

    def later(file: Path) -> pq.FileMetaData:
        monkeypatch.setattr(pq, "read_metadata", seen)
        Compactions(target).run(SIZE, 0.0, unseen)
        return seen(file)

    monkeypatch.setattr(pq, "read_metadata", later)
    assert healthy(target, 3)


def test_only_the_user_who_writes_there_compacts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(target, 0)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(NotOurs, match="another user"):
        Compactions(target).run(SIZE, 0.0, unseen)


def test_an_error_leaves_nothing_behind(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        publish(target, number, "d=1", "d=2")
    before, asked = names(target), itertools.count()

    def full(paths: Iterable[Path], path: Path) -> None:
        if next(asked):
            raise OSError(28, "No space left on device")
        write_merged(list(paths), path)

    monkeypatch.setattr(compaction_module, "write_merged", full)
    with pytest.raises(OSError, match="No space"):
        Compactions(target).run(SIZE, 0.0, unseen)
    assert names(target) == before
    assert not list((target.path / "_kzconsumer" / "compactions").glob("*/"))


def test_what_cannot_be_proven_equal_is_left_alone(target: Target) -> None:
    for number in range(2):
        file = publish(target, number)
        pq.write_table(pa.table({"offset": [1.0, float("nan"), 2.0]}), file)
    before = names(target)
    made, left = Compactions(target).run(SIZE, 0.0, unseen)
    assert made == []
    (reason,) = left.values()
    assert "NaN" in reason
    assert names(target) == before
    assert not list((target.path / "_kzconsumer" / "compactions").glob("*/*.parquet"))


def test_a_file_that_is_no_parquet_is_not_merged(tmp_path: Path) -> None:
    (tmp_path / "mark").write_bytes(compaction_module._MARK)
    with pytest.raises((NotMergeable, pa.ArrowInvalid)):
        write_merged([tmp_path / "mark"], tmp_path / "whole.parquet")


def dies_when_decided(target: Target) -> Callable[[], None]:
    def die(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        Compactions._carry_out = die  # type: ignore[assignment,method-assign]
        Compactions(target).run(SIZE, 5.0, unseen)

    return work


def test_until_it_is_finished_readers_fail_and_verify_tells(target: Target) -> None:
    for number in range(2):
        publish(target, number)

    def die(*arguments: Iterable[object]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def work() -> None:
        compaction_module.time.sleep = die  # type: ignore[attr-defined]
        Compactions(target).run(SIZE, 5.0, unseen)

    assert in_a_process(work) == -signal.SIGKILL
    with pytest.raises(pa.ArrowInvalid):
        offsets(target)
    assert any("compaction" in each for each in files(target, "parquet", True).leftovers)
    Compactions(target).finish()
    assert offsets(target) == list(range(6))
    assert healthy(target, 2)
