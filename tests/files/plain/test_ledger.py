"""A folded ledger: the same answers, few files, and nothing is removed before its replacement is on disk."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from kzconsumer.model import RangeIdentity
from kzconsumer_files import ledger, target_writer
from kzconsumer_files.directory_target import Target
from kzconsumer_files.fold_plan import FAN_OUT_BITS, Span, height
from kzconsumer_files.holdings import files
from kzconsumer_files.ledger import Folder
from kzconsumer_files.publication import SetAside, StagedRange
from kzconsumer_files.range_names import NotOurs, RangeOverlap, TargetOwner, aside_entry, data_file, range_name
from kzconsumer_spark.worker_protocol.messages import BatchRange
from tests.support.batch_ranges import batch_range
from tests.support.published_spans import published_spans

EACH = 3
RANGES = 60


def planned(number: int, partition: int = 0) -> BatchRange:
    return batch_range("t.x", partition, number * EACH, (number + 1) * EACH, incarnation=-5, epoch=1)


def identity(number: int) -> RangeIdentity:
    return RangeIdentity("t.x", 0, -5, 1, number * EACH, (number + 1) * EACH)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    memory = Path("/dev/shm")  # hundreds of ranges are published, each with several syncs
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as place:
        made = Target(Path(place, "out"))
        made.mark(TargetOwner(cluster="c", group="g"))
        yield made


def publish(target: Target, *numbers: int, directories: tuple[str, ...] = ("",), partition: int = 0) -> None:
    for number in numbers:
        attempt = target.attempts / f"by-test-{number}" / "1"
        attempt.mkdir(parents=True)
        part, staged = planned(number, partition), []
        for place, directory in enumerate(directories):
            file = attempt / f"staged-{place}"
            pq.write_table(pa.table({"offset": range(part.first, part.until)}), file)
            staged.append((file, str(Path(directory, data_file(part)))))
        target.publish([StagedRange(part, EACH * len(staged), 1, staged)], attempt, lambda: None)
        assert target.discard(attempt.parent)


def entries(target: Target) -> list[Path]:
    return sorted((target.path / "_kzconsumer").glob("*+*.json"))


def test_few_files_remain_and_all_ranges_are_known(target: Target) -> None:
    publish(target, *range(RANGES))
    before = files(target, "parquet", True)
    assert target.fold() > RANGES // 2
    assert target.fold() == 0
    assert len(list((target.path / "_kzconsumer").rglob("*.json"))) < RANGES // 2
    assert target.missing([planned(number) for number in range(RANGES + 1)]) == [planned(RANGES)]
    for number in range(RANGES):
        target.require_published(planned(number))
    # It does not have other offsets, epochs and partitions.
    others = [identity(1)._replace(until=99_999), identity(1)._replace(epoch=2), identity(1)._replace(partition=1)]
    assert target.missing(others) == others
    assert target.missing([identity(0)._replace(first=1, until=2 * EACH)]) == [], "however it was cut"
    spans = published_spans(target, identity(0))
    assert [span.first for span in spans[1:]] == [span.until for span in spans[:-1]]
    assert (spans[0].first, spans[-1]) == (0, Span((RANGES - 1) * EACH, RANGES * EACH))
    after = files(target, "parquet", True)
    assert (after.strays, after.leftovers) == ((), ())
    for what in ("records_in", "records_out", "records_quarantined", "rows", "ranges"):
        assert sum(getattr(each, what) for each in after.ranges) == sum(getattr(each, what) for each in before.ranges)
    assert not any(each.faults for each in after.ranges)
    assert len(files(target, "parquet", False).ranges) == len(after.ranges) < RANGES // 2


def test_a_range_entered_again_after_folding_counts_once(target: Target) -> None:
    """A writer was suspended between reading the ledger and entering, and finds a void decision to enter."""
    publish(target, *range(RANGES))
    target.fold()
    void = target.path / "_kzconsumer" / f"{range_name(identity(0))}.json"
    void.write_bytes(msgspec.json.encode(aside_entry(identity(0), EACH, "x")))
    target.require_published(planned(0))
    assert not target.set_aside(identity(0), EACH)
    assert sum(each.ranges for each in files(target, "parquet", True).ranges) == RANGES
    publish(target, *range(RANGES, RANGES + 30))
    target.fold()
    assert not void.exists()
    assert published_spans(target, identity(0))[-1].until == (RANGES + 30) * EACH


def test_a_range_set_aside_remains_an_entry_among_folded_ones(target: Target) -> None:
    publish(target, *range(30))
    assert target.set_aside(identity(30), EACH)
    publish(target, *range(31, 90))
    target.fold()
    assert len(entries(target)) < 60
    (aside,) = [each for each in target.entries() if each.kept_aside]
    assert aside.identity == identity(30)
    assert target.set_aside(identity(30), EACH)
    assert not any(span.first <= 90 < span.until for span in published_spans(target, identity(0)))
    held = files(target, "parquet", True).ranges
    assert sum(each.ranges for each in held) == 89
    assert identity(30) not in [run for each in held for run in each.runs]
    (around,) = [each for each in held if each.identity.first < 90 < each.identity.until]
    assert around.gaps == ((90, 93),)
    with pytest.raises(SetAside):
        target.require_published(planned(30))


def test_ranges_with_gaps_are_folded_and_nothing_is_published_in_a_gap(target: Target) -> None:
    publish(target, *range(0, 2 * RANGES, 2))
    assert target.fold() > RANGES // 2
    assert Target(target.path).fold() == 0
    assert len(list((target.path / "_kzconsumer").rglob("*.json"))) < RANGES // 2
    there = [planned(number) for number in range(0, 2 * RANGES, 2)]
    gaps = [planned(number) for number in range(1, 2 * RANGES, 2)]
    assert target.missing([*there, *gaps]) == gaps
    assert published_spans(target, identity(0)) == [(part.first, part.until) for part in there]
    across = identity(0)._replace(until=2 * EACH + 1)
    assert target.missing([across]) == [across]
    attempt = target.attempts / "by-test-across" / "1"
    attempt.mkdir(parents=True)
    part = msgspec.structs.replace(planned(0), until=2 * EACH + 1)
    with pytest.raises(RangeOverlap):
        target.publish([StagedRange(part, 0, 0, ())], attempt, lambda: None)
    # A range that arrives late in a gap, though it never should, is an entry of its own and stays one.
    publish(target, 1)
    publish(target, *range(2 * RANGES, 4 * RANGES, 2))
    target.fold()
    assert entries(target)[0].name == f"{range_name(planned(1))}.json"
    found = files(target, "parquet", True)
    assert sum(each.ranges for each in found.ranges) == 2 * RANGES + 1
    assert (found.strays, [each.faults for each in found.ranges if each.faults]) == ((), [])
    stray = target.path / data_file(planned(3))
    stray.write_bytes((target.path / data_file(planned(2))).read_bytes())
    assert files(target, "parquet", True).strays == (f"{stray.name} is of no range of the ledger",)


def test_a_line_with_unchanged_entries_is_not_read_again(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(target, *range(RANGES))
    assert len(entries(target)) > 1 << FAN_OUT_BITS
    folded: list[list[Path]] = []
    by_item = ledger.by_item

    def noted(files: list[Path]) -> object:
        folded.append(files)
        return by_item(files)

    monkeypatch.setattr(ledger, "by_item", noted)
    target.fold()
    # Enough of them for a second pass, none of which ends a group.
    more = [n for n in range(RANGES, RANGES + 200) if height("t.x+0+-5.1", (n + 1) * EACH) == 0]
    publish(target, *more[:40])
    target.fold()
    assert len(folded) == 2
    target.fold()
    assert len(folded) == 2
    publish(target, more[40])
    target.fold()
    assert len(folded) == 3


def test_ranges_staged_long_ago_are_folded_later(target: Target) -> None:
    publish(target, *range(RANGES))
    staged = [target.attempts / each.attempt for each in target.entries()]
    for directory in staged:
        directory.mkdir(parents=True)
        (directory / "t.x+0+0").touch()
    assert target.fold() == 0
    for directory in staged:
        (directory / "t.x+0+0").unlink()
    assert target.fold() > RANGES // 2


def test_damage_of_folded_ranges_is_reported(target: Target) -> None:
    publish(target, *range(RANGES), directories=("d=1", "d=2"))
    target.fold()
    gone = target.path / "d=1" / data_file(planned(0))
    copy = target.path / "d=3" / data_file(planned(RANGES - 1))
    copy.parent.mkdir()
    copy.write_bytes(gone.read_bytes())
    gone.unlink()
    found = files(target, "parquet", True)
    (damaged,) = [each for each in found.ranges if each.faults]
    assert damaged.identity.first == 0
    assert damaged.faults == (
        f"{2 * damaged.ranges - 1} files are there of {damaged.ranges} ranges, which had {2 * damaged.ranges}",
    )
    assert found.strays == (f"d=3/{copy.name} is of no range of the ledger",)


def test_ranges_published_and_folded_during_a_listing_are_no_finding(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(target, *range(20))
    seen = Target.visible
    calls: list[int] = []

    def then_more(self: Target) -> Iterator[str]:
        names = list(seen(self))
        if not calls:
            calls.append(1)
            publish(target, *range(20, RANGES))
            target.fold()
        return iter(names)

    monkeypatch.setattr(Target, "visible", then_more)
    found = files(target, "parquet", True)
    assert (sum(each.rows or 0 for each in found.ranges), found.strays) == (RANGES * EACH, ())
    assert not any(each.faults for each in found.ranges)


class PowerFails(BaseException):
    """After this call nothing is executed any more."""


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[str]]]:
    """Make the n-th call that changes the disk fail; the calls that were made are recorded."""
    calls: list[str] = []
    fails_at = [1 << 30]
    unsynced: set[Path] = set()

    def watched(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def made(*arguments: Any, **named: Any) -> Any:
            if len(calls) == fails_at[0]:
                raise PowerFails
            calls.append(name)
            found = call(*arguments, **named)
            match name:
                case "link" if "folded" in (path := Path(arguments[1])).parts:
                    unsynced.add(path)
                case "mkdir" if "folded" in (path := Path(arguments[0])).parts:
                    unsynced.add(path)
                case "fsync":
                    directory = Path(os.readlink(f"/proc/self/fd/{arguments[0]}"))
                    unsynced.difference_update([each for each in unsynced if each.parent == directory])
                case "unlink" if "attempts" not in Path(arguments[0]).parts:
                    assert not unsynced, f"{arguments[0]} is removed before {unsynced} is on disk"
            return found

        return made

    for name in ("link", "unlink", "fsync", "mkdir"):
        monkeypatch.setattr(os, name, watched(name))

    def fail(number: int) -> list[str]:
        calls.clear()
        unsynced.clear()
        fails_at[0] = number
        return calls

    yield fail
    fails_at[0] = 1 << 30


def test_folding_interrupted_at_any_call_loses_nothing_and_is_finished_later(
    target: Target, monkeypatch: pytest.MonkeyPatch, failing: Callable[[int], list[str]]
) -> None:
    fold = Folder.fold
    monkeypatch.setattr(Folder, "fold", lambda self, scratch, settled: fold(self, scratch, settled, 1))
    there = 0
    for number in range(10_000):
        publish(target, *range(there, there + 2 if there > 12 else 14))
        there += 2 if there > 12 else 14
        calls = failing(number)
        try:
            target.fold()
        except PowerFails:
            failing(1 << 30)
        else:
            assert len(calls) < number
            break
        assert target.missing([planned(each) for each in range(there)]) == []
        entered, folded = target.ledger()
        assert len(entered) + sum(each.ranges for _, each in folded) == there
    else:
        pytest.fail("it never came to its end")
    assert number > 30
    failing(1 << 30)
    target.fold()
    target.sweep()
    assert sum(each.ranges for each in files(target, "parquet", True).ranges) == there
    assert len(entries(target)) < 10


def test_an_entry_that_cannot_be_read_is_named_by_a_fold(target: Target) -> None:
    publish(target, *range(RANGES))
    entries(target)[0].write_bytes(b"{")
    with pytest.raises(NotOurs, match=re.escape(entries(target)[0].name)):
        target.fold()
    assert not [*target.attempts.iterdir()], "nothing is left of it"


def test_the_fan_out_matches_the_docs() -> None:
    assert 1 << FAN_OUT_BITS == 16


def test_a_writer_folds_when_it_starts_and_after_so_many_ranges(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fold at a time, in a thread. A fold that fails does not count, nor do ranges that are there already."""
    may_fold = threading.Event()
    folds: list[bool] = []
    errors = {2: OSError("no space left"), 3: NotOurs("an entry cannot be read")}
    there: set[int] = set()
    fold = target.fold

    def counted() -> int:
        folds.append(may_fold.wait(60))
        if len(folds) in errors:
            raise errors[len(folds)]
        return fold()

    def stage(parts: Sequence[BatchRange], folder: Path) -> list[StagedRange]:
        return [StagedRange(part, EACH, 0, ()) for part in parts]

    def written(number: int) -> int:
        """How many folds have ended."""
        rows = 0 if number in there else EACH
        assert writing.write([planned(number)], stage) == target_writer.WriteResult(
            rows, rows // EACH, 1 - rows // EACH
        )
        there.add(number)
        return ended()

    def ended() -> int:
        for thread in {*threading.enumerate()} - others:
            if may_fold.is_set():
                thread.join()
        return len(folds)

    monkeypatch.setattr(target_writer, "FOLD_EVERY", 3)
    monkeypatch.setattr(target, "fold", counted)
    others = {*threading.enumerate()}
    writing = target_writer.TargetWriter(target, lambda: None)
    assert [written(number) for number in range(6)] == [0] * 6, "the first fold is running"
    may_fold.set()
    assert ended() == 1
    with capture_logs() as logs:
        assert [written(number) for number in (0, 5, 6, 7, 8, 8, 9, 10, 11)] == [1, 1, 2, 2, 2, 2, 3, 3, 3]
    writing.close()
    assert [(each["event"], each["error"]) for each in logs] == [
        ("ledger not folded", str(error)) for error in errors.values()
    ]
    assert target.missing([planned(number) for number in range(12)]) == []
    assert not any((target.path / "_kzconsumer" / "attempts").iterdir())
