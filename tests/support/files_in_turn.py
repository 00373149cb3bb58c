"""With `--dist loadfile`, a process collects a file of tests when it is the file's turn.

Otherwise each process imports all tests, and PySpark and PyArrow with them, before the first one runs: that takes ten
seconds of a processor. Names and marks of tests (`::`, `-k`, `-m`) can only be chosen from when all are known.
"""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

IN_TURN = "files in turn"
CHOOSING = ("keyword", "markexpr", "deselect", "lf", "failedfirst", "stepwise")


def in_turn(config: pytest.Config) -> bool:
    """In the process that distributes the tests: whether the others collect each file in its turn."""
    chosen = any("::" in each for each in config.args) or any(config.getoption(each, None) for each in CHOOSING)
    return config.getoption("dist") == "loadfile" and not chosen


def show_progress(config: pytest.Config, ended: float) -> None:
    """In the same process, given the part of the files that has ended: percentages are of a number of tests, which is
    not known before all have.
    """
    session, reporter = map(config.pluginmanager.getplugin, ("session", "terminalreporter"))
    if reporter is not None:
        session.testscollected = round(reporter.reported_progress / ended)


def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput[IN_TURN] = in_turn(node.config)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if getattr(parent.config, "workerinput", {}).get(IN_TURN):
        return FileInTurn.from_parent(parent, path=module_path)
    return None


class FileInTurn(pytest.File):
    """A file that is not imported yet."""

    def collect(self) -> list[pytest.Item]:
        tests = AllTests.from_parent(self, name="all tests")
        tests.add_marker(pytest.mark.timeout(0))  # each has a limit of its own
        return [tests]


class AllTests(pytest.Item):
    """Stands for the tests of a file until they run."""

    def collected(self) -> list[pytest.Item]:
        """The tests. If the file cannot be imported, that is reported, and there are none."""
        assert self.parent is not None
        assert self.parent.parent is not None
        gc.collect()
        gc.disable()
        try:
            module = pytest.Module.from_parent(self.parent.parent, path=self.path)
            items = list(self.session.genitems(module))
            self.config.hook.pytest_collection_modifyitems(session=self.session, config=self.config, items=items)
            return items
        finally:
            gc.enable()
            gc.freeze()  # as in tests/conftest.py: the module stays

    def runtest(self) -> NoReturn:
        raise NotImplementedError("each of them runs by itself")

    def run_each(self, following: pytest.Item | None) -> None:
        index = self.session.items.index(self)
        for item, after in pairwise([*self.collected(), following]):
            assert item is not None
            self.session.items[index] = item  # xdist takes reports of an item that is in its place only
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.session.shouldfail or self.session.shouldstop:
                break
        self.session.items[index] = self


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not isinstance(item, AllTests):
        return None
    item.run_each(nextitem)
    return True
