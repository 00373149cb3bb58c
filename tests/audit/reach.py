"""Which tests execute which line, quickest first: recorded once, by running the tests on unchanged code."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.audit.operators import Mutation
from tests.audit.recorder import FOLDER, PACKAGES, SUFFIX, Recording
from tests.mutants.mutant import ROOT
from tests.mutants.tree import Outcome, Tree

LIMIT = 7200.0
"""Seconds for all tests on unchanged code."""
STARTS = {"plain": 0.0, "servers": 20.0, "spark": 20.0}
"""The kinds of tests, which are the names of their folders, and the seconds of processor time that it may take to start
what they need. A kind judges what those before it have not noticed."""


class Reach:
    """What a recording says."""

    def __init__(self, folder: Path) -> None:
        self._parts = [
            msgspec.msgpack.decode(file.read_bytes(), type=Recording) for file in sorted(folder.glob(f"*{SUFFIX}"))
        ]
        self._seconds = {test: took for part in self._parts for test, took in part.seconds.items()}
        self._by_file: dict[str, dict[int, list[str]]] = {}

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())

    def tests_of(self, mutation: Mutation, budget: float) -> list[tuple[list[str], float]]:
        """The tests that execute its statement, of each kind as many as take `budget` seconds, quick ones first; and
        the seconds of each kind.

        Only plain tests judge a module of which they execute all that any test executes. Others start servers or Spark.

        A statement that only an import executes, as a constant or a call that makes a function, is reached by every
        test that executes its file, and by those whose module imports it: who reads a constant executes no line. The
        recording may have begun after that import.
        """
        lines = self._lines(mutation.file)
        found = {test for line in range(mutation.first, mutation.last + 1) for test in lines.get(line, ())}
        by_module = bool(mutation.function) and found != {""}
        if not by_module:
            # Nearly all of these have nothing to do with it: as many of them as possible are run.
            found = {test for tests in lines.values() for test in tests} | self._importing(mutation.file)
        judges = [self._quickest(_of(kind, found), budget, by_module=by_module) for kind in self._needed(lines)]
        return [(tests, STARTS[_kind(tests[0])] + seconds) for tests, seconds in judges if tests]

    def quickest_files(self, files: Sequence[str]) -> tuple[list[str], float]:
        """Modules of tests, quickest first, and their seconds."""
        seconds = dict.fromkeys(files, 0.0)
        for test, took in self._seconds.items():
            if (file := test.partition("::")[0]) in seconds:
                seconds[file] += took
        return sorted(files, key=seconds.__getitem__), sum(seconds.values())

    def _needed(self, lines: Mapping[int, Sequence[str]]) -> list[str]:
        """The kinds of tests that execute a line which no test of a kind before does; plain ones in any case."""
        of_lines = [{_kind(test) for test in tests if test} for tests in lines.values()]
        first = {next(kind for kind in STARTS if kind in kinds) for kinds in of_lines if kinds}
        return [kind for kind in STARTS if kind in first or kind == "plain"]

    def _importing(self, file: str) -> set[str]:
        """The tests of modules that import this one by its name."""
        module = re.sub(r"^plugins/\w+/", "", file).removesuffix(".py").replace("/", ".")
        package, _, name = module.rpartition(".")
        imported = re.compile(rf"^from ({re.escape(module)} import |{re.escape(package)} import .*\b{name}\b)", re.M)
        modules = {test.partition("::")[0] for test in self._seconds}
        found = {each for each in modules if (ROOT / each).exists() and imported.search((ROOT / each).read_text())}
        return {test for test in self._seconds if test.partition("::")[0] in found}

    def _lines(self, file: str) -> dict[int, list[str]]:
        if file not in self._by_file:
            found: dict[int, list[str]] = {}
            for part in self._parts:
                marks = [(mark, line) for mark, (marked, line) in enumerate(part.places) if marked == file]
                for test, compressed in part.executed.items():
                    executed = zlib.decompress(compressed)
                    for mark, line in marks:
                        if mark < len(executed) and executed[mark]:
                            found.setdefault(line, []).append(test)
            self._by_file[file] = found
        return self._by_file[file]

    def _quickest(self, tests: Iterable[str], budget: float, *, by_module: bool) -> tuple[list[str], float]:
        """Of those that passed: the quickest of each module, then the second of each, and so on, if `by_module`.

        Tests of one module do much the same: what all execute, as a constructor, is rarely used by the quickest.
        """
        turns: Counter[str] = Counter()
        ordered: list[tuple[int, float, str]] = []
        for seconds, test in sorted((self._seconds[test], test) for test in tests if test in self._seconds):
            module = test.partition("::")[0]
            ordered.append((turns[module], seconds, test))
            turns[module] += by_module
        chosen: list[str] = []
        spent = 0.0
        for _, seconds, test in sorted(ordered):
            if chosen and spent + seconds > budget:
                continue
            spent += seconds
            chosen.append(test)
        return chosen, spent


def record(tree: Tree, folder: Path, tests: Sequence[str], jobs: int) -> Reach:
    """Run `tests` (files, folders) on unchanged code, and keep in `folder` what they execute.

    Raises RuntimeError, with the output, if they did not run.
    """
    folder.mkdir(parents=True)
    options = ["-p", "tests.audit.recorder", *(["-n", str(jobs), "--dist", "loadscope"] if jobs > 1 else [])]
    run = tree.run_all([*options, *tests], LIMIT, {FOLDER: str(folder)})
    if run.outcome is Outcome.BROKEN or not any(folder.iterdir()):
        raise RuntimeError(run.output)
    return Reach(folder)


def recorded(tree: Tree, kept: Path, tests: Sequence[str], jobs: int) -> Reach:
    """The recording of these tests and this product in the folder `kept`, made if there is none yet."""
    name = _digest(tests)
    if not (kept / name).exists():
        unfinished = kept / f"{name}-{os.getpid()}"
        record(tree, unfinished, tests, jobs)
        unfinished.rename(kept / name)
    return Reach(kept / name)


def _digest(tests: Sequence[str]) -> str:
    """Of the sources that decide what these tests execute."""
    digest = hashlib.sha256(repr((sys.version, tests)).encode())
    for folder in (*PACKAGES, "tests"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".py", ".c", ".h"):
                digest.update(f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()[:16]


def _kind(test: str) -> str:
    """That of the test's folder."""
    return test.split("/")[2]


def _of(kind: str, tests: Iterable[str]) -> list[str]:
    return [test for test in tests if test and _kind(test) == kind]
