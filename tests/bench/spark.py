"""From a broker into snappy Parquet, our Spark sink compared with Spark's own Kafka source: `make bench-spark`.

Runs a ZooKeeper, a broker and both sides. A round is one transaction of records, which both read with isolation
read_committed: so all of it becomes readable at one moment, for which our daemon, in its group and with a warm JVM like
Spark's session, has been waiting. Spark's own source reads a round in one batch: that is its default, and
costs it least. Measured is from that moment until all is written: wall clock, and the
processor time of the whole tree of processes. Then both sides' records are compared, one by one. The sides take turns,
and rounds before the first that counts warm the JVMs. A streaming query of `GroupSource`, and the sink `parquet`, which
needs no Spark, follow in rounds of their own.

`--part cluster` measures our sink alone, on a standalone master with two workers. The processes of the cluster are
counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.progress import Progress

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.bench.folder import bench_folder
from tests.bench.process_tree import processor_seconds
from tests.bench.spark_report import Report, Run, Section, section, table
from tests.bench.spark_sides import Round, Side, on_cluster, ours, source, theirs
from tests.bench.spark_source import JARS
from tests.support.jars import fetched
from tests.support.spark_cluster import spark_cluster

BROKER = "3.9.1"
PARTITIONS = 4
TUNING = ("-XX:+UseSerialGC",)
#: Our rate and processor time, as multiples of theirs, by bytes of a value.
GOALS: Mapping[int, tuple[float, float]] = {100: (1.7, 0.95), 1024: (1.6, 0.9)}
SPARK, PARQUET, SOURCE = "the sink spark", "the sink parquet", "GroupSource"
THEIRS = "Spark's own source, one batch"
#: Batches of ours are full: a smaller one waits for `[batch] max_time`.
RECORDS: Mapping[int, int] = {100: 2_000_000, 1024: 1_500_000}
#: Of a round of another size.
BYTES = 500_000_000
#: What a round has written is deleted once it is compared, and the broker removes what is deleted within seconds.
SMALL_LOGS = {
    "log.segment.bytes": 64 << 20,
    "log.segment.delete.delay.ms": 1000,
    "log.retention.check.interval.ms": 2000,
}


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.bench.spark", description="Into Parquet, compared with Spark's own Kafka source."
    )
    arguments.add_argument("--part", choices=PARTS, default="local", help="which Spark of ours (local)")
    arguments.add_argument("--size", type=int, nargs="+", default=list(RECORDS), metavar="BYTES", help="(100 1024)")
    records = "of a round (2,000,000 of 100 B, 1,500,000 of 1 KiB, otherwise 500 MB)"
    arguments.add_argument("--records", type=int, help=records)
    arguments.add_argument("--repetitions", type=int, default=5, help="rounds that count (5)")
    arguments.add_argument("--warm", type=int, default=2, help="rounds before them (2)")
    arguments.add_argument("--settings", default="", metavar="TOML", help="tables for our side: '[batch]\\nmax_...'")
    arguments.add_argument("--ours-alone", action="store_true", help="without Spark's own source, for a look at ours")
    arguments.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    args = arguments.parse_args()
    args.settings = args.settings.replace("\\n", "\n")
    setup.configure("warning", "console")
    found = anyio.run(_run, args)
    if args.json:
        print(msgspec.json.encode(found).decode())
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    for each in found.sections:
        console.print(table(found, each))
    return 0


async def _run(args: argparse.Namespace) -> Report:
    await anyio.to_thread.run_sync(lambda: fetched(JARS))
    sections = []
    console = Console(stderr=True)
    sides = {"local": 4, "cluster": 1}[args.part]
    if args.ours_alone and args.part == "local":
        sides = 3
    steps = len(args.size) * (args.repetitions + args.warm) * sides
    with bench_folder() as folder, Progress(console=console) as progress:
        task = progress.add_task("starting", total=steps)

        def print_line(what: str, done: int) -> None:
            progress.update(task, description=what, advance=done)
            if not console.is_terminal:
                print(what, file=sys.stderr, flush=True)

        async with Sandbox(folder, BROKER, 1, heap="512m", tuning=TUNING, config=SMALL_LOGS) as sandbox:
            for size in args.size:
                topic = f"bench-{size}"
                rounds = Rounds(sandbox, args, size, print_line)
                for each in (topic, f"{topic}-source", f"{topic}-parquet"):
                    await create_topic(sandbox.zookeeper_connect, each, PARTITIONS)
                # In this thread: the processes that it starts must not outlive it.
                sections.append(PARTS[args.part](rounds, topic, folder / topic))
    return Report(BROKER, PARTITIONS, os.cpu_count() or 0, args.settings, tuple(sections))


class Rounds:
    """Rounds of records of one size, and the runs that count."""

    def __init__(
        self, sandbox: Sandbox, args: argparse.Namespace, size: int, print_line: Callable[[str, int], None]
    ) -> None:
        self.sandbox = sandbox
        self.args = args
        self.size = size
        self.runs: dict[str, list[Run]] = {}
        self.records_each = (args.records or RECORDS.get(size) or min(BYTES // size, 2_000_000)) // PARTITIONS
        self._print_line = print_line
        self._writer = TransactionalWriter(sandbox.bootstrap, size)

    def measure(self, topic: str, sides: Mapping[str, Side]) -> None:
        for number in range(self.args.warm + self.args.repetitions):
            # Each transaction ends with a marker in every partition, which takes an offset.
            first = number * (self.records_each + 1)
            round = Round(topic, PARTITIONS, first, first + self.records_each)
            self._writer.write(round)
            tables = []
            for name, side in sides.items():
                run = _run_side(side, round, self._writer)
                counts = "" if number >= self.args.warm else " (to warm up)"
                cost = " ".join(f"{part} {1e6 * took / run.records:.2f}" for part, took in run.cpu_seconds.items())
                self._print_line(
                    f"{self.size} B, {name}: {run.rate / 1000:,.0f} k records/s, CPU s/M {cost}{counts}", 1
                )
                if number >= self.args.warm:
                    self.runs.setdefault(name, []).append(run)
                tables.append(_checked(side.take(round), round, name))
            if any(other != tables[0] for other in tables):
                raise AssertionError(f"the two sides have written different records of {round}")
            self._delete(round)

    def _delete(self, round: Round) -> None:
        """All sides have read it."""
        admin = AdminClient({"bootstrap.servers": self.sandbox.bootstrap})
        ends = [TopicPartition(round.topic, partition, round.until + 1) for partition in range(round.partitions)]
        for deleted in admin.delete_records(ends).values():
            deleted.result(30.0)

    def section(self, compared: str, to: str, goals: tuple[float, float] | None = None) -> Section:
        return section(self.size, PARTITIONS * self.records_each, self.runs, compared, to, goals)


def _local(rounds: Rounds, topic: str, folder: Path) -> Section:
    folder.mkdir()
    sandbox, args = rounds.sandbox, rounds.args
    connect = sandbox.zookeeper_connect
    with ExitStack() as stack:
        spark = stack.enter_context(ours(folder / "s", connect, topic, "spark", args.settings))
        sides: dict[str, Side] = {SPARK: spark}
        if not args.ours_alone:
            sides[THEIRS] = stack.enter_context(theirs(folder / "theirs", sandbox.bootstrap))
        rounds.measure(topic, sides)
    own = f"{topic}-source"
    with source(folder / "source", connect, own, args.settings) as query:
        rounds.measure(own, {SOURCE: query})
    own = f"{topic}-parquet"
    with ours(folder / "p", connect, own, "parquet", args.settings) as parquet:
        rounds.measure(own, {PARQUET: parquet})
    return rounds.section(SPARK, THEIRS, GOALS.get(rounds.size))


def _cluster(rounds: Rounds, topic: str, folder: Path) -> Section:
    folder.mkdir()
    connect, settings = rounds.sandbox.zookeeper_connect, rounds.args.settings
    with (
        spark_cluster(folder / "cluster", workers=2) as cluster,
        on_cluster(folder / "daemon", connect, topic, settings, cluster) as side,
    ):
        rounds.measure(topic, {SPARK: side})
    return rounds.section(SPARK, SPARK)


#: The ways to measure a size.
PARTS: Mapping[str, Callable[[Rounds, str, Path], Section]] = {"local": _local, "cluster": _cluster}


def _run_side(side: Side, round: Round, writer: TransactionalWriter) -> Run:
    before = processor_seconds(*side.pids)
    began = time.perf_counter()
    writer.commit()
    side.read(round)
    seconds = time.perf_counter() - began
    after = processor_seconds(*side.pids)
    return Run(round.records, seconds, {name: after[name] - before.get(name, 0.0) for name in after})


def _checked(written: pa.Table, round: Round, name: str) -> pa.Table:
    """In order, once it is certain that these are the round's offsets, exactly once."""
    written = written.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()
    offsets = [range(round.first, round.until)] * round.partitions
    wanted = pa.array([offset for each in offsets for offset in each], pa.int64())
    if written["offset"].combine_chunks() != wanted or pc.count_distinct(written["partition"]).as_py() != PARTITIONS:
        raise AssertionError(f"{name} has written {written.num_rows} rows of {round}, which are not its offsets")
    return written


