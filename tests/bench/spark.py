"""From a broker into snappy Parquet, our Spark sink compared with Spark's own Kafka source: `make bench-spark`.

Runs a ZooKeeper, a broker and both sides. A round is one transaction of records, which both read with isolation
read_committed: so all of it becomes readable at one moment, for which our daemon, in its group and with a warm JVM like
Spark's session, has been waiting. Measured is from that moment until all is written: wall clock, and the processor time
of the whole tree of processes. Then both sides' records are compared, one by one. The sides take turns, and rounds
before the first that counts warm the JVMs. The sink `parquet`, which needs no Spark, follows in rounds of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.jars import find_java, resolve_jars
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topics import create_topic
from tests.bench.process_tree import processor_seconds
from tests.bench.report import Spread
from tests.bench.spark_sides import Round, Side, ours, theirs
from tests.bench.spark_source import JARS

BROKER = "3.9.1"
PARTITIONS = 4
TUNING = ("-XX:+UseSerialGC",)
#: Our rate and processor time, as multiples of theirs, by bytes of a value.
GOALS: Mapping[int, tuple[float, float]] = {100: (3.0, 0.45), 1024: (1.15, 0.95)}
SPARK, PARQUET, THEIRS = "the sink spark", "the sink parquet", "Spark's own source"
RECORDS: Mapping[int, int] = {100: 2_000_000, 1024: 500_000}


class Run(msgspec.Struct, frozen=True):
    """One round of one side."""

    records: int
    seconds: float
    cpu_seconds: dict[str, float]
    """Of the process itself ("root"), and of those it has started by their program.

    What a child has cost moves to its parent's program when it ends, so that one may be negative; their sum is right.
    """

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds for a million records, all processes."""
        return sum(self.cpu_seconds.values()) / self.records * 1e6


class Line(msgspec.Struct, frozen=True):
    side: str
    rate: Spread
    cpu_per_million: Spread
    of_it: dict[str, float]
    """The median of each program's processor seconds for a million records."""
    runs: tuple[Run, ...]


class Section(msgspec.Struct, frozen=True):
    """One size of values. The ratios are our Spark sink to Spark's own source, of medians; then their goals."""

    size: int
    records: int
    lines: tuple[Line, ...]
    rate_ratio: float
    cpu_ratio: float
    goals: tuple[float, float] | None


class Report(msgspec.Struct, frozen=True):
    broker: str
    partitions: int
    processors: int
    settings: str
    """Settings other than our defaults."""
    sections: tuple[Section, ...]


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.bench.spark", description="Into Parquet, compared with Spark's own Kafka source."
    )
    arguments.add_argument("--size", type=int, nargs="+", default=list(RECORDS), metavar="BYTES", help="(100 1024)")
    arguments.add_argument("--records", type=int, help="of each size and round (2,000,000 of 100 B, 500,000 of 1 KiB)")
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
    for section in found.sections:
        console.print(table(found, section))
    return 0


