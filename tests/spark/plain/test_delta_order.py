"""Durability of a Delta table: files are synced before their commit, a commit before it counts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.model import RangeIdentity
from kzconsumer_spark.destinations.delta_log import DeltaLog
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from tests.support.delta import Writer, claimed
from tests.support.disk import Disk, watched_disk
from tests.support.failed_syncs import require_written_again
from tests.support.range_data import range_data

PART = RangeIdentity("t", 0, 0x2A, 0, 0, 5)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with watched_disk(tmp_path) as made:
        out = tmp_path / "of" / "table"

        def on_name(file: Path, name: Path) -> None:
            reason = made.missing(file)
            assert name.parent != out or reason is None or reason.startswith("the name"), f"{name}: {reason}"

        made.on_name = on_name
        yield made


@pytest.fixture
def target(disk: Disk) -> DeltaTarget:
    return claimed(disk.root / "of" / "table")


@pytest.fixture
def writer(disk: Disk, target: DeltaTarget) -> Writer[DeltaTarget]:
    return Writer(target, disk.root / "scratch")


def path_of(target: DeltaTarget) -> Path:
    return Path(target.to.path)


def log_of(target: DeltaTarget) -> list[Path]:
    found = sorted((path_of(target) / "_delta_log").glob("*.json"))
    assert found
    return found


def test_a_claim_is_on_disk(disk: Disk, target: DeltaTarget) -> None:
    disk.require(path_of(target) / "_kzconsumer" / "delta.json", target.attempts)


def test_files_are_synced_before_the_commit_and_the_commit_before_it_counts(
    disk: Disk, target: DeltaTarget, writer: Writer[DeltaTarget]
) -> None:
    asked: list[int] = []

    def before_the_commit() -> None:
        files = list(path_of(target).glob("*.parquet"))
        disk.require(*files)
        asked.append(len(files))

    for first in (0, 5, 10):
        writer.publish(writer.stage(range_data("t", 0, first, first + 5)), before_the_commit)
        disk.require(*log_of(target), *path_of(target).glob("*.parquet"))
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(
    "ask",
    [
        lambda target: target.has([PART]),
        lambda target: target.missing(target.open(), [range_data("t", 0, 0, 5)]),
    ],
    ids=["has", "missing"],
)
def test_the_commit_of_a_killed_writer_is_synced_before_it_is_reported(
    disk: Disk,
    target: DeltaTarget,
    writer: Writer[DeltaTarget],
    ask: Callable[[DeltaTarget], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Dies(Exception):
        pass

    def die(log: DeltaLog, table: object) -> None:
        raise Dies

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "sync", die)
        with pytest.raises(Dies):
            writer.publish(writer.stage(range_data("t", 0, 0, 5)))
    assert disk.missing(log_of(target)[-1]) is not None
    ask(claimed(path_of(target)))
    disk.require(*log_of(target))


def test_a_range_kept_aside_is_on_disk(disk: Disk, target: DeltaTarget, writer: Writer[DeltaTarget]) -> None:
    assert target.set_aside(PART, 5), "there is no table yet"
    disk.require(*(path_of(target) / "_kzconsumer" / "aside").iterdir())
    writer.publish(writer.stage(range_data("t", 0, 5, 10)))
    assert target.set_aside(RangeIdentity("t", 0, 0x2A, 0, 10, 15), 5)
    disk.require(*log_of(target))


def test_a_range_that_cannot_be_kept_aside_since_it_is_written_is_on_disk(
    disk: Disk, target: DeltaTarget, writer: Writer[DeltaTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may have died between its commit and the sync; who asks goes on as if the range were written."""
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "sync", lambda log, table: None)
        writer.publish(writer.stage(range_data("t", 0, 0, 5)))
    assert disk.missing(log_of(target)[-1]) is not None
    assert not claimed(path_of(target)).set_aside(PART, 5)
    disk.require(*log_of(target))


def test_a_range_without_rows_and_without_a_table_is_on_disk(
    disk: Disk, target: DeltaTarget, writer: Writer[DeltaTarget]
) -> None:
    assert writer.publish(writer.stage(range_data("t", 0, 0, 5, []))) == 0
    (place,) = (path_of(target) / "_kzconsumer" / "empty").iterdir()
    disk.require(place)


def test_a_commit_is_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    """Also by the next member, which finds the range in the table: `deltalake` syncs nothing that it writes."""

    def publish(directory: Path) -> list[Path]:
        target = claimed(directory / "table")
        parts = [range_data("t", 0, 0, 5)]
        if not target.has([parts[0].identity]):
            writer = Writer(target, directory / f"scratch-{uuid.uuid4().hex}")
            writer.publish(writer.stage(*parts))
        return [*log_of(target), *(directory / "table").glob("*.parquet")]

    require_written_again(tmp_path, publish)
