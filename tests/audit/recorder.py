"""A plugin of pytest that records which lines each test executes, and how long it takes: `-p tests.audit.recorder`.

`KZCONSUMER_REACH` names the folder for it. Each process of pytest writes files of its own; programs that tests start
are not followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FOLDER = "KZCONSUMER_REACH"
PACKAGES = ["kzconsumer", "plugins"]


class Recorder:
    def __init__(self, folder: Path) -> None:
        self._seconds: dict[str, float] = {}
        self._times = folder / f"{os.getpid()}.json"
        self._coverage = coverage.Coverage(
            data_file=str(folder / f"{os.getpid()}.lines"), source=PACKAGES, config_file=False, messages=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        yield
        self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed:
            self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        self._times.write_text(json.dumps(self._seconds))


def pytest_configure(config: pytest.Config) -> None:
    """In the process that distributes the tests nothing is executed."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))
