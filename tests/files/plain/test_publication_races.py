"""Writers of one range: killed, or late. Readers see the files of one of them; `test_ledger_machine` has any order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer.durable_files import put_in_place
from kzconsumer_files.directory_target import Target
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.range_names import (
    range_name,
)
from tests.files.plain.test_target import OWNER, attempt_of, free, lost_after, planned, staged, texts


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "out")
    made.mark(OWNER)
    return made


@pytest.mark.parametrize("who", ["a later writer", "the writer itself", "a sweep", "the daemon"])
def test_a_decided_range_is_published_by_any_next_process(target: Target, who: str) -> None:
    owner = PrivateDirectory(target.attempts)
    attempt = owner.path / "1"
    attempt.mkdir()
    with pytest.raises(TimeoutError):
        target.publish([staged(attempt, 0, "first", "day=1", "day=2")], attempt, lost_after(1))
    assert texts(target) == []
    assert not target.has(planned(0, 2))
    match who:
        case "a later writer":
            second = attempt_of(target, "second")
            assert target.publish([staged(second, 0, "second", "day=2", "day=3")], second, free) == 0
        case "the writer itself":
            target.discard(attempt)
        case "a sweep":
            assert target.sweep() == 0, "its process lives"
            assert owner.lock is not None
            owner.lock.release()  # as the kernel does when it dies
            assert target.sweep() == 1
        case "the daemon":
            assert target.missing([planned(0, 2)]) == []
    assert texts(target) == ["first", "first"]
    assert sorted(each.name for each in target.path.glob("day=*")) == ["day=1", "day=2"]
    assert target.has(planned(0, 2))


KILLED = """
import os, pathlib, sys
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.directory_target import Target
from tests.files.plain.test_target import staged

target, looks = Target(pathlib.Path(sys.argv[1])), int(sys.argv[2])
attempt = PrivateDirectory(target.attempts).path / "1"
attempt.mkdir()

def lease():
    global looks
    looks -= 1
    if not looks:
        os.kill(os.getpid(), 9)

target.publish([staged(attempt, 0, "first", "day=1", "day=2")], attempt, lease)
"""


@pytest.mark.parametrize(("looks", "seen"), [(1, ["second"]), (2, ["first", "first"])], ids=["staged", "decided"])
def test_kill_9_of_a_writer_leaves_its_rows_or_those_of_the_next(target: Target, looks: int, seen: list[str]) -> None:
    command = [sys.executable, "-c", KILLED, str(target.path), str(looks)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    assert texts(target) == []
    assert target.sweep() == 1
    second = attempt_of(target, "second")
    target.publish([staged(second, 0, "second", "day=2")], second, free)
    assert texts(target) == seen


def test_a_void_decision_is_not_taken_for_the_executed_one(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that executes a decision may be suspended anywhere: others execute it, and a late writer leaves its
    own.
    """
    winner, late = (attempt_of(target, name) for name in ("winner", "late"))
    publication, name = target.publication, range_name(planned(0, 1))
    decision = publication.decisions / f"{name}.json"
    for attempt, day, steps in ((winner, "day=1", 1), (late, "day=2", 0)):  # the late one has only staged its files
        with pytest.raises(TimeoutError):
            target.publish([staged(attempt, 0, attempt.parent.name, day)], attempt, lost_after(steps))
    read = Path.read_bytes
    held_up: list[Path] = []

    def read_late(path: Path) -> bytes:
        if path == decision and not held_up:
            held_up.append(path)
            Target(target.path).publication.finish([name])
            put_in_place(late / decision.name, decision)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_late)
    publication.finish([name])
    assert held_up == [decision]
    assert (texts(target), list(publication.decisions.iterdir())) == (["winner"], [])
