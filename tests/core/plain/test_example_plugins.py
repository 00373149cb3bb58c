"""The plugins in docs/examples keep the contracts of their interfaces."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from kzconsumer.assignors import AssignmentContext
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.sinks import Sink
from kzconsumer.testing import AssignorContract, SinkContract, contract_context

sys.path.append(str(Path(__file__).parents[3] / "docs" / "examples" / "plugins"))
import least_loaded  # type: ignore[import-not-found]
import sqlite_sink  # type: ignore[import-not-found]


class TestLeastLoaded(AssignorContract):
    assignor = staticmethod(least_loaded.assign)

    def test_the_remainders_of_topics_go_to_different_threads(self) -> None:
        one, two = ConsumerThreadId("a", 0), ConsumerThreadId("b", 0)
        context = AssignmentContext({"x": (one, two), "y": (one, two)}, {"x": (0,), "y": (0,)})
        assert least_loaded.assign(context) == {TopicPartition("x", 0): one, TopicPartition("y", 0): two}


class TestSQLiteSink(SinkContract):
    kills, zombies, races = 2, 0, 2  # a zombie in a transaction keeps SQLite's lock

    def sink(self, directory: Path) -> Sink:
        sink: Sink = sqlite_sink.SQLiteSink({"path": str(directory / "out")}, contract_context())
        return sink

    def read_back(self, directory: Path) -> Iterator[bytes | None]:
        with closing(sqlite3.connect(directory / "out")) as database:
            yield from (value for (value,) in database.execute("select value from records"))

    def copy(self, directory: Path) -> Callable[[], None]:
        place, copy = directory / "out", directory / "copy"
        _copy(place, copy)
        return lambda: _copy(copy, place)


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)
