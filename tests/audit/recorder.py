"""A plugin of pytest that records what each test executes, and how long it takes: `-p tests.audit.recorder`.

`KZCONSUMER_REACH` names the folder for it. Each process of pytest writes one file; programs that tests start are not
followed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tests.audit.marks import Marks

FOLDER = "KZCONSUMER_REACH"
PACKAGES = ("kzconsumer", "plugins")
SUFFIX = ".recorded"


class Recording(msgspec.Struct):
    """Of one process."""

    places: list[tuple[str, int]]
    """The file and the line of each mark."""
    seconds: dict[str, float] = {}
    """Of processor time, by each test that passed: the same on a busy machine, where it waits for longer."""
    executed: dict[str, bytes] = {}
    """The marks of each test, compressed; of no test ("") those of what imports execute before the first one."""


class Recorder:
    def __init__(self, folder: Path) -> None:
        self._file = folder / f"{os.getpid()}{SUFFIX}"
        self._marks = Marks(Path(__file__).parents[2], PACKAGES)
        self._recording = Recording(self._marks.places)
        self._not_passed: set[str] = set()
        self._starting = 0.0
        self._marks.install()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = self._marks.take()
        self._recording.executed.setdefault("", zlib.compress(before))
        began = _processor_time()
        yield
        self._recording.executed[item.nodeid] = zlib.compress(self._marks.take())
        if item.nodeid not in self._not_passed:
            self._recording.seconds[item.nodeid] = _processor_time() - began - self._starting
        self._starting = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
        """The start of the Spark that tests share is not the work of the first of them."""
        began = _processor_time() if fixturedef.argname == "spark" else None
        started = yield
        if began is not None:
            self._starting = _processor_time() - began
        return started

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._not_passed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_bytes(msgspec.msgpack.encode(self._recording))


def _processor_time() -> float:
    """Seconds of this process, of those that it has waited for, and of its running children, as Spark's Java."""
    spent = sum(os.times()[:4])
    with suppress(FileNotFoundError):  # it has ended meanwhile
        for listed in Path("/proc/self/task").glob("*/children"):
            for child in listed.read_text().split():
                ticks = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[11:15]
                spent += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return spent


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before `conftest` imports modules of ours. In the process that distributes the tests nothing is executed."""
    distributes = getattr(early_config.known_args_namespace, "numprocesses", None)  # also true where it runs them
    if not distributes or "PYTEST_XDIST_WORKER" in os.environ:
        early_config.pluginmanager.register(Recorder(Path(os.environ[FOLDER])))