class TransactionalWriter:
    """Writes one round after the other; a round is readable from `commit` on. A quarter of each value is random."""

    def __init__(self, bootstrap: str, size: int) -> None:
        self._noise = os.urandom(1 << 20)
        self._random = size // 4
        self._rest = b"." * (size - self._random)
        self._open = False
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{size}",
                "transaction.timeout.ms": 300_000,
                "linger.ms": 50,
                "batch.size": 1 << 18,
                "queue.buffering.max.messages": 200_000,
            }
        )
        self._producer.init_transactions(60.0)

    def write(self, round: Round) -> None:
        """No value occurs twice, so that a dictionary encoding does not help."""
        producer = self._producer
        producer.begin_transaction()
        self._open = True
        for number in range(round.records):
            start = number * 7 % (len(self._noise) - self._random)
            value = number.to_bytes(8, "big") + self._noise[start : start + self._random - 8] + self._rest
            while True:
                try:
                    producer.produce(round.topic, value, partition=number % round.partitions)
                    break
                except BufferError:
                    producer.poll(0.05)
        if producer.flush(120.0):
            raise TimeoutError("the broker does not take the records")

    def commit(self) -> None:
        """Does nothing if already committed."""
        if self._open:
            self._producer.commit_transaction(60.0)
            self._open = False


if __name__ == "__main__":
    sys.exit(main())
