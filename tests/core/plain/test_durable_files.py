"""Durable files: content is synced before a file gets its name, and the name before a function returns."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kzconsumer import durable_files
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.durable_files import (
    AppendedFile,
    create_same,
    create_whole,
    make_directory,
    publish,
    sync_again,
    sync_directory,
    sync_file,
    write_new,
)
from kzconsumer.errors import DeadLetterError, SinkError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterFiles
from kzconsumer.sinks.quarantine import RangeQuarantine
from tests.support.disk import Disk, watched_disk
from tests.support.failed_syncs import require_written_again
from tests.support.range_data import range_data


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """No file gets its final name before its content is on disk."""
    with watched_disk(tmp_path) as made:

        def whole(file: Path, name: Path) -> None:
            reason = made.missing(file)
            assert reason is None or "the name of" in reason, f"{name}: {reason}"

        made.on_name = whole
        yield made


def by_publishing(path: Path) -> None:
    staged = path.with_name("staged")
    write_new(staged, b"content")
    assert publish(staged, path)


@pytest.mark.parametrize(
    "create",
    [by_publishing, lambda path: create_whole(path, b"content"), lambda path: create_same(path, b"content")],
    ids=["published", "whole", "the same"],
)
def test_a_file_is_on_disk(disk: Disk, create: Callable[[Path], object]) -> None:
    file = disk.root / "file"
    create(file)
    assert file.read_bytes() == b"content"
    disk.require(file)
    assert list(disk.root.iterdir()) == [file]


def test_the_name_of_a_file_of_another_writer_is_on_disk(disk: Disk) -> None:
    file = disk.root / "file"
    file.write_bytes(b"theirs")
    assert not create_whole(file, b"ours")
    disk.synced(file)  # the writer of a file syncs it before it has its name
    disk.require(file)


def test_each_appended_piece_is_on_disk(disk: Disk) -> None:
    file = AppendedFile(disk.root / "of" / "pieces" / "file")
    for number in range(3):
        file.append(b"piece %d\n" % number)
        disk.require(disk.root / "of" / "pieces" / "file")
        assert file.size == 8 * (number + 1)
    file.close()


def test_directories_created_for_a_file_are_on_disk(disk: Disk) -> None:
    file = disk.root / "a" / "b" / "file"
    create_same(file, b"content")
    disk.require(file)


async def test_dead_letters_are_on_disk_before_they_count(disk: Disk) -> None:
    letters = LetterFiles(disk.root / "of" / "letters", 300)
    for offset in range(4):
        await letters.write([DeadLetter(Message("orders", 0, offset, None, b"v" * 100), "rejected", "no", "g")])
        disk.require(*(disk.root / "of" / "letters").iterdir())
    letters.close()
    assert len(list((disk.root / "of" / "letters").iterdir())) > 1


async def test_a_quarantined_range_is_on_disk_before_it_counts(disk: Disk) -> None:
    part = range_data("orders", 0, 3, 9)
    staged: list[Path] = []

    async def decide() -> bool:
        (file,) = (disk.root / "of" / "ranges").iterdir()
        reason = disk.missing(file)
        assert reason is None or "the name of" in reason, "members that see the decision rely on the records"
        staged.append(file)
        return True

    kept = await RangeQuarantine(disk.root / "of" / "ranges", "sink").keep(part, "no", decide)
    assert kept is not None
    assert staged
    disk.require(kept)


def test_a_file_is_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    def whole(directory: Path) -> list[Path]:
        create_whole(directory / "file", b"content")
        return [directory / "file"]

    def same(directory: Path) -> list[Path]:
        create_same(directory / "of" / "file", b"content")
        return [directory / "of" / "file"]

    for number, write in enumerate((whole, same)):
        (tmp_path / f"writer {number}").mkdir()
        require_written_again(tmp_path / f"writer {number}", write)


def test_content_of_another_program_is_written_again_in_place(tmp_path: Path) -> None:
    """It was synced in vain before, perhaps by a process that has ended. The time of change stays."""

    def theirs(directory: Path) -> list[Path]:
        (directory / "file").write_bytes(b"x" * 10_000)
        os.utime(directory / "file", ns=(10**18, 10**18))
        sync_directory(directory)
        return []

    def again(directory: Path) -> list[Path]:
        inode = (directory / "file").stat().st_ino
        sync_again(directory / "file")
        found = (directory / "file").stat()
        assert (found.st_ino, found.st_size, found.st_mtime_ns) == (inode, 10_000, 10**18)
        return [directory / "file"]

    require_written_again(tmp_path, again, theirs)


def test_a_plain_sync_after_a_failed_one_proves_nothing(tmp_path: Path) -> None:
    """The test's disk can show the fault."""

    def only_synced(directory: Path) -> list[Path]:
        sync_file(directory / "file")
        return [directory / "file"]

    def theirs(directory: Path) -> list[Path]:
        (directory / "file").write_bytes(b"content")
        sync_directory(directory)
        return []

    with pytest.raises(pytest.fail.Exception, match="the disk refused a part"):
        require_written_again(tmp_path, only_synced, theirs)


async def test_dead_letters_are_written_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    with watched_disk(tmp_path) as disk:
        letters = LetterFiles(disk.root / "letters", 1 << 20)
        letter = [DeadLetter(Message("orders", 0, 7, None, b"v"), "rejected", "no", "g")]
        disk.on_sync = failing(OSError(errno.EIO, "Input/output error"))
        with pytest.raises(DeadLetterError):
            await letters.write(letter)
        disk.on_sync = lambda file: None
        await letters.write(letter)
        letters.close()
        files = list((disk.root / "letters").iterdir())
        assert any(b'"offset":7' in file.read_bytes() for file in files if disk.missing(file) is None)


async def test_a_range_is_quarantined_again_after_a_sync_that_failed(tmp_path: Path) -> None:
    async def decide() -> bool:
        return True

    with watched_disk(tmp_path) as disk:
        quarantine = RangeQuarantine(disk.root / "ranges", "sink")
        disk.on_sync = failing(OSError(errno.EIO, "Input/output error"))
        with pytest.raises(SinkError, match="Input/output error"):
            await quarantine.keep(range_data("orders", 0, 3, 9), "no", decide)
        disk.on_sync = lambda file: None
        kept = await quarantine.keep(range_data("orders", 0, 3, 9), "no", decide)
        assert kept is not None
        disk.require(kept)


def test_a_directory_whose_name_cannot_be_synced_is_not_there_for_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output error"):
            make_directory(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_directory_is_made_where_names_may_be_written_and_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "sync_directory", failing(PermissionError(errno.EACCES, "Permission denied")))
    make_directory(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def failing(error: OSError) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail
