"""`make` prepares the virtual environment in which everything else runs."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.programs import MAKE, Program, need

ROOT = Path(__file__).parents[3]

# Stands in for Python and for that of the environment: it installs nothing, and notes which modules it has to run.
PYTHON = """#!/bin/sh
[ "$1" = -m ] || exit 0
echo "$2" >> {modules}
[ "$2" != venv ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/pip"; }
"""


def without_make() -> dict[str, str]:
    """The environment without that of the `make` that runs these tests."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


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
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, env=without_make(), check=True)
    assert modules.read_text().split() == ran


ELSEWHERE = {
    "clang with libFuzzer": "make nightly and make fuzz",
    "debootstrap": "make test-systemd",
    "fake-gcs-server": "requirements.lock has it",
}


def test_the_ci_installs_every_program_that_tests_need() -> None:
    """Where one is missing, its tests fail there. On a machine that has it already nobody would notice."""
    script = (ROOT / ".ci" / "run").read_text()
    known = [each for each in vars(programs).values() if isinstance(each, Program) and each.title not in ELSEWHERE]
    packages = {each.title: re.findall(r"(?:install|package|scripts) (\w[\w@.-]*)", each.install) for each in known}
    assert len(packages) > 15
    assert [title for title, names in packages.items() if not any(name.strip(",") in script for name in names)] == []


def commands_of(target: str, environment: Path) -> list[str]:
    """What `make` would run."""
    words = [str(need(MAKE)), "-n", f"VENV={environment}", target]
    done = subprocess.run(words, cwd=ROOT, env=without_make(), capture_output=True, text=True, check=True)
    return str(done.stdout).splitlines()


@pytest.mark.skipif((ROOT / ".demo" / ".ready").exists(), reason="the demo was installed in this directory")
def test_the_demo_installs_only_what_it_needs(tmp_path: Path) -> None:
    installed = "\n".join(commands_of("demo", tmp_path / "none"))
    assert "--constraint requirements.lock" in installed
    assert "--requirement" not in installed
    for distribution in ("files", "sandbox", "spark"):
        assert f"--editable plugins/{distribution}" in installed
    first = next(line for line in installed.splitlines() if "pip install" in line)
    assert "setuptools" in first.split()  # builds PySpark; no part of a virtual environment since Python 3.12
    assert installed.splitlines()[-1] == ".demo/bin/kzconsumer demo"


def test_the_demo_starts_at_once_in_an_environment_that_is_ready(tmp_path: Path) -> None:
    (tmp_path / ".ready").touch()
    assert commands_of("demo", tmp_path) == [f"{tmp_path}/bin/kzconsumer demo"]
