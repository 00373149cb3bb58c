"""A final name that cannot be linked: only its own range fails, with the reason; the rest is unaffected."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from structlog.testing import capture_logs

from kzconsumer_files.directory_target import Target
from kzconsumer_files.private_directory import PrivateDirectory, sweep
from kzconsumer_files.publication import StagedRange
from kzconsumer_files.range_names import data_file
from kzconsumer_spark.daemon.marked_destination import Files
from kzconsumer_spark.worker_protocol.messages import ToFiles
from tests.files.plain.test_target import (
    OWNER,
    attempt_of,
    free,
    identity,
    lost_after,
    planned,
    staged,
    texts,
)
from tests.support.file_rights import permissions_count

LONG = f"day={'x' * 300}"


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "out")
    made.mark(OWNER)
    return made


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system: /dev/shm is not writable here")
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def a_file(target: Target) -> str:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), target.path / "day=2")
    return "day=2"


def a_directory(target: Target) -> str:
    (target.path / "day=2" / data_file(planned(1, 1))).mkdir(parents=True)
    return "day=2"


def read_only(target: Target) -> str:
    (target.path / "day=2").mkdir(mode=0o500)
    return "day=2"


def decisions(target: Target) -> list[str]:
    return [each.name for each in (target.path / "_kzconsumer" / "publishing").iterdir()]


def require_only_its_own_range_fails(target: Target, directory: str, reason: str) -> None:
    attempt = attempt_of(target)
    blocked, good = staged(attempt, 1, "blocked", "day=1", directory), staged(attempt, 0, "good", "day=1")
    with pytest.raises(OSError, match=rf"t-1\[0\.\.9\) cannot be published: .*{reason}") as raised:
        target.publish([blocked, good], attempt, free)
    assert "\n" not in str(raised.value)
    assert (texts(target), decisions(target)) == (["good"], [])
    assert not list(target.path.rglob(".*"))
    # The next attempt, the daemon's lookups, and the remedy `on_batch_failure = "quarantine"`.
    assert target.discard(attempt)
    assert target.missing([planned(0, 1), planned(1, 1)]) == [planned(1, 1)]
    assert target.set_aside(identity(1), 1)


def test_a_partition_directory_on_another_disk(target: Target, other_disk: Path) -> None:
    (target.path / "day=2").symlink_to(other_disk)
    require_only_its_own_range_fails(target, "day=2", "Invalid cross-device link")


@pytest.mark.parametrize(
    ("blocked", "reason"),
    [
        (lambda target: LONG, "File name too long"),
        (a_file, "(Not a directory|File exists)"),
        (a_directory, "Is a directory"),
        (read_only, "Permission denied"),
    ],
    ids=["long", "file", "directory", "read-only"],
)
def test_further_names_that_cannot_be_linked(target: Target, blocked: Callable[[Target], str], reason: str) -> None:
    with permissions_count():
        require_only_its_own_range_fails(target, blocked(target), reason)


def test_a_name_of_the_maximum_length_is_published(target: Target) -> None:
    attempt = attempt_of(target)
    file = attempt / "staged"
    pq.write_table(pa.table({"text": ["x"]}), file)
    longest = f"{'n' * 247}.parquet"
    assert len(longest) == 255
    part = planned(0, 1)
    assert target.publish([StagedRange(part, 1, 0, [(file, f"day=1/{longest}")])], attempt, free) == 1
    assert (target.path / "day=1" / longest).exists()
    assert not list(target.path.rglob(".*"))


def test_a_probe_of_a_dead_writer_is_removed_with_its_staged_files(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PrivateDirectory(target.attempts)
    attempt = writer.path / "1"
    attempt.mkdir()
    ready = staged(attempt, 0, "x", "day=1")

    class Killed(BaseException):
        pass

    def killed(path: Path, missing_ok: bool = False) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            target.publish([ready], attempt, free)
    assert len(list((target.path / "day=1").iterdir())) == 1
    assert writer.lock is not None
    writer.lock.release()  # as the kernel does when it dies
    assert target.sweep() == 1
    assert list((target.path / "day=1").iterdir()) == []


def decided(target: Target, number: int, directory: str) -> PrivateDirectory:
    """A writer that is killed right after the decision for its range, before any of its files is there."""
    writer = PrivateDirectory(target.attempts)
    attempt = writer.path / "1"
    attempt.mkdir()
    with pytest.raises(TimeoutError):
        target.publish([staged(attempt, number, f"late {number}", directory)], attempt, lost_after(1))
    return writer


def blocked_after_the_decision(target: Target) -> PrivateDirectory:
    writer = decided(target, 1, "day=2")
    (target.path / "day=2").rmdir()
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), target.path / "day=2")
    return writer


def test_a_decided_range_that_cannot_be_finished_affects_no_other(target: Target) -> None:
    writer = blocked_after_the_decision(target)
    with capture_logs() as logs:
        assert target.missing([planned(1, 1)]) == [planned(1, 1)]
    (line,) = logs
    assert (line["event"], line["range"]) == ("decided range not published", "t-1[0..9)")
    assert "day=2" in line["error"]
    attempt = attempt_of(target, "next")
    with pytest.raises(OSError, match=r"t-1\[0\.\.9\) cannot be published: .*day=2"):
        target.publish([staged(attempt, 1, "second", "day=3"), staged(attempt, 0, "good", "day=1")], attempt, free)
    assert texts(target) == ["good"]
    side = Files(ToFiles(path=str(target.path)))
    side.mark(OWNER)
    assert side.has([identity(0), identity(1)]) == [identity(0)]
    # Its files are decided for: neither the writer that staged them nor setting the range aside removes them.
    assert not target.discard(writer.path)
    with pytest.raises(OSError, match="day=2"):
        target.set_aside(identity(1), 1)
    (target.path / "day=2").unlink()
    assert target.discard(writer.path)
    assert texts(target) == ["good", "late 1"]


def test_a_sweep_continues_and_keeps_files_that_cannot_be_finished(target: Target) -> None:
    blocked, fine = blocked_after_the_decision(target), decided(target, 0, "day=1")
    for writer in (blocked, fine):
        assert writer.lock is not None
        writer.lock.release()  # as the kernel does when its process dies
    with capture_logs() as logs:
        assert target.sweep() == 1
    assert [line["event"] for line in logs] == ["decided range not published", "staged files kept"]
    assert texts(target) == ["late 0"]
    (target.path / "day=2").unlink()
    assert target.sweep() == 1
    assert texts(target) == ["late 0", "late 1"]
    assert not list(target.attempts.iterdir())


def test_files_of_another_user_do_not_end_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "other.lock").touch(mode=0)
    with permissions_count():
        PrivateDirectory(tmp_path).remove()
        assert sweep(tmp_path) == 0
