"""The contract of sinks with a real Spark: what the parquet destination promises, and what a function can keep.

Each member process has a Spark of its own, which takes ten seconds and more to start: few kills, and each test reuses
the members. In `make test`, `test_replay_after_kill.py` kills a member with a Spark; what members find of each other is
the contract of the target itself (`tests/files/plain/test_parquet_sink.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kzconsumer.sinks.interface import Sink
from kzconsumer.testing.sink_contract import SinkContract
from tests.support.contract_functions import stored
from tests.support.copied import copied
from tests.support.extent import only_nightly
from tests.support.served_sink import ServedSink
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = [pytest.mark.timeout(900), only_nightly]


def _common(directory: Path) -> dict[str, str]:
    """On a machine that is busy with other tests."""
    return {"scratch": str(directory / "scratch"), "retry_backoff": "100ms", "start_timeout": "300s"}


class OnSpark(SinkContract):
    kills = 1
    zombies = 1
    races = 2
    records = 200


class TestParquet(OnSpark):
    sets_aside = True

    def sink(self, directory: Path) -> Sink:
        options = {"destination": "parquet", "path": str(directory / "out")}
        return ServedSink(options | _common(directory))

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return ds.dataset(directory / "out", format="parquet").to_table(columns=["value"])["value"].to_pylist()

    def copy(self, directory: Path) -> Callable[[], None]:
        return copied(directory / "out")


class TestFunction(OnSpark):
    kills = int(os.environ.get("KZCONSUMER_KILLS", "1"))
    zombies = 0  # those of a function are in test_docs_functions.py

    def sink(self, directory: Path) -> Sink:
        os.environ[FUNCTION_DIRECTORY] = str(directory)
        options = {"destination": "function", "function": "tests.support.contract_functions:store"}
        return ServedSink(options | _common(directory))

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return stored(directory, "records")

    def test_a_recorded_step_is_not_done_again(self) -> None:
        log = self.group.log()
        log.write(self.group.one(), batch := log.batch(self.records))
        log.again(self.group.one(), batch)
        log.check()
        noted = [token for token in stored(self.group.directory, "notes") if f"+{log.topic}+" in token]
        assert len(noted) == len(set(noted)) == 3

    def test_a_function_keyed_on_batch_id_is_detected(self) -> None:
        """The negative control: the same function with another key."""
        mode = self.group.directory / "mode"
        mode.touch()
        try:
            with pytest.raises(AssertionError, match="records are double"):
                self.test_uncommitted_ranges_are_written_again()
        finally:
            mode.unlink()
