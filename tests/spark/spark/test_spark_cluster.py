"""The Spark sink with a real standalone cluster: a master, a worker and two executors on loopback."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from kzconsumer.sinks.interface import Batch, RangeData
from tests.support.extent import only_nightly
from tests.support.range_data import range_data, record
from tests.support.served_sink import ServedSink
from tests.support.spark_cluster import SparkCluster, children

pytestmark = pytest.mark.timeout(600)
LIMIT = 200.0
MOST_BATCHES = 40
PARTITIONS = 2


def ranges(first: int, until: int) -> tuple[RangeData, ...]:
    """Large enough to catch an executor while it writes one: some 60 MB each."""
    value = bytes(range(256)) * 16
    return tuple(
        range_data("t", partition, first, until, [record(offset, value=value) for offset in range(first, until)])
        for partition in range(PARTITIONS)
    )


def published(out: Path) -> list[tuple[int, int]]:
    tables = [pq.read_table(file, columns=["partition", "offset"], partitioning=None) for file in out.glob("*.parquet")]
    return sorted((row["partition"], row["offset"]) for table in tables for row in table.to_pylist())


def half_written(out: Path) -> list[Path]:
    """The files of tasks that have not been committed."""
    return list(out.glob("_kzconsumer/attempts/*/*/staged/_temporary/0/_temporary/*/*.parquet"))


async def kill_one_of(cluster: SparkCluster, out: Path, writing: anyio.Event) -> None:
    """An executor, while each of the two writes a range."""
    executors = cluster.executors
    assert len(executors) == PARTITIONS
    with anyio.fail_after(LIMIT):
        while True:
            while len(half_written(out)) < PARTITIONS:
                await anyio.sleep(0.002)
            for pid in executors:
                os.kill(pid, signal.SIGSTOP)
            try:
                if len(half_written(out)) == PARTITIONS:
                    os.kill(executors[0], signal.SIGKILL)
                    writing.set()
                    return
            finally:
                os.kill(executors[1], signal.SIGCONT)
                if not writing.is_set():
                    os.kill(executors[0], signal.SIGCONT)


def options(cluster: SparkCluster, tmp_path: Path, destination: str, out: Path) -> dict[str, object]:
    return {
        "destination": destination,
        "path": str(out),
        "master": cluster.master,
        "scratch": str(tmp_path / "scratch"),
        "start_timeout": "240s",
        "attempts": 1,  # so that Spark itself retries
        "conf": {
            "spark.cores.max": str(PARTITIONS),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
        },
    }


@only_nightly
async def test_a_task_of_a_dead_executor_is_run_again_without_duplicates(
    standalone: SparkCluster, tmp_path: Path
) -> None:
    out, written = tmp_path / "out", anyio.Event()
    async with ServedSink(options(standalone, tmp_path, "parquet", out)) as sink:
        with anyio.fail_after(LIMIT):
            while len(standalone.executors) < PARTITIONS:
                await anyio.sleep(0.05)
        until = 0
        while not written.is_set():  # a batch may be too quick for the test to catch an executor
            assert until < MOST_BATCHES * 15_000, "no two tasks were seen to write"
            with anyio.fail_after(LIMIT):
                async with anyio.create_task_group() as group:
                    group.start_soon(kill_one_of, standalone, out, written)
                    await sink.write(Batch(ranges(until, until + 15_000)))
                    group.cancel_scope.cancel()
            until += 15_000
        assert published(out) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(until)]
        (log,) = (tmp_path / "scratch").rglob("spark.log")
        assert "Lost task" in log.read_text(), "no task was run twice"
        assert not half_written(out)


@only_nightly  # the test above, and test_a_delta_table_gets_each_range_once_and_further_columns of test_spark_sink.py
async def test_a_delta_table_has_the_files_that_executors_wrote(standalone: SparkCluster, tmp_path: Path) -> None:
    out = tmp_path / "out"
    parts = ranges(0, 50)
    output = options(standalone, tmp_path, "delta", out) | {"partition_by": ["partition"]}
    async with ServedSink(output) as sink:
        await sink.write(Batch(parts))
        await sink.write(Batch((*parts, range_data("u", 0, 3, 5))))  # of which the most is there
        assert await sink.has([part.identity for part in parts]) == [part.identity for part in parts]
        started = [Path(f"/proc/{pid}/cmdline").read_bytes() for each in standalone.executors for pid in children(each)]
        assert any(b"-m\0kzconsumer_spark.executors.python_daemon\0" in each for each in started), started
    rows = DeltaTable(out).to_pyarrow_table(columns=["topic", "partition", "offset"]).to_pylist()
    assert sorted((row["topic"], row["partition"], row["offset"]) for row in rows) == [
        *(("t", partition, offset) for partition in range(PARTITIONS) for offset in range(50)),
        ("u", 0, 3),
        ("u", 0, 4),
    ]
