"""Durability of a Delta table: files are synced before their commit, a commit before it counts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer.model import RangeIdentity
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


def test_a_range_kept_aside_without_a_table_is_on_disk(disk: Disk, target: DeltaTarget) -> None:
    assert target.set_aside(PART, 5)
    (place,) = (path_of(target) / "_kzconsumer" / "aside").iterdir()
    disk.require(place)


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
