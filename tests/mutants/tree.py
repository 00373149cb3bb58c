"""A copy of the working tree that tests run in, with a virtual environment that imports the copy.

The environment of the working tree imports the working tree, since its distributions are installed as editable. A
variable such as PYTHONPATH would not reach processes that are started with an environment of their own, so the copy
has its own interpreter.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol, Self

from tests.mutants.mutant import ROOT
from tests.mutants.nursery import Nursery

_IMPORTED = """
import importlib, json, sys
names = sys.argv[1:]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


_OPTIONS = ("-q", "--no-header", "--tb=short", "-rfE")


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    """The tests did not run: a test does not exist, or a module cannot be imported."""


class Run(NamedTuple):
    outcome: Outcome
    failed: list[str]
    output: str


class Bug(Protocol):
    """What can be planted."""

    @property
    def file(self) -> str: ...

    def plant(self, source: str) -> str:
        """The source with the bug. Raises ValueError if it is not the source that the bug was made for."""
        ...


class Tree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._nursery: Nursery | None = None
        self._environment = root / ".venv"
        self._python = self._environment / "bin" / "python"
        self._copy_files()
        self._make_environment()
        self._check_imports()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nursery is not None:
            self._nursery.close()

    @contextmanager
    def planted(self, bug: Bug) -> Iterator[None]:
        """The bug is in the copy as long as this is open."""
        self._started()
        file = self.root / bug.file
        source = file.read_text()
        planted = bug.plant(source)
        if file.suffix == ".py":
            ast.parse(planted, str(file))  # what cannot be imported shows nothing of the tests
        self._write(file, planted)
        try:
            yield
        finally:
            self._write(file, source)

    def run(self, tests: Sequence[str], limit: float, *, processor: float | None = None) -> Run:
        """Run these tests up to the first failure. What takes longer than `limit` seconds has failed.

        So has what takes longer than `processor` seconds of processor time: a busy loop, however loaded the machine is.
        """
        ended, output = self._started().run([*_OPTIONS, "-x", *tests], limit, processor)
        if ended.late:
            or_busy = "" if processor is None else f", or {processor:.0f} of processor time"
            return Run(Outcome.FAILED, [f"not finished after {limit:.0f} s{or_busy}"], output)
        return _finished(ended.status, output)

    def _started(self) -> Nursery:
        """It imports our code once, to find out what that imports: not code with a bug, which may not be importable."""
        if self._nursery is None:
            self._nursery = Nursery(self._python, self.root, self._variables())
        return self._nursery

    def run_all(self, tests: Sequence[str], limit: float, variables: Mapping[str, str]) -> Run:
        """Run these tests, whatever fails, with `variables` added to those of the environment."""
        run = subprocess.run(
            [self._python, "-m", "pytest", *_OPTIONS, *tests],
            cwd=self.root,
            env=self._variables() | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
        )
        return _finished(run.returncode, run.stdout)

    def _copy_files(self) -> None:
        """Everything but what git ignores, as it is in the working tree, committed or not; and the compiled decoder."""
        listed = subprocess.check_output(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True
        )
        compiled = [str(each.relative_to(ROOT)) for each in ROOT.glob("kzconsumer/records/_native*.so")]
        for name in filter(None, [*listed.split("\0"), *compiled]):
            if (ROOT / name).exists():
                target = self.root / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)

    def _make_environment(self) -> None:
        """What is installed for the working tree, except the working tree itself.

        A directory named in a .pth file is only searched: the .pth files in it, which name the working tree, are not
        read.
        """
        venv.create(self._environment, symlinks=True)
        installed = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        path = [self.root, *sorted((self.root / "plugins").iterdir()), *installed]
        (site_packages,) = self._environment.glob("lib/python*/site-packages")
        (site_packages / "copy.pth").write_text("".join(f"{each}\n" for each in path))
        for script in Path(sys.executable).parent.iterdir():
            copied = self._python.parent / script.name
            content = script.read_bytes() if script.is_file() else b""
            if content.startswith(b"#!") and not copied.exists():
                copied.write_bytes(content.replace(sys.executable.encode(), str(self._python).encode(), 1))
                copied.chmod(0o755)

    def _check_imports(self) -> None:
        """Every package of ours is imported from the copy, also by a process without environment variables."""
        ours = ["tests", "kzconsumer", *(each.name for each in self.root.glob("plugins/*/kzconsumer_*"))]
        found: dict[str, str] = json.loads(
            subprocess.check_output([self._python, "-I", "-c", _IMPORTED, *ours], cwd="/", env={}, text=True)
        )
        for name, file in found.items():
            assert Path(file).is_relative_to(self.root), f"{name} is imported from {file}, not from the copy"
        called = (self._python.parent / "kzconsumer").read_text()
        assert called.startswith(f"#!{self._python}"), f"the script kzconsumer runs {called.splitlines()[0]}"

    def _variables(self) -> dict[str, str]:
        """For tests in the copy."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return kept | {
            "PATH": f"{self._python.parent}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self._environment),
            "CFLAGS": "-O1",  # of a decoder with a bug, which is compiled again
        }

    def _write(self, file: Path, source: str) -> None:
        """Without its compiled file, which Python would use if the time in seconds and the size are the same."""
        file.write_text(source)
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            compiled.unlink()


def _finished(status: int, output: str) -> Run:
    outcome = {0: Outcome.PASSED, 1: Outcome.FAILED}.get(status, Outcome.BROKEN)
    return Run(outcome, _failed(output), output)


def _failed(output: str) -> list[str]:
    """The node ids in pytest's summary."""
    lines = [line.split(" - ")[0].split(" ", 1) for line in output.splitlines()]
    return [line[1] for line in lines if line[0] in ("FAILED", "ERROR") and line[-1].startswith("tests/")]
