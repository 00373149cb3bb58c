"""A server process lives exactly as long as it should, shown with `sleep`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.server_process import START_LIMIT, Patience, ServerProcess
from tests.support.processes import exists, wait_gone, wait_until

# Starts a server or (the control) the same program without our launcher, prints its pid and waits to be killed.
PARENT = """
import subprocess, sys
from pathlib import Path
from tests.sandbox.plain.test_server_process import Sleeper
server = Sleeper(Path(sys.argv[1]))
if sys.argv[2] == "ours":
    server.start()
    print(server.pid, flush=True)
else:
    print(subprocess.Popen(server.command(), stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


class Sleeper(ServerProcess):
    """Serves once its program runs, which is not the case while the launcher runs."""

    def __init__(self, folder: Path, seconds: str = "60") -> None:
        super().__init__("sleeper", folder)
        self.seconds = seconds

    def command(self) -> list[str]:
        return [shutil.which("sleep") or "/bin/sleep", self.seconds]

    def serves(self) -> bool:
        try:
            return os.readlink(f"/proc/{self.pid}/exe") != os.path.realpath(sys.executable)
        except OSError:
            return False


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    server = Sleeper(tmp_path)
    yield server
    server.kill()


def test_it_starts_and_ends_and_starts_again(sleeper: Sleeper) -> None:
    assert repr(sleeper) == "<Sleeper sleeper not started>"
    sleeper.start()
    sleeper.wait_ready()
    first = sleeper.pid
    assert repr(sleeper) == f"<Sleeper sleeper process {first}>"
    with pytest.raises(SandboxError, match="running already"):
        sleeper.start()
    sleeper.kill()
    assert not exists(first)
    assert repr(sleeper) == "<Sleeper sleeper ended with -9>"
    sleeper.start()
    sleeper.wait_ready()
    assert sleeper.pid != first


def test_a_stopped_one_can_be_killed(sleeper: Sleeper) -> None:
    sleeper.start()
    sleeper.wait_ready()
    sleeper.send_signal(signal.SIGSTOP)
    with pytest.raises(SandboxError, match=r"has not ended in 0 s"):
        sleeper.wait_ended(0.1)
    sleeper.kill()
    assert not sleeper.alive


def test_an_early_end_is_reported_with_the_log(sleeper: Sleeper) -> None:
    sleeper.seconds = "nonsense"
    sleeper.start()
    sleeper.wait_ended(5)
    with pytest.raises(SandboxError, match=r"(?s)exited instead of serving; the end of .*log\.txt:.*nonsense"):
        sleeper.wait_ready()


@pytest.mark.parametrize(("load", "seconds"), [(3.0, 60), (3.1, 300)])
def test_a_start_may_take_longer_while_the_machine_is_busy(
    sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch, load: float, seconds: float
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sleeper, "serves", lambda: False)
    sleeper.start()
    patience = Patience(START_LIMIT)
    now += seconds
    assert not patience.exhausted()
    now += 1
    with pytest.raises(SandboxError, match=f"sleeper does not serve after {seconds + 1} s"):
        sleeper.wait_patiently(patience)


@pytest.mark.parametrize("how", ["ours", "control"])
def test_it_dies_with_its_killed_parent(tmp_path: Path, how: str) -> None:
    words = [sys.executable, "-c", PARENT, str(tmp_path), how]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        server = int(parent.stdout.readline())
        assert exists(server)
        parent.kill()
        if how == "ours":
            wait_gone([server], 2.0)
        else:
            assert not wait_until(lambda: not exists(server), 1.0)
            os.kill(server, signal.SIGKILL)


def test_it_dies_with_the_thread_that_started_it(sleeper: Sleeper) -> None:
    def start() -> None:
        sleeper.start()
        sleeper.wait_ready()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    wait_gone([sleeper.pid], 2.0)
