"""Durability of an archive: ranges are synced when their write returns, a segment before the next one begins."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_files.segments.archive import IDENTITY, PartitionArchive
from kzconsumer_files.segments.layout import Limits
from kzconsumer_files.segments.sink import SegmentsSink
from tests.files.plain.test_segments_sink import context
from tests.support.disk import Disk, watched_disk
from tests.support.raw_ranges import batch, batches, content, log_bytes, segments

LIMITS = Limits(3 * len(batch(10)), None)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with watched_disk(tmp_path) as made:
        yield made


def append(directory: Path, first: int, until: int, writer: str = "one") -> None:
    """By a new object, as after a restart."""
    archive = PartitionArchive(directory, writer, LIMITS, spread=False)
    with archive.locked(lambda: pytest.fail("the lock is held")):
        archive.append(batches(first, until), lambda: None)


def test_appended_ranges_are_on_disk(disk: Disk) -> None:
    directory = disk.root / "orders-0"

    def on_creation(name: Path) -> None:
        if name.suffix == ".log":
            disk.require(*segments(directory))

    disk.on_creation = on_creation
    for first in range(0, 100, 20):
        append(directory, first, first + 20)
        disk.require(directory / IDENTITY, *segments(directory))
    assert content(directory) == log_bytes(0, 100)
    assert len(segments(directory)) > 2


def test_ranges_appended_by_one_object_are_on_disk(disk: Disk) -> None:
    archive = PartitionArchive(disk.root / "orders-0", "one", LIMITS, spread=False)
    for first in range(0, 100, 10):
        with archive.locked(lambda: pytest.fail("the lock is held")):
            archive.append(batches(first, first + 10), lambda: None)
        disk.require(*segments(disk.root / "orders-0"))


def test_entries_of_a_killed_writer_are_synced_before_they_count(disk: Disk) -> None:
    """The writer was killed before it synced them; its successor finds them."""
    made, found = disk.root / "made", disk.root / "orders-0"
    append(made, 0, 20)
    shutil.copytree(made, found)
    disk.synced(found / IDENTITY)  # a file gets this name when its content is on disk
    assert disk.missing(found) is not None
    append(found, 0, 20, "other")
    assert content(found) == log_bytes(0, 20)
    disk.require(found / IDENTITY, *segments(found))


async def test_the_marker_of_a_new_archive_is_on_disk(disk: Disk) -> None:
    path = disk.root / "deep" / "archive"
    async with SegmentsSink({"path": str(path)}, context()):
        markers = [each for each in path.iterdir() if each.is_file()]
        assert markers
        disk.require(*markers)
