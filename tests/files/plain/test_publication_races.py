"""Writers of one range: killed, late, or at one moment. Readers see the files of one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from kzconsumer.durable_files import put_in_place
from kzconsumer_files.directory_target import Target
from kzconsumer_files.private_directory import PrivateDirectory
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import (
    range_name,
)
from tests.files.plain.test_target import OWNER, attempt_of, free, identity, lost_after, planned, staged, texts


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = Target(tmp_path / "out")
    made.mark(OWNER)
    return made


def test_writing_and_setting_aside_race(target: Target) -> None:
    both = Barrier(2)

    def publish(number: int) -> bool:
        attempt = attempt_of(target, f"w{number}")
        ready = staged(attempt, number, f"{number:03}", "")
        both.wait(30)
        try:
            return target.publish([ready], attempt, free) == 1
        except SetAside:
            return False

    def set_aside(number: int) -> bool:
        both.wait(30)
        return target.set_aside(identity(number), 1)

    with ThreadPoolExecutor(2) as racers:
        for number in range(int(os.environ.get("KZCONSUMER_RACES", "40"))):
            published, aside = racers.submit(publish, number), racers.submit(set_aside, number)
            assert published.result(60) != aside.result(60)
            assert (f"{number:03}" in texts(target)) == published.result()


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


RACER = """
import mmap, os, pathlib, sys
from kzconsumer_files.directory_target import Target
from tests.files.plain.test_target import attempt_of, free, planned, staged

target, name, ranges = Target(pathlib.Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
attempt = attempt_of(target, name)
# The two agree in no file but one, and differ in how many there are; each third range is empty for one of them.
layouts = {"a": ("day=1", "day=2"), "b": ("day=2", "day=3", "day=4")}
batches = []
for n in range(ranges):
    empty = n % 3 == 0 and name == "b"
    batches.append(staged(attempt, n, f"{name}{n}", *(() if empty else layouts[name])))
with open(sys.argv[4], "r+b") as file:
    arrived = memoryview(mmap.mmap(file.fileno(), 8)).cast("i")
mine = "ab".index(name)

def together(n):
    arrived[mine] = n
    while arrived[1 - mine] < n:
        os.sched_yield()

won = 0
for n, batch in enumerate(batches, 1):
    together(n)
    won += target.publish([batch], attempt, free)
print(won, flush=True)
"""


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is one: races need no disk, and a disk would keep the racers apart."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as made:
        yield Path(made)


@pytest.mark.long
def test_readers_see_the_files_of_one_of_two_writers(quick: Path) -> None:
    ranges = int(os.environ.get("KZCONSUMER_RACES", "75"))
    target = Target(quick / "out")
    target.mark(OWNER)
    (quick / "arrived").write_bytes(bytes(8))
    commands = [
        [sys.executable, "-c", RACER, str(target.path), name, str(ranges), str(quick / "arrived")] for name in "ab"
    ]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    won = [int(racer.communicate(timeout=120)[0]) for racer in racers]
    assert min(won) > 0, "they never met"
    assert sum(won) == ranges
    seen: dict[int, set[str]] = {}
    count: dict[int, int] = {}
    for text in texts(target):
        seen.setdefault(int(text[1:]), set()).add(text[0])
        count[int(text[1:])] = count.get(int(text[1:]), 0) + 1
    entries = [json.loads(path.read_text()) for path in (target.path / "_kzconsumer").glob("t+*.json")]
    assert len(entries) == ranges
    for entry in entries:
        n = entry["partition"]
        writers, rows = seen.get(n, set()), count.get(n, 0)
        assert rows == entry["records_out"], (entry, writers)
        assert writers <= {entry["attempt"][0]}
    assert not list((target.path / "_kzconsumer" / "publishing").iterdir())
