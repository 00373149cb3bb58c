"""Files that are collected in their turn: every test runs, and what cannot be imported is an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = {
    "test_fails.py": "import pytest\n@pytest.mark.parametrize('n', range(3))\ndef test_it(n):\n    assert n\n",
    "test_imports_nothing.py": "import there_is_no_such_module\n",
    "test_is_skipped.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
    "test_passes.py": "def test_nothing():\n    pass\n",
}


def outcome(folder: Path, *options: str) -> tuple[str, dict[str, int]]:
    """What is printed, and how many tests have each outcome."""
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    plugins = ("-p", "tests.support.files_in_turn", "-p", "no:cacheprovider")
    words = (sys.executable, "-m", "pytest", *plugins, "-n", "2", "--dist", "loadfile", *options, str(folder))
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120).stdout
    return printed, {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", printed.splitlines()[-1])}


@pytest.mark.long
def test_every_test_runs_and_every_error_is_reported(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    printed, outcomes = outcome(tmp_path)
    assert "2 workers [4 items]" in printed  # files: no process knows what is in them
    assert {word: outcomes.get(word) for word in ("failed", "passed", "skipped", "error")} == {
        "failed": 1,
        "passed": 3,
        "skipped": 1,
        "error": 1,
    }
    assert re.search(r"^FAILED \S*test_fails.py::test_it\[0\]", printed, re.MULTILINE)
    assert re.search(r"^ERROR \S*test_imports_nothing.py", printed, re.MULTILINE)

    printed, outcomes = outcome(tmp_path, "-k", "test_it", "--ignore", str(tmp_path / "test_imports_nothing.py"))
    assert (outcomes["failed"], outcomes["passed"]) == (1, 2)
    assert "2 workers [3 items]" in printed
