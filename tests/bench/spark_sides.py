"""The sides of `make bench-spark`: daemons with our sinks, and Spark's own Kafka source; each a process.

Each side owns its process and its output, and gets one round of records after the other; `read` returns when the round
is in Parquet files. The cost of a process is read from outside (`process_tree`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from kzconsumer_spark.daemon.worker_process import java_environment
from tests.bench.spark_source import JARS, Read
from tests.support.jars import fetched
from tests.support.spark_cluster import SparkCluster

COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
_LIMIT = 400.0
_LOOK = 0.02


class Round(NamedTuple):
    """Records of each partition of a topic from `first` up to `until`, exclusive, committed in one transaction."""

    topic: str
    partitions: int
    first: int
    until: int

    @property
    def records(self) -> int:
        return self.partitions * (self.until - self.first)


class Side(Protocol):
    @property
    def pids(self) -> tuple[int, ...]:
        """What it costs is the cost of these processes and of those that they have started."""
        ...

    def read(self, round: Round) -> None:
        """Wait until the round is written. It must be committed to the topic by now, or be about to be."""
        ...

    def take(self, round: Round) -> pa.Table:
        """The records written for the round, which are removed."""
        ...


class Ours:
    """A daemon that has joined its group; it reads new records by itself."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, log: Path, others: tuple[int, ...]) -> None:
        self._process = process
        self._out = out
        self._log = log
        self.pids = (process.pid, *others)

    def read(self, round: Round) -> None:
        """Published means that there is a ledger entry."""
        deadline = time.monotonic() + _LIMIT
        while not self._has(round):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the daemon has not written {round}:\n{self._log.read_text()[-3000:]}")
            time.sleep(_LOOK)

    def take(self, round: Round) -> pa.Table:
        files = [each for each in self._out.glob("*.parquet") if _until(each) > round.first]
        table = _read(files)
        for file in files:
            file.unlink()
        return table

    def _has(self, round: Round) -> bool:
        untils = dict.fromkeys(range(round.partitions), 0)
        for entry in self._ledger():
            partition = int(entry.name.split("+")[1])
            untils[partition] = max(untils[partition], _until(entry))
        return all(until >= round.until for until in untils.values())

    def _ledger(self) -> Iterator[Path]:
        return (self._out / "_kzconsumer").glob("*+*.json")


