"""Starts pytest by forking a process that has imported all but our own code: most of what its start takes.

`Nursery` is the caller's side. `python -m tests.mutants.nursery` is the process: for each line of its standard input it
forks a child, which imports our code, with the bug that is in it by then, and runs the tests.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

import msgspec

_OURS = ("kzconsumer", "tests", "conftest", "hatch_build")
_IMPORTED_BEFORE = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
"""That of pytest's plugins, whose assertions need not be explained."""
_THIRD_PARTY = """
import sys
import conftest, tests.conftest, tests.support.simulated.machine
print(*sys.modules)
"""


class Asked(msgspec.Struct, frozen=True):
    arguments: list[str]
    """Of pytest."""
    output: str
    """The file for what it prints."""
    limit: float
    """Seconds until it is killed."""
    processor: float | None = None
    """Seconds of processor time until a process of it is killed."""


class Ended(msgspec.Struct, frozen=True):
    status: int
    """Of pytest; negative, as of `subprocess`, if a signal has ended it."""
    late: bool
    """It was killed because it took too long."""


class Nursery:
    """Runs one pytest at a time, with this interpreter in this folder."""

    def __init__(self, python: Path, root: Path, variables: Mapping[str, str]) -> None:
        self._outputs = TemporaryDirectory(prefix="nursery-")
        self._process = subprocess.Popen(
            [python, "-m", __name__],
            cwd=root,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready: a bug that is planted from now on does not reach it

    def run(self, arguments: Sequence[str], limit: float, processor: float | None = None) -> tuple[Ended, str]:
        """How it ended, and what it printed."""
        output = Path(self._outputs.name) / "output"
        asked = Asked(list(arguments), str(output), limit, processor)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise RuntimeError(f"the process that starts pytest has ended with status {self._process.wait()}")
        ended = msgspec.json.decode(answer, type=Ended)
        return ended, output.read_text(errors="replace")

    def close(self) -> None:
        self._process.communicate()
        self._outputs.cleanup()


def main() -> None:
    _import_others()
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        ended = _run(msgspec.json.decode(line, type=Asked))
        print(msgspec.json.encode(ended).decode(), flush=True)


def _import_others() -> None:
    """What our code imports of others; which that is, is found out by another process."""
    listed = subprocess.check_output([sys.executable, "-c", _THIRD_PARTY], text=True, stdin=subprocess.DEVNULL)
    for name in listed.split():
        if not name.startswith(_OURS) and name not in sys.modules:
            with suppress(ImportError):  # a module that only its package can import
                import_module(name)


def _run(asked: Asked) -> Ended:
    child = os.fork()
    if not child:
        _be_pytest(asked)
    ending = os.pidfd_open(child)
    late = not select.select([ending], [], [], asked.limit)[0]
    os.close(ending)
    with suppress(ProcessLookupError):  # what it has started is ended in any case
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(status, late or status == -signal.SIGXCPU)


def _be_pytest(asked: Asked) -> NoReturn:
    status = 3  # as of an internal error of pytest
    try:
        os.setsid()
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(asked.output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        if asked.processor is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (int(asked.processor) + 1, resource.RLIM_INFINITY))
        sys.argv = ["pytest", *asked.arguments]
        status = import_module("pytest").main([*_IMPORTED_BEFORE, *asked.arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
