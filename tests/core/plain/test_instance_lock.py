"""The instance lock while another process holds it, as the command reports it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kzconsumer.cli.main import main
from kzconsumer.errors import AlreadyRunningError, ConfigError
from kzconsumer.service import daemon
from kzconsumer.service.daemon import lock_path

HOLD = """
import sys, time
from pathlib import Path
from kzconsumer.service.daemon import instance_lock
with instance_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
GROUP = """
[zookeeper]
connect = "127.0.0.1:1"
[group]
id = "g"
[subscription]
topics = { t = 1 }
[sink]
plugin = "jsonlines"
[service]
lock = "lock"
"""


@contextmanager
def holder(path: Path) -> Iterator[int]:
    """Another process that holds the lock; killed at the end without a chance to clean up."""
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process.pid
        finally:
            process.kill()


def test_the_second_daemon_names_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("group.toml").write_text(GROUP)
    lock = Path("lock")
    with holder(lock) as pid:
        assert main(["run", "group.toml"]) == 1
        assert capsys.readouterr().err == f"kzconsumer: lock: process {pid} runs this instance already\n"
        assert lock.stat().st_mode & 0o777 == 0o644
    with daemon.instance_lock(lock):  # it was killed: the file that it left behind blocks nothing
        with pytest.raises(AlreadyRunningError), daemon.instance_lock(lock):
            pass
        assert main(["run", "group.toml"]) == 1
    assert main(["run", "group.toml", "--set", "service.lock=/no/folder/lock"]) == 78
    assert "[service] lock: /no/folder/lock cannot be opened: No such file" in capsys.readouterr().err


def test_a_lock_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """Otherwise any user who may write to the directory could have a file of this user truncated."""
    victim, lock = tmp_path / "victim", tmp_path / "lock"
    victim.write_text("content")
    lock.symlink_to(victim)
    with pytest.raises(ConfigError, match="lock cannot be opened"), daemon.instance_lock(lock):
        pass
    assert victim.read_text() == "content"


def test_which_settings_identify_an_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "INSTALLED", tmp_path / "etc")
    monkeypatch.setattr(daemon, "RUNNING", tmp_path / "run")
    source = str(tmp_path / "etc" / "orders.toml")
    assert lock_path("here", source, {"RUNTIME_DIRECTORY": "/run/a"}) == Path("here")
    assert lock_path(None, source, {"RUNTIME_DIRECTORY": "/run/a:/run/b"}) == Path("/run/a/lock")
    assert lock_path(None, source, {}) is None
    of_the_unit = tmp_path / "run" / "orders" / "lock"
    of_the_unit.parent.mkdir(parents=True)
    of_the_unit.touch()
    assert lock_path(None, source, {}) == of_the_unit
    assert lock_path(None, str(tmp_path / "orders.toml"), {}) is None