class Source:
    """A query of `GroupSource`, a member of its group, which reads new records by itself."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, log: Path) -> None:
        self._process = process
        self._out = out
        self._log = log
        self._checkpoint = Path(f"{out}.checkpoint")
        self.pids = (process.pid,)

    def read(self, round: Round) -> None:
        """Written means that the batch is in the checkpoint's log of commits."""
        deadline = time.monotonic() + _LIMIT
        while not self._has(round):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"the query has not written {round}:\n{self._log.read_text()[-3000:]}")
            time.sleep(_LOOK)

    def take(self, round: Round) -> pa.Table:
        files = list(self._out.glob("*.parquet"))
        table = _read(files)
        for file in files:
            file.unlink()
        return table

    def _last(self) -> int:
        """The number of the last batch, or -1."""
        names = (file.name for file in (self._checkpoint / "commits").glob("*"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _has(self, round: Round) -> bool:
        if (last := self._last()) < 0:
            return False
        offset = (self._checkpoint / "offsets" / str(last)).read_text().splitlines()[-1]
        reached: list[list[int]] = list(json.loads(offset)["reached"].values())
        return sum(until >= round.until for _, _, until in reached) == round.partitions


class Theirs:
    """A Spark session that runs one query for each round, in one batch."""

    def __init__(self, process: subprocess.Popen[bytes], bootstrap: str, folder: Path) -> None:
        self._process = process
        self._bootstrap = bootstrap
        self._folder = folder
        self.pids = (process.pid,)

    def read(self, round: Round) -> None:
        offsets = {str(partition): round.first for partition in range(round.partitions)}
        path, checkpoint = self._path(round), f"{self._path(round)}.checkpoint"
        assert self._process.stdin is not None
        command = Read(self._bootstrap, round.topic, offsets, str(path), checkpoint)
        self._process.stdin.write(msgspec.json.encode(command) + b"\n")
        self._process.stdin.flush()
        self.wait()

    def take(self, round: Round) -> pa.Table:
        files = list(self._path(round).glob("*.parquet"))
        table = _read(files)
        for file in files:
            file.unlink()
        return table

    def _path(self, round: Round) -> Path:
        return self._folder / f"{round.topic}-{round.first}"

    def wait(self) -> None:
        """Until the session has started, or has run its query."""
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("Spark's own source has failed: see above")


@contextmanager
def ours(
    folder: Path, zookeeper: str, topic: str, plugin: str, tables: str, options: str = "", others: tuple[int, ...] = ()
) -> Iterator[Ours]:
    """A daemon with the sink `plugin`, "spark" or "parquet", and more `options` of it.

    `tables`: more of the settings, as TOML. `others` are processes that work for it and that it has not started.
    """
    folder.mkdir()
    config, log, out = folder / "group.toml", folder / "log", folder / "out"
    spark = 'destination = "parquet"\nstart_timeout = "300s"\n' if plugin == "spark" else ""
    config.write_text(
        f'[zookeeper]\nconnect = "{zookeeper}"\n[group]\nid = "{topic}"\n'
        f'[subscription]\ntopics = {{ "{topic}" = 1 }}\n'
        f'[fetch]\nisolation = "read_committed"\n[log]\nformat = "json"\n{tables}\n'
        f'[sink]\nplugin = "{plugin}"\n[sink.options]\npath = "{out}"\n{spark}{options}'
    )
    with log.open("wb") as output, _process(["-m", "kzconsumer", "--config", str(config)], stderr=output) as process:
        yield Ours(process, out, log, others)


@contextmanager
def on_cluster(folder: Path, zookeeper: str, topic: str, tables: str, cluster: SparkCluster) -> Iterator[Ours]:
    """A daemon whose Spark has two executors, one on each worker."""
    conf = '"spark.cores.max" = "2"\n"spark.executor.cores" = "1"\n'
    options = f'master = "{cluster.master}"\n[sink.options.conf]\n{conf}'
    with ours(folder, zookeeper, topic, "spark", tables, options, cluster.pids) as side:
        yield side


@contextmanager
def source(folder: Path, zookeeper: str, topic: str, tables: str) -> Iterator[Source]:
    """`tables`: as for `ours`."""
    (folder / "scratch").mkdir(parents=True)
    config, log, out = folder / "group.toml", folder / "log", folder / "out"
    config.write_text(
        f'zookeeper.connect = "{zookeeper}"\ngroup.id = "{topic}-source"\nsubscription.topics."{topic}" = 1\n'
        f'fetch.isolation = "read_committed"\n{tables}\n'
    )
    command = ["-m", "tests.bench.spark_group_source", str(folder / "scratch"), str(config), str(out)]
    with (
        log.open("wb") as output,
        _process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as process,
    ):
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the query has not started:\n{log.read_text()[-3000:]}")
        yield Source(process, out, log)


@contextmanager
def theirs(folder: Path, bootstrap: str) -> Iterator[Theirs]:
    folder.mkdir()
    jars = ",".join(sorted(map(str, fetched(JARS).glob("*.jar"))))
    (folder / "scratch").mkdir()
    with (folder / "log").open("wb") as output:
        command = ["-m", "tests.bench.spark_source", str(folder / "scratch"), jars]
        with _process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as process:
            side = Theirs(process, bootstrap, folder)
            side.wait()
            yield side


@contextmanager
def _process(arguments: list[str], **pipes: object) -> Iterator[subprocess.Popen[bytes]]:
    environment: Mapping[str, str] = java_environment(os.environ) | {"PYSPARK_PYTHON": sys.executable}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until(file: Path) -> int:
    return int(file.stem.split("+")[4])


def _read(files: list[Path]) -> pa.Table:
    return pa.concat_tables([pq.read_table(file, columns=COLUMNS, partitioning=None) for file in files])
