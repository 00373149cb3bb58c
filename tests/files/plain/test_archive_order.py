"""Durability of an archive: ranges are synced when their write returns, a segment before the next one begins."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_files.segment_layout import SegmentLimits
from kzconsumer_files.segments import IDENTITY, PartitionArchive, SegmentsSink
from tests.files.plain.test_segments_sink import context
from tests.support.disk import Disk, watched_disk
from tests.support.failed_syncs import require_written_again
from tests.support.raw_ranges import batch, batches, content, log_bytes, segments

LIMITS = SegmentLimits(3 * len(batch(10)), None)


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


@pytest.mark.parametrize("writer", ["one", "other"])
@pytest.mark.parametrize("before", [0, 20])
def test_ranges_are_written_again_after_a_sync_that_failed(tmp_path: Path, writer: str, before: int) -> None:
    """By the same member or its successor, which finds the bytes in the page cache: a good sync proves nothing."""

    def write(directory: Path) -> list[Path]:
        append(directory / "orders-0", before, before + 60, writer)
        assert content(directory / "orders-0") == log_bytes(0, before + 60)
        return segments(directory / "orders-0")

    def earlier(directory: Path) -> list[Path]:
        if before:
            append(directory / "orders-0", 0, before)
        return segments(directory / "orders-0")

    require_written_again(tmp_path, write, earlier)


def test_one_object_writes_a_range_again_after_a_sync_that_failed(disk: Disk) -> None:
    directory = disk.root / "orders-0"
    archive = PartitionArchive(directory, "one", LIMITS, spread=False)

    def write(first: int) -> None:
        with archive.locked(lambda: pytest.fail("the lock is held")):
            archive.append(batches(first, first + 10), lambda: None)

    def fail(file: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    write(0)
    disk.on_sync = fail
    with pytest.raises(OSError, match="Input/output error"):
        write(10)
    disk.on_sync = lambda file: None
    assert content(directory) == log_bytes(0, 20), "the page cache has them"
    assert disk.missing(segments(directory)[-1]) is not None
    write(10)
    disk.require(*segments(directory))
    assert content(directory) == log_bytes(0, 20)


def test_a_writer_that_failed_is_noticed_by_its_predecessor(disk: Disk) -> None:
    """Which may still be alive, and gets the partition back."""
    directory = disk.root / "orders-0"
    ours, theirs = (PartitionArchive(directory, name, LIMITS, spread=False) for name in ("ours", "theirs"))

    def write(archive: PartitionArchive, first: int) -> None:
        with archive.locked(lambda: pytest.fail("the lock is held")):
            archive.append(batches(first, first + 10), lambda: None)

    def fail(file: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    write(ours, 0)
    disk.on_sync = fail
    with pytest.raises(OSError, match="Input/output error"):
        write(theirs, 10)
    disk.on_sync = lambda file: None
    write(ours, 10)
    assert content(directory) == log_bytes(0, 20)
    disk.require(*segments(directory))


def test_only_what_may_not_be_on_disk_is_written_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment may have a gigabyte."""
    directory = disk.root / "orders-0"
    append(directory, 0, 20)
    again: list[int] = []
    pwrite = os.pwrite

    def counted(descriptor: int, data: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".log"):
            again.append(len(data))
        return pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", counted)
    append(directory, 20, 30, "other")
    assert again == []
    (directory / ".lock").write_text("of an earlier version")
    append(directory, 30, 40, "other")
    assert sum(again) == len(log_bytes(0, 30))
    disk.require(*segments(directory))


async def test_the_marker_of_a_new_archive_is_on_disk(disk: Disk) -> None:
    path = disk.root / "deep" / "archive"
    async with SegmentsSink({"path": str(path)}, context()):
        markers = [each for each in path.iterdir() if each.is_file()]
        assert markers
        disk.require(*markers)
