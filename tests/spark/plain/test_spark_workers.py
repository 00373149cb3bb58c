"""Worker processes that do not start, and what the sink makes of their answers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self, cast

import anyio
import msgspec
import pyspark
import pytest
from structlog.testing import capture_logs

from kzconsumer.clock import now
from kzconsumer.errors import DestinationWentBackError, RangeChangedError, SinkError
from kzconsumer.model import RangeIdentity, TopicPartition
from kzconsumer.records.checksums import Contents
from kzconsumer.settings.settings import Settings
from kzconsumer.sinks.interface import Batch, Rejected, StepNotRecordedError
from kzconsumer.testing.sink_contract import contract_context
from kzconsumer_spark.daemon.sink import SparkSink, recorded
from kzconsumer_spark.daemon.sink_options import read_options
from kzconsumer_spark.daemon.worker_process import MAX_LINE, WorkerDied, WorkerProcess, Workers, worker_environment
from kzconsumer_spark.executors.python_daemon import installed_first
from kzconsumer_spark.ranges.unstorable_rows import MOST_REJECTED
from kzconsumer_spark.worker_protocol.messages import (
    Done,
    Event,
    Failed,
    RangesRead,
    Ready,
    Recorded,
    RunBatch,
    StartWorker,
    ToFiles,
    decode_event,
    encode,
)
from tests.support.batch_ranges import SETTINGS
from tests.support.range_data import range_data

CANNOT_START = {"TOO_LONG": "x" * (1 << 22)}
"""An environment that the kernel refuses: an error of the same call as that of a machine without memory."""


def start_of(directory: str, next_batch: int) -> StartWorker:
    return StartWorker(
        scratch=directory,
        master="local[1]",
        conf={},
        destination=ToFiles(path="/d"),
        next_batch=next_batch,
        safe_until=0.0,
    )


async def test_a_worker_that_dies_while_it_starts_gets_the_attempts_of_a_batch(tmp_path: Path) -> None:
    options = read_options({"destination": "parquet", "path": "/d", "attempts": 4, "retry_backoff": "1ms"})

    with capture_logs() as logs, pytest.raises(SinkError, match="did not start in 4 attempts: "):
        async with Workers(options, CANNOT_START, tmp_path, start_of, lambda: 0.0) as workers:
            await workers.start_first(1)
    assert [each["attempt"] for each in logs if each["event"] == "spark start failed"] == [1, 2, 3, 4]


async def test_a_worker_that_ends_says_why(tmp_path: Path) -> None:
    """Its Java has, and the log of that is gone."""
    events = encode(Ready(application="a")), encode(Failed(number=None, error="Java ended: no memory"))
    program = tmp_path / "kzconsumer_spark" / "worker"
    program.mkdir(parents=True)
    (program.parent / "__init__.py").touch()
    (program / "__main__.py").write_text(
        f"import sys\nfor event in {events}:\n    sys.stdin.readline()\n    print(event.decode(), end='', flush=True)\n"
    )
    options = read_options({"destination": "parquet", "path": "/d"})
    environment = {"PYTHONPATH": str(tmp_path)}
    async with Workers(options, environment, tmp_path, start_of, lambda: 0.0) as workers:
        worker = await workers.take(1)
        await worker.heartbeat(0.0)
        with pytest.raises(WorkerDied, match="Java ended: no memory"):
            await worker.receive()


@pytest.mark.parametrize(("load", "lines"), [(1000.0, 2), (0.0, 0)])
async def test_a_start_is_waited_for_while_others_take_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, lines: int
) -> None:
    """As long as all attempts, one of which it is then. One that is slow by itself is ended, and tried again."""
    options = read_options(
        {"destination": "parquet", "path": "/d", "attempts": 3, "start_timeout": "200ms", "retry_backoff": "1ms"}
    )

    async def never(*_: object) -> WorkerProcess:
        time.sleep(0.3)  # noqa: ASYNC251 - a loop that is held up beyond the first limit
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(WorkerProcess, "open", never)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    began = now()
    with capture_logs() as logs:
        async with Workers(options, {}, tmp_path, start_of, lambda: 0.0) as workers:
            with pytest.raises(SinkError, match=r"did not start in [13] attempts: Spark was not ready within \d+ s"):
                await workers.start_first(1)
    assert len([each for each in logs if each["event"] == "spark is still starting, waiting on"]) == lines
    assert len([each for each in logs if each["event"] == "spark start failed"]) == (1 if lines else 3)
    assert now() - began >= 0.6 + 0.3 * (0 if lines else 2)


@pytest.mark.parametrize("turns", range(6))
async def test_no_worker_outlives_a_start_that_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """In any turn of the loop after Spark is ready."""
    began, running = anyio.CancelScope(), list[str]()

    class Opened(WorkerProcess):
        def __init__(self) -> None:
            running.append("worker")
            self.ready = Ready(application="a")

        @property
        def pid(self) -> int:
            return 0

        async def heartbeat(self, safe_until: float) -> None: ...

        async def close(self) -> None:
            running.clear()

    def cancel_after(turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(cancel_after, turns - 1)
        else:
            began.cancel()

    async def opened(*_: object) -> WorkerProcess:
        cancel_after(turns)
        return Opened()

    monkeypatch.setattr(WorkerProcess, "open", opened)
    options = read_options({"destination": "parquet", "path": "/d"})
    async with Workers(options, {}, tmp_path, start_of, lambda: 0.0) as workers:
        with began:
            await workers.take(1)
            await anyio.sleep_forever()
    assert began.cancelled_caught
    assert running == []


async def test_a_destination_that_went_back_is_not_tried_again(tmp_path: Path) -> None:
    lost = RangeIdentity("t", 0, -5, 1, 6, 9)
    answers: list[Event] = []

    class Lacking(SparkSink):
        async def _attempt(self, batch: RunBatch, planned: Batch) -> Failed | None:
            answers.append(decode_event(encode(Failed(number=1, error="no", lacks=lost, ends=3))))
            (*_, last) = answers
            assert isinstance(last, Failed)
            return last

    sink = Lacking(
        {"destination": "parquet", "path": str(tmp_path)},
        msgspec.structs.replace(contract_context(), settings=SETTINGS),
    )
    with pytest.raises(DestinationWentBackError, match=r"^parquet files in .*: t-0: offsets 3 to 9 were ") as raised:
        await sink.write(Batch((range_data("t", 0, 6, 9),)))
    assert (raised.value.lacking, raised.value.ends, len(answers)) == (lost, 3, 1)


class Writes:
    """A worker, and what starts it: it writes whatever it is sent."""

    def __init__(self) -> None:
        self.sent: list[RunBatch] = []

    async def take(self, number: int) -> Self:
        return self

    async def send(self, batch: RunBatch) -> None:
        self.sent.append(batch)

    async def receive(self) -> Done:
        return Done(number=self.sent[-1].number, rows=1, published=1, present=0, seconds=0.0)


async def test_the_worker_is_told_the_rate_limit_of_the_moment(tmp_path: Path) -> None:
    """A reload may have changed it since the member started; a replay by hand has that of its settings."""
    limits, limited = (
        [2000, None, 1000],
        Settings.from_dict({"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}, "fetch": {"rate_limit": 4000}}),
    )
    for rate_limit, told in ((limits.pop, [1000, None, 2000]), (None, [4000] * 3)):
        context = msgspec.structs.replace(contract_context(), settings=limited, rate_limit=rate_limit)
        sink, writes = SparkSink({"destination": "parquet", "path": str(tmp_path)}, context), Writes()
        sink.workers = cast("Workers", writes)
        for first in range(3):
            await sink.write(Batch((range_data("t", 0, first, first + 1),)))
        assert [each.rate_limit for each in writes.sent] == told


def test_the_longest_answer_of_a_worker_is_read() -> None:
    rejected = Rejected(
        "t" * 249, 99_999, 1 << 62, f"column {'c' * 99}: is outside of the years 1 to 9999", "unstorable"
    )
    failed = Failed(number=1, error="e" * 1000, rejected=(rejected,) * MOST_REJECTED)
    read = RangesRead(number=1, contents=(Contents(*[1 << 32] * 8),) * 100_000)
    assert max(len(encode(failed)), len(encode(read))) < MAX_LINE


async def test_what_executors_have_read_is_stored_before_the_worker_may_publish() -> None:
    """An error says why not, and fails the batch. A replay that is refused ends the member."""
    ranges = (range_data("t", 0, 0, 2), range_data("t", 1, 0, 2))
    told: list[Mapping[TopicPartition, Contents]] = []
    errors: list[Exception] = []

    async def found(contents: Mapping[TopicPartition, Contents]) -> None:
        told.append(contents)
        for error in errors:
            raise error

    read = RangesRead(number=1, contents=(None, Contents(2, 7)))
    event = decode_event(encode(read))
    assert event == read
    assert await recorded(read, Batch(ranges, found=found)) == Recorded()
    assert told == [{TopicPartition("t", 1): Contents(2, 7)}]
    assert await recorded(read, Batch(ranges)) == Recorded()
    errors = [StepNotRecordedError("they are lost")]
    assert await recorded(read, Batch(ranges, found=found)) == Recorded(error="they are lost")
    errors = [RangeChangedError("changed")]
    with pytest.raises(RangeChangedError):
        await recorded(read, Batch(ranges, found=found))


def test_spark_processes_of_this_machine_import_the_compiled_pyspark() -> None:
    """Spark puts its pyspark.zip first, from which each process would compile PySpark again."""
    environment = worker_environment({})
    archive = next(Path(pyspark.__file__).parent.glob("python/lib/pyspark.zip"))
    program = "import pyspark, sys; print(pyspark.__file__, sys.executable)"
    for name, expected in (("PYSPARK_PYTHON", pyspark.__file__), ("PYSPARK_DRIVER_PYTHON", pyspark.__file__)):
        done = subprocess.run(
            [environment[name], "-c", program],
            env=environment | {"PYTHONPATH": str(archive)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [expected, sys.executable]
    on_a_cluster = worker_environment({}, "spark://host:7077")
    assert on_a_cluster["PYSPARK_PYTHON"] == sys.executable, "executors are on other machines"
    assert worker_environment({"spark.pyspark.python": "/opt/python"})["PYSPARK_PYTHON"] == "/opt/python"


def test_executors_import_the_installed_pyspark_if_it_is_the_archives(tmp_path: Path) -> None:
    installed = Path(pyspark.__file__).parents[1]
    archive = str(next(installed.glob("pyspark/python/lib/pyspark.zip")))
    other = str(tmp_path / "pyspark.zip")
    with zipfile.ZipFile(other, "w") as made:
        made.writestr("pyspark/version.py", "__version__ = '4.0.0'")
    assert installed_first([archive, "/a", str(installed)]) == ["/a", str(installed), archive]
    for kept in ([other, str(installed)], [archive, "/a"], [str(tmp_path / "none" / "pyspark.zip"), str(installed)]):
        assert installed_first(kept) == kept
