"""Progress on standard error: a bar on a terminal, lines elsewhere, and neither for what is quick."""

from __future__ import annotations

import os
import re
import subprocess
import sys

SHOW = """
import sys, time
from kzconsumer.cli import arguments
arguments.AFTER, arguments.LINES = float(sys.argv[1]), float(sys.argv[1])
with arguments.progress("reading") as show:
    if len(sys.argv) > 2:
        show(1000, 4000)
        show(3000, 4000)
    time.sleep(0.7)
print("the result")
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


def test_a_terminal_has_a_bar() -> None:
    out, seen = on_a_terminal("0.1", "counted")
    assert out == "the result"
    assert "reading" in seen
    assert "3,000 of 4,000" in seen


def test_what_cannot_be_counted_shows_the_time() -> None:
    out, seen = on_a_terminal("0.1")
    assert (out, "reading" in seen) == ("the result", True)
    assert re.search(r"\b\d+ s\b", seen)  # 0 s, where the machine has nothing else to do


def test_what_is_quick_shows_nothing() -> None:
    assert on_a_terminal("30") == ("the result", "")
    assert elsewhere("30") == ("the result\n", [])


def elsewhere(*words: str) -> tuple[str, list[str]]:
    done = subprocess.run([sys.executable, "-c", SHOW, *words], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr.splitlines()


def test_elsewhere_there_is_a_line_now_and_then() -> None:
    out, lines = elsewhere("0.3", "counted")
    # On a loaded machine the second one may come too late, and the first one after a second.
    assert (out, len(lines) in (1, 2)) == ("the result\n", True)
    assert all(each.startswith("kzconsumer: reading: 3,000 of 4,000, ") for each in lines)
    out, lines = elsewhere("0.3")
    assert (out, len(lines) in (1, 2)) == ("the result\n", True)
    assert all(re.fullmatch(r"kzconsumer: reading: \d+ s", each) for each in lines)
