"""The demo as a user runs it: the count at the end, and that nothing is left behind.

`make test` has its parts: the steps (`tests/sandbox/plain/test_demo.py`), a killed member with a Spark
(`tests/spark/spark/test_replay_after_kill.py`), Spark in a sandbox (README.md, by `tests/core/spark/test_tutorial.py`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kzconsumer_sandbox.demo.members import processes_in
from tests.support.extent import only_nightly
from tests.support.processes import wait_until

COMMAND = [sys.executable, "-m", "kzconsumer", "demo", "--records", "40000"]


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder)}


def left(folder: Path) -> list[object]:
    return [*processes_in(folder), *folder.rglob("kzconsumer-demo-*")]


@pytest.mark.timeout(420)
@only_nightly
def test_nothing_is_missing_after_a_kill_9_and_nothing_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "-o", "json"], env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert list(figures) == ["produced", "rows", "distinct", "missing", "duplicates", "takeover_seconds", "seconds"]
    assert (figures["produced"], figures["distinct"], figures["missing"]) == (40_000, 40_000, 0)
    assert figures["rows"] == 40_000 + figures["duplicates"]
    assert 0 < figures["takeover_seconds"] < figures["seconds"]
    assert "had to be killed" not in done.stderr
    assert left(tmp_path) == []


@pytest.mark.timeout(120)
@only_nightly
def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    demo = subprocess.Popen(COMMAND, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        # Servers (2), members (2), each with a worker and its JVM.
        assert wait_until(lambda: len(processes_in(tmp_path)) >= 8, 60)
        began = time.monotonic()
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=30)
    finally:
        demo.kill()
    assert time.monotonic() - began < 20
    assert (demo.returncode, said) == (130, b"")
    assert left(tmp_path) == []
