"""Locks that forked children do not hold, and that exclude within a process, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.own_files import ProcessLock, content

HOLD = """
import os, sys, time
from pathlib import Path
from kzconsumer.own_files import ProcessLock
lock = ProcessLock.take(Path(sys.argv[1]))
assert lock is not None
os.write(lock.descriptor, b"%d" % os.getpid())
if os.fork() == 0:
    os.write(1, b"%d\\n" % os.getpid())
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_child_of_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    """A sink's worker that multiprocessing has forked lives on for a while."""
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert ProcessLock.take(path) is None
            assert content(path) == b"%d" % process.pid
            process.kill()
            process.wait()
            lock = ProcessLock.take(path)
            assert lock is not None
            os.kill(child, 0)  # it is there
            lock.release()
        finally:
            os.kill(child, 9)


def test_it_excludes_others_of_the_same_process(tmp_path: Path) -> None:
    """And an attempt, which may not open and close the file, does not release it."""
    path = tmp_path / "lock"
    lock = ProcessLock.take(path)
    assert lock is not None
    assert ProcessLock.take(path) is None
    assert content(path) == b""
    other = [
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from kzconsumer.own_files import ProcessLock;",
    ]
    other[-1] += "sys.exit(ProcessLock.take(Path(sys.argv[1])) is not None)"
    assert subprocess.run([*other, path], check=False).returncode == 0
    lock.release()
    assert subprocess.run([*other, path], check=False).returncode == 1
    again = ProcessLock.take(path)
    assert again is not None
    again.release()


def test_a_child_that_releases_what_it_has_from_its_parent_releases_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = ProcessLock.take(path)
    assert lock is not None
    if (child := os.fork()) == 0:
        taken = ProcessLock.take(path)  # the parent has it
        lock.release()
        os._exit(0 if taken is None and ProcessLock.take(path) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert ProcessLock.take(path) is None
    lock.release()


def test_symbolic_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic"):
        ProcessLock.take(tmp_path / "link")
