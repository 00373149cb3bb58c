"""Dead letters on a real disk: whole lines, durable before they count, in files of limited size."""

from __future__ import annotations

import os
import resource
import signal
import stat
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import DeadLetterError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterFiles


def letters(*offsets: int) -> list[DeadLetter]:
    return [DeadLetter(Message("orders", 0, at, None, b"v" * 100), "rejected", "no", "g") for at in offsets]


def offsets(directory: Path) -> list[list[int]]:
    """Of each file, in no order."""
    files = [file.read_bytes().splitlines() for file in directory.iterdir()]
    return sorted([msgspec.json.decode(line)["offset"] for line in lines] for lines in files)


async def test_a_large_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    box = LetterFiles(tmp_path / "of" / "letters", 1000)
    assert not tmp_path.joinpath("of").exists(), "nothing is made before it is needed"
    for at in range(0, 12, 2):
        await box.write(letters(at, at + 1))
    box.close()
    found = offsets(tmp_path / "of" / "letters")
    assert sorted(at for each in found for at in each) == list(range(12))
    assert [len(each) for each in found] == [4, 4, 4], "four lines of more than 250 bytes each"


async def test_members_share_a_directory(tmp_path: Path) -> None:
    one, other = LetterFiles(tmp_path, 1 << 20), LetterFiles(tmp_path, 1 << 20)
    await one.write(letters(1))
    await other.write(letters(2))
    await one.write(letters(3))
    assert offsets(tmp_path) == [[1, 3], [2]]
    one.close()
    other.close()


async def test_a_write_that_returned_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[tuple[bool, int]]()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        about = os.fstat(descriptor)
        synced.append((stat.S_ISDIR(about.st_mode), about.st_size))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    box = LetterFiles(tmp_path, 1 << 20)
    await box.write(letters(1))
    (file,) = tmp_path.iterdir()
    assert [is_directory for is_directory, _ in synced] == [True, False]
    assert synced[-1] == (False, file.stat().st_size)
    box.close()


async def test_a_failed_write_is_reported_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = tmp_path / "letters"
    in_the_way.write_text("a file")
    box = LetterFiles(in_the_way, 1 << 20)
    with pytest.raises(DeadLetterError, match="letters: "):
        await box.write(letters(1))
    in_the_way.unlink()
    await box.write(letters(1))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for _ in range(5):
            with pytest.raises(DeadLetterError, match="No space left on device"):
                await box.write(letters(2))
        assert offsets(in_the_way) == [[1, 2]], "a file without a letter that was reported as written is removed"
    await box.write(letters(2))
    box.close()
    assert offsets(in_the_way) == [[1, 2], [2]], "a file that has failed is left alone"


async def test_letters_are_not_written_to_files_that_were_deleted_or_moved(tmp_path: Path) -> None:
    """As by a job that deletes old files, or one that moves them away to read them."""
    directory, moved = tmp_path / "letters", tmp_path / "moved"
    box = LetterFiles(directory, 1 << 20)
    await box.write(letters(1))
    (file,) = directory.iterdir()
    file.unlink()
    await box.write(letters(2))
    (file,) = directory.iterdir()
    file.rename(moved)
    await box.write(letters(3))
    await box.write(letters(4))
    box.close()
    assert offsets(directory) == [[3, 4]]
    assert msgspec.json.decode(moved.read_bytes())["offset"] == 2


async def test_a_letter_is_not_written_if_its_file_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def deleting(descriptor: int) -> None:
        real(descriptor)
        for file in tmp_path.iterdir():
            file.unlink()

    with closing(LetterFiles(tmp_path, 1 << 20)) as box:
        await box.write(letters(1))
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", deleting)
            with pytest.raises(DeadLetterError, match="was deleted or moved while it was written"):
                await box.write(letters(2))
        await box.write(letters(2))
    assert offsets(tmp_path) == [[2]]


async def test_attempts_do_not_fill_the_space_that_an_operator_frees(tmp_path: Path) -> None:
    """The limit of a file's size fails a write as a full disk does: after a part of it."""
    box, (soft, hard) = LetterFiles(tmp_path, 1 << 20), resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for _ in range(5):
            with pytest.raises(DeadLetterError, match="File too large"):
                await box.write(letters(*range(10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert list(tmp_path.iterdir()) == []
    await box.write(letters(*range(10)))
    box.close()
    assert offsets(tmp_path) == [[*range(10)]]
