"""Throughput, cost and latency of consuming, compared with other clients: `make bench`. Never a test with a time limit.

Runs a sandbox with one broker. Every run is a process of its own; clients take turns, so that changes in the load of
the machine affect all of them; one round before the first that counts warms the broker and the page cache. Clients
start cold: no run prepares anything, and only public names of a client are used. Measured is wall clock and processor
time of a client's process from its first record to its last, and of the whole process: from its start to its last
record, with imports and joining the group. With options only a part is run, so that a table can be collected piece by
piece.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from confluent_kafka import Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.bench import bench_delays
from tests.bench.bench_rest import LOADS, SECONDS, Load, RestRun, measure_rest, rest_section
from tests.bench.client import CLIENTS
from tests.bench.delay_client import TUNED
from tests.bench.folder import bench_folder
from tests.bench.java_clients import fetch_jars
from tests.bench.report import DelaySection, RestSection, Section, lines, report, show
from tests.bench.source import Source
from tests.bench.stopwatch import STARTED, Measurement

BROKER = "3.9.1"
PARTITIONS = 4
REFERENCE = "confluent-kafka consume(1000)"
PARTS = ("rate", "long", "latency", "first", "rest")
BUSY = 1000
"""Records per second for which the broker is warmed."""
LONG = 16_000_000
LONG_CLIENTS = (*(client for client in CLIENTS if client.startswith("kzconsumer")), REFERENCE)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Different values: a prime number, so that every partition gets all of them, and too many for a codec's window.
VALUES = 10_007
# The measured broker has the optimising compiler, which the quick start of a sandbox leaves out.
TUNING = ("-XX:+UseSerialGC",)


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Consuming, compared with other clients."
    )
    arguments.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure (all)")
    sizes = [100, 1024, 10_240]
    arguments.add_argument("--size", type=int, nargs="+", default=sizes, metavar="BYTES", help="(100 1024 10240)")
    arguments.add_argument(
        "--codec", nargs="+", default=["none", "lz4", "zstd"], choices=CODECS, help="of batches (none lz4 zstd)"
    )
    arguments.add_argument("--records", type=int, default=2_000_000, help="2,000,000; of 1 KiB at most a quarter of it")
    arguments.add_argument("--repetitions", type=int, default=5, help="runs of each client that count (5)")
    names = ", ".join(f'"{name}"' for name in CLIENTS)
    arguments.add_argument(
        "--clients", nargs="+", default=list(CLIENTS), choices=list(CLIENTS), metavar="NAME", help=names
    )
    loads = [load.name for load in LOADS]
    arguments.add_argument(
        "--rest", nargs="+", default=loads, choices=loads, metavar="PARTITIONS/TOPICS/RATE", help=" ".join(loads)
    )
    arguments.add_argument("--seconds", type=float, default=SECONDS, help=f"of each run of the part rest ({SECONDS:g})")
    arguments.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    args = arguments.parse_args()
    setup.configure("warning", "console")
    if REFERENCE not in args.clients:
        args.clients.append(REFERENCE)
    anyio.run(_run, args)
    return 0


async def _run(args: argparse.Namespace) -> None:
    runs = args.repetitions + 1
    steps = runs * len(args.size) * sum(len(_able(args.clients, codec)) for codec in args.codec) * ("rate" in args.part)
    long_clients = [client for client in args.clients if client in LONG_CLIENTS]
    steps += runs * len(long_clients) * ("long" in args.part)
    steps += runs * len(TUNED) * (("latency" in args.part) + ("first" in args.part))
    loads = [load for load in LOADS if load.name in args.rest]
    steps += args.repetitions * sum(len(load.clients) for load in loads) * ("rest" in args.part)
    sections: list[Section] = []
    delays: list[DelaySection] = []
    rests: list[RestSection] = []
    with bench_folder() as folder, _Progress(steps) as output:
        await anyio.to_thread.run_sync(fetch_jars)
        async with Sandbox(folder, BROKER, 1, heap="512m", tuning=TUNING) as sandbox:
            if "rate" in args.part:
                for size, codec in ((size, codec) for size in args.size for codec in args.codec):
                    # Half a GiB at most: it has to stay in the page cache.
                    records = min(args.records, 2**29 // size)
                    clients = _able(args.clients, codec)
                    sections.append(await _measure(sandbox, args.repetitions, clients, size, codec, records, output))
            if "long" in args.part:
                sections.append(await _measure(sandbox, args.repetitions, long_clients, 100, "none", LONG, output))
            if "latency" in args.part:
                delays.append(await _measure_latency(sandbox, args.repetitions, output))
            if "first" in args.part:
                delays.append(await _measure_first(sandbox, args.repetitions, output))
            if "rest" in args.part:
                rests += [await _measure_rest(sandbox, args.repetitions, load, args.seconds, output) for load in loads]
    show(report(BROKER, PARTITIONS, sections, delays, rests), as_json=args.json)


class _Progress:
    """Progress: a bar on a terminal, otherwise a line for each run."""

    def __init__(self, steps: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True) if sys.stderr.isatty() else None
        self._task = self._bar.add_task("starting", total=steps) if self._bar else None

    def __enter__(self) -> _Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def report_run(self, what: str, *, done: int = 0) -> None:
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=what, advance=done)
        else:
            print(what, file=sys.stderr, flush=True)


async def _measure_latency(sandbox: Sandbox, repetitions: int, output: _Progress) -> DelaySection:
    source = Source(sandbox.zookeeper_connect, sandbox.bootstrap, "", 0)
    runs: dict[str, list[list[float]]] = {client: [] for client in TUNED}

    def make_topic(topic: str) -> None:
        anyio.from_thread.run(create_topic, source.zookeeper, topic, 1)

    for repetition in range(repetitions + 1):
        for client in runs:
            delays = await anyio.to_thread.run_sync(bench_delays.measure_latency, source, make_topic, client)
            output.report_run(f"{repetition}/{repetitions} {client}: {len(delays)} delays", done=1)
            if repetition > 0:
                runs[client].append(delays)
    return bench_delays.latency_section(runs)


async def _measure_first(sandbox: Sandbox, repetitions: int, output: _Progress) -> DelaySection:
    source = Source(sandbox.zookeeper_connect, sandbox.bootstrap, "first", 200_000)
    await create_topic(source.zookeeper, source.topic, PARTITIONS)
    await anyio.to_thread.run_sync(partial(fill, source, 100, "none"))
    runs: dict[str, list[float]] = {client: [] for client in TUNED}
    for repetition in range(repetitions + 1):
        for client in runs:
            first = await anyio.to_thread.run_sync(bench_delays.measure_first, source, client)
            output.report_run(f"{repetition}/{repetitions} {client}: first message after {first:.3f} s", done=1)
            if repetition > 0:
                runs[client].append(first)
    return bench_delays.first_section(runs)


async def _measure_rest(
    sandbox: Sandbox, repetitions: int, load: Load, seconds: float, output: _Progress
) -> RestSection:
    source = Source(sandbox.zookeeper_connect, sandbox.bootstrap, ",".join(load.topic_names), 0)
    for topic in load.topic_names:
        await create_topic(source.zookeeper, topic, load.partitions // load.topics, limit=600.0)
    (broker,) = sandbox.cluster.brokers.values()
    runs: dict[str, list[RestRun]] = {client: [] for client in load.clients}
    measure = partial(measure_rest, source, load, broker_pid=broker.pid, seconds=seconds)
    if load.rate >= BUSY:  # a cold broker would delay the records of the first client
        await anyio.to_thread.run_sync(measure, load.clients[0])
    for repetition in range(1, repetitions + 1):
        for client in runs:
            run = await anyio.to_thread.run_sync(measure, client)
            output.report_run(f"{repetition}/{repetitions} {load.name} {client}: {run.cores:.4f} cores", done=1)
            runs[client].append(run)
    return rest_section(load, runs)


async def _measure(
    sandbox: Sandbox,
    repetitions: int,
    clients: Sequence[str],
    size: int,
    codec: str,
    records: int,
    output: _Progress,
) -> Section:
    records = records // PARTITIONS * PARTITIONS
    source = Source(sandbox.zookeeper_connect, sandbox.bootstrap, f"bench-{size}-{codec}-{records}", records)
    output.report_run(f"producing {records:,} x {size} B, {codec}")
    await create_topic(source.zookeeper, source.topic, PARTITIONS)
    await anyio.to_thread.run_sync(partial(fill, source, size, codec))
    runs: dict[str, list[Measurement]] = {client: [] for client in clients}
    for repetition in range(repetitions + 1):
        for client in runs:
            measured = await _run_client(client, source)
            output.report_run(f"{repetition}/{repetitions} {client}: {measured.rate / 1000:,.0f} k msg/s", done=1)
            if repetition > 0:
                runs[client].append(measured)
    return Section(size=size, codec=codec, records=records, lines=lines(runs, REFERENCE))


def _able(clients: Sequence[str], codec: str) -> list[str]:
    return [client for client in clients if codec not in CLIENTS[client].unknown_codecs]


def fill(source: Source, size: int, codec: str) -> None:
    """The same number of records in each partition, a quarter of every value random."""
    producer = Producer(
        {
            "bootstrap.servers": source.bootstrap,
            "compression.type": codec,
            "linger.ms": 50,
            "batch.size": 1 << 18,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    noise = random.Random(size)
    values = [noise.randbytes(size // 4) + b"." * (size - size // 4) for _ in range(VALUES)]
    for number in range(source.records):
        while True:
            try:
                producer.produce(source.topic, values[number % VALUES], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60.0):
        raise TimeoutError("the broker does not take the records")


async def _run_client(client: str, source: Source) -> Measurement:
    source = msgspec.structs.replace(source, records=int(source.records * CLIENTS[client].share))
    command = [sys.executable, "-m", "tests.bench.client", client, *map(str, msgspec.structs.astuple(source))]
    environment = {**os.environ, STARTED: repr(time.monotonic())}
    done = await anyio.run_process(command, stderr=None, env=environment)
    return msgspec.json.decode(done.stdout, type=Measurement)
