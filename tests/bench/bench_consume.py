"""How fast and how dear consuming is, beside other clients: `make bench`. A command, never a test with a time limit.

Owns a sandbox with one broker while it runs. Every run is a process of its own; clients take turns, so that all of them
meet the same moods of the machine; one round before the first that counts warms the broker and the page cache.
Measured is from a client's first record to its last: wall clock, and the processor time of its process alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from confluent_kafka import Producer

from kzconsumer import log
from kzconsumer.sandbox.sandbox import Sandbox
from kzconsumer.sandbox.topics import create_topic
from tests.bench.client import CLIENTS, Source
from tests.bench.report import Section, lines, report, show
from tests.bench.stopwatch import Measurement

BROKER = "3.9.1"
PARTITIONS = 4
REFERENCE = "confluent-kafka consume(1000)"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Different ones: prime, so that every partition gets all of them, and too many for a codec's window.
VALUES = 10_007
# A broker under measurement: with the optimising compiler, which the quick start of a sandbox leaves out.
TUNING = ("-XX:+UseSerialGC",)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make bench", description="Consuming, beside other clients.")
    arguments.add_argument("--size", type=int, nargs="+", default=[100], metavar="BYTES", help="of values (100)")
    arguments.add_argument("--codec", nargs="+", default=["none"], choices=CODECS, help="of batches (none)")
    arguments.add_argument("--records", type=int, default=2_000_000, help="2,000,000; of 1 KiB at most a quarter of it")
    arguments.add_argument("--repetitions", type=int, default=3, help="runs of each client that count (3)")
    arguments.add_argument("--clients", nargs="+", default=list(CLIENTS), choices=list(CLIENTS), metavar="NAME")
    arguments.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    args = arguments.parse_args()
    log.configure("warning", "console")
    if REFERENCE not in args.clients:
        args.clients.append(REFERENCE)
    anyio.run(_run, args)
    return 0


async def _run(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kzconsumer-bench-") as folder:
        async with Sandbox(Path(folder), BROKER, 1, heap="512m", tuning=TUNING) as sandbox:
            sections = [await _measure(sandbox, args, size, codec) for size in args.size for codec in args.codec]
    show(report(BROKER, PARTITIONS, sections), as_json=args.json)


async def _measure(sandbox: Sandbox, args: argparse.Namespace, size: int, codec: str) -> Section:
    # Half a GiB at most: it has to stay in the page cache.
    records = min(args.records, 2**29 // size) // PARTITIONS * PARTITIONS
    source = Source(sandbox.zookeeper_connect, sandbox.bootstrap, f"bench-{size}-{codec}", records)
    _tell(f"producing {records:,} x {size} B, {codec}")
    await create_topic(source.zookeeper, source.topic, PARTITIONS)
    await anyio.to_thread.run_sync(partial(fill, source, size, codec))
    runs: dict[str, list[Measurement]] = {client: [] for client in args.clients}
    for repetition in range(args.repetitions + 1):
        for client in args.clients:
            measured = await _run_client(client, source)
            _tell(f"{repetition}/{args.repetitions} {client}: {measured.rate / 1000:,.0f} k msg/s")
            if repetition > 0:
                runs[client].append(measured)
    return Section(size=size, codec=codec, records=records, lines=lines(runs, REFERENCE))


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
    command = [sys.executable, "-m", "tests.bench.client", client, *map(str, msgspec.structs.astuple(source))]
    done = await anyio.run_process(command, stderr=None)
    return msgspec.json.decode(done.stdout, type=Measurement)


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)