async def _run(args: argparse.Namespace) -> Report:
    await anyio.to_thread.run_sync(lambda: resolve_jars(JARS, find_java()))
    sections = []
    console = Console(stderr=True)
    steps = len(args.size) * (args.repetitions + args.warm) * (2 if args.ours_alone else 3)
    with tempfile.TemporaryDirectory(prefix="kzconsumer-bench-") as folder, Progress(console=console) as progress:
        task = progress.add_task("starting", total=steps)

        def print_line(what: str, done: int) -> None:
            progress.update(task, description=what, advance=done)
            if not console.is_terminal:
                print(what, file=sys.stderr, flush=True)

        config = {"transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1}
        async with Sandbox(Path(folder), BROKER, 1, heap="512m", tuning=TUNING, config=config) as sandbox:
            for size in args.size:
                topic = f"bench-{size}"
                for each in (topic, f"{topic}-parquet"):
                    await create_topic(sandbox.zookeeper_connect, each, PARTITIONS)
                # In this thread: the processes that it starts must not outlive it.
                sections.append(_measure(sandbox, args, topic, size, print_line, Path(folder, topic)))
    return Report(BROKER, PARTITIONS, os.cpu_count() or 0, args.settings, tuple(sections))


def _measure(
    sandbox: Sandbox,
    args: argparse.Namespace,
    topic: str,
    size: int,
    print_line: Callable[[str, int], None],
    folder: Path,
) -> Section:
    folder.mkdir()
    each = (args.records or RECORDS.get(size, 500_000)) // PARTITIONS
    runs: dict[str, list[Run]] = {}
    writer = TransactionalWriter(sandbox.bootstrap, size)

    def measure(topic: str, sides: Mapping[str, Side]) -> None:
        for number in range(args.warm + args.repetitions):
            # Each transaction ends with a marker in every partition, which takes an offset.
            first = number * (each + 1)
            round = Round(topic, PARTITIONS, first, first + each)
            writer.write(round)
            tables = []
            for name, side in sides.items():
                run = _run_side(side, round, writer)
                counts = "" if number >= args.warm else " (to warm up)"
                cost = " ".join(f"{part} {1e6 * took / run.records:.2f}" for part, took in run.cpu_seconds.items())
                print_line(f"{size} B, {name}: {run.rate / 1000:,.0f} k records/s, CPU s/M {cost}{counts}", 1)
                if number >= args.warm:
                    runs.setdefault(name, []).append(run)
                tables.append(_checked(side.take(round), round, name))
            if any(other != tables[0] for other in tables):
                raise AssertionError(f"the two sides have written different records of {round}")

    connect = sandbox.zookeeper_connect
    with ExitStack() as stack:
        sides: dict[str, Side] = {
            SPARK: stack.enter_context(ours(folder / "s", connect, topic, "spark", args.settings))
        }
        if not args.ours_alone:
            sides[THEIRS] = stack.enter_context(theirs(folder / "theirs", sandbox.bootstrap))
        measure(topic, sides)
    own = f"{topic}-parquet"
    with ours(folder / "p", connect, own, "parquet", args.settings) as parquet:
        measure(own, {PARQUET: parquet})
    return section(size, PARTITIONS * each, runs)


def _run_side(side: Side, round: Round, writer: TransactionalWriter) -> Run:
    before = processor_seconds(side.pid)
    began = time.perf_counter()
    writer.commit()
    side.read(round)
    seconds = time.perf_counter() - began
    after = processor_seconds(side.pid)
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


def section(size: int, records: int, runs: Mapping[str, list[Run]]) -> Section:
    lines = []
    for side, each in runs.items():
        programs = sorted({program for run in each for program in run.cpu_seconds})
        of_it = {
            program: Spread.of([run.cpu_seconds.get(program, 0.0) / run.records * 1e6 for run in each]).median
            for program in programs
        }
        rate, cpu = Spread.of([run.rate for run in each]), Spread.of([run.cpu_per_million for run in each])
        lines.append(Line(side, rate, cpu, of_it, tuple(each)))
    by_side = {line.side: line for line in lines}
    our = by_side[SPARK]
    their = by_side.get(THEIRS, our)
    return Section(
        size=size,
        records=records,
        lines=tuple(lines),
        rate_ratio=our.rate.median / their.rate.median,
        cpu_ratio=our.cpu_per_million.median / their.cpu_per_million.median,
        goals=GOALS.get(size),
    )


def table(found: Report, section: Section) -> Table:
    goals = f"; goals {section.goals[0]}x and {section.goals[1]}x" if section.goals else ""
    drawn = Table(
        title=f"{section.records:,} x {section.size} B into snappy Parquet; {found.partitions} partitions, one broker "
        f"{found.broker}; {found.processors} processors",
        caption=f"the sink spark: rate {section.rate_ratio:.2f}x, CPU {section.cpu_ratio:.2f}x{goals}",
        box=box.SIMPLE,
    )
    for name in ("", "k records/s", "min", "max", "CPU s/M", "min", "max", "of it"):
        drawn.add_column(name, justify="right" if name and name != "of it" else "left")
    for line in section.lines:
        rate, cost = line.rate, line.cpu_per_million
        drawn.add_row(
            line.side,
            *(f"{value / 1000:,.0f}" for value in (rate.median, rate.min, rate.max)),
            *(f"{value:.2f}" for value in (cost.median, cost.min, cost.max)),
            ", ".join(f"{program} {seconds:.2f}" for program, seconds in line.of_it.items() if abs(seconds) > 0.01),
        )
    return drawn


if __name__ == "__main__":
    sys.exit(main())
