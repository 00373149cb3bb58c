"""`make` prepares the virtual environment in which everything else runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import MAKE, need

ROOT = Path(__file__).parents[3]

# Stands in for Python and for that of the environment: it installs nothing, and notes which modules it has to run.
PYTHON = """#!/bin/sh
[ "$1" = -m ] || exit 0
echo "$2" >> {modules}
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pip"; }
"""


@pytest.mark.parametrize(
    ("there", "ran"),
    [
        ([], ["venv", "pip", "pip"]),
        (["python"], ["venv", "pip", "pip"]),  # as Debian's Python leaves it where python3-venv is not installed
        (["python", "pip"], ["pip", "pip"]),
    ],
)
def test_an_environment_is_made_or_completed_once(tmp_path: Path, there: list[str], ran: list[str]) -> None:
    environment, modules = tmp_path / "environment", tmp_path / "modules"
    for program in (tmp_path / "python3", *(environment / "bin" / name for name in there)):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(PYTHON.replace("{modules}", str(modules)))
        program.chmod(0o755)
    command = [str(need(MAKE)), f"PYTHON={tmp_path}/python3", f"VENV={environment}", f"{environment}/.ready"]
    flags = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # of the make that runs this test
    known = {name: value for name, value in os.environ.items() if name not in flags}
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, env=known, check=True)
    assert modules.read_text().split() == ran
