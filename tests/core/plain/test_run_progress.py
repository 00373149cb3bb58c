"""The progress bar of a scheduled job: only on a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

SHOW = """
import sys
from kzconsumer.cli.run import run_progress
with run_progress(sys.argv[1] == "wanted") as show:
    print("shown" if show is not None else "not shown", flush=True)
    if show is not None:
        show(1000, 4000)
        show(3000, 4000)
"""


def on_a_terminal(*words: str) -> tuple[str, str]:
    """What it prints, and what the terminal on its standard error has received."""
    ours, terminal = os.openpty()
    command = [sys.executable, "-c", SHOW, *words]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment, text=True) as process:
        os.close(terminal)
        seen = b""
        try:
            while data := os.read(ours, 4096):
                seen += data
        except OSError:  # how Linux reports that the last writer has closed it
            pass
        out, _ = process.communicate()
        assert process.returncode == 0
    os.close(ours)
    return out.strip(), seen.decode()


def test_a_run_on_a_terminal_has_a_bar() -> None:
    out, seen = on_a_terminal("wanted")
    assert out == "shown"
    assert "to the end of the run" in seen
    assert "3000/4000" in seen


def test_a_member_without_end_has_no_bar() -> None:
    assert on_a_terminal("not wanted") == ("not shown", "")


def test_without_a_terminal_there_is_no_bar() -> None:
    done = subprocess.run([sys.executable, "-c", SHOW, "wanted"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("not shown", "")
