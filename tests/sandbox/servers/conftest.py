"""The commands of `kzconsumer sandbox`. Those that start servers are processes, the others run in that of the test."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kzconsumer.cli.main import main

ANY_PORT = ("--zookeeper-port", "0", "--port", "0")
"""Another test may start a sandbox at the same time, and both would find the usual ports free."""
KZCONSUMER = [sys.executable, "-c", "import sys; from kzconsumer.cli.main import main; sys.exit(main())"]


class Commands:
    """`kzconsumer sandbox <action> --state <a file of this test's own>`."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, action: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = self.words(action, *more)
        if action in ("up", "migrate"):
            return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            status = main(words[len(KZCONSUMER) :])
        return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())

    def words(self, action: str, *more: str) -> list[str]:
        if action == "up" and "--port" not in more:
            more = (*ANY_PORT, *more)
        return [*KZCONSUMER, "sandbox", action, "--state", str(self.state), *more]

    def up(self, *more: str) -> dict[str, Any]:
        """Start one and return its status."""
        done = self("up", *more)
        assert done.returncode == 0, done.stderr
        return self.status()

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self("status", "-o", "json").stdout)
        return status


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path / "sandbox.json")
    yield commands
    assert commands("down").returncode == 0
