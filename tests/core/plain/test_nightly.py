"""The runner of `make nightly`: its parts are here played by short programs."""

from __future__ import annotations

import os
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.nightly.__main__ import main, run
from tests.nightly.parts import Part, parts

MINUTES = 330
ROOT = Path(__file__).parents[3]


def python(name: str, program: str, minutes: float = 1.0) -> Part:
    return Part(name, (sys.executable, "-c", program), minutes, seed=7)


def played(tmp_path: Path, *chosen: Part) -> tuple[int, str]:
    """The exit status and what was printed."""
    printed = StringIO()
    return run(chosen, tmp_path, Console(file=printed, width=300)), printed.getvalue()


def test_all_parts_pass(tmp_path: Path) -> None:
    status, printed = played(tmp_path, python("one", "print('fine')"), python("part two", ""))
    assert status == 0
    assert printed.count("passed") == 4
    assert (tmp_path / "one.log").read_text() == "fine\n"
    assert (tmp_path / "part-two.log").exists()


def test_a_part_that_fails_is_shown_and_the_others_run(tmp_path: Path) -> None:
    status, printed = played(tmp_path, python("one", "exit('[broken] here')"), python("two", ""))
    assert status == 1
    assert "[broken] here" in printed
    assert "one: failed (1)" in printed
    assert "two: passed" in printed
    assert all(cell in printed.splitlines()[-3] for cell in ("one", "failed (1)", "7"))


def test_a_part_that_takes_too_long_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    sleeps = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    status, printed = played(tmp_path, python("slow", sleeps, minutes=0.02))
    assert status == 1
    assert "slow: too slow" in printed
    assert ends(int((tmp_path / "slow.log").read_text()))


def test_what_a_part_leaves_is_ended(tmp_path: Path) -> None:
    leaves = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    assert played(tmp_path, python("untidy", leaves))[0] == 0
    assert ends(int((tmp_path / "untidy.log").read_text()))


def ends(process: int) -> bool:
    """Whether it ends at once; a process that its parent has not waited for has ended."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_only_the_parts_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "cooking"])
    assert "no such part: cooking; there are simulate" in capsys.readouterr().err


def test_the_parts_exist_and_take_less_than_five_and_a_half_hours() -> None:
    known = parts(11)
    assert sum(part.minutes for part in known) <= MINUTES
    for part in known:
        *_, module = [each for each in part.command if each.startswith("tests.") or each == "pytest"]
        assert module == "pytest" or (ROOT / module.replace(".", os.sep) / "__main__.py").exists()
        assert all((ROOT / each).exists() for each in part.command if each.endswith(".py"))
        assert part.seed is None or "11" in " ".join(part.command)
