"""What a query that waits costs, and what its waiting adds to a batch: `python -m tests.bench.spark_wait`.

A daemon with the sink `spark` and default settings, into Parquet, with a warm JVM. First no record arrives: measured is
the processor time of all its processes, as a share of one processor. Then one record arrives after the other, at random
moments, each a batch by itself. The log says of each batch how long writing it took, and what of that
foreachBatch took; the rest is what the query adds: until it looks, its own record of the batch, and messages. The
broker and ZooKeeper are not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import anyio
import anyio.to_thread
from confluent_kafka import Producer
from rich import box
from rich.console import Console
from rich.table import Table

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.bench.folder import bench_folder
from tests.bench.process_tree import processor_seconds
from tests.bench.spark import BROKER, TUNING
from tests.bench.spark_sides import ours

TOPIC = "waiting"
WARM = 30
PAUSE = (0.3, 1.3)


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench.spark_wait", description="An idle query, and waits")
    arguments.add_argument("--seconds", type=int, default=60, help="without records (60)")
    arguments.add_argument("--batches", type=int, default=100, help="of one record (100)")
    args = arguments.parse_args()
    setup.configure("warning", "console")
    anyio.run(_run, args.seconds, args.batches)
    return 0


async def _run(seconds: int, batches: int) -> None:
    with bench_folder() as folder:
        async with Sandbox(folder, BROKER, 1, heap="512m", tuning=TUNING) as sandbox:
            await create_topic(sandbox.zookeeper_connect, TOPIC, 1)
            await anyio.to_thread.run_sync(_measure, folder, sandbox, seconds, batches)


def _measure(folder: Path, sandbox: Sandbox, seconds: int, batches: int) -> None:
    with ours(folder / "daemon", sandbox.zookeeper_connect, TOPIC, "spark", "") as side:
        producer = Producer({"bootstrap.servers": sandbox.bootstrap})
        log = folder / "daemon" / "log"
        _one_by_one(producer, log, WARM)
        time.sleep(5)
        before = processor_seconds(*side.pids)
        time.sleep(seconds)
        after = processor_seconds(*side.pids)
        written = _one_by_one(producer, log, batches)[WARM:]
    shares = {name: 100 * (after[name] - before.get(name, 0.0)) / seconds for name in after}
    writing = [each["seconds"]["write"] for each in written]
    rest = [1000 * (took - each["foreach_batch"]) for took, each in zip(writing, written, strict=True)]
    console = Console(width=None if sys.stdout.isatty() else 120)
    idle = Table("program", "% of a processor", box=box.SIMPLE, title=f"idle for {seconds} s")
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        idle.add_row("the daemon" if name == "root" else name, f"{share:.2f}")
    idle.add_row("all", f"{sum(shares.values()):.2f}")
    console.print(idle)
    added = Table("ms", "median", "95th percentile", "largest", box=box.SIMPLE, title=f"{len(written)} batches")
    for name, of_it in (
        ("writing", [1000 * took for took in writing]),
        ("of it foreachBatch", [1000 * each["foreach_batch"] for each in written]),
        ("the rest: what the query adds", rest),
    ):
        added.add_row(name, f"{median(of_it):.0f}", f"{quantiles(of_it, n=20)[-1]:.0f}", f"{max(of_it):.0f}")
    console.print(added)


def _one_by_one(producer: Producer, log: Path, number: int) -> list[dict[str, Any]]:
    """All batches that the log has in the end, of one record each."""
    chance = random.Random(1)
    for _ in range(number):
        before = len(_written(log))
        producer.produce(TOPIC, b"v")
        producer.flush(30)
        deadline = time.monotonic() + 120
        while len(_written(log)) == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the daemon has written no batch:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        time.sleep(chance.uniform(*PAUSE))
    return _written(log)


def _written(log: Path) -> list[dict[str, Any]]:
    events = (json.loads(line) for line in log.read_text().splitlines() if '"batch written"' in line)
    return [event for event in events if "foreach_batch" in event]


if __name__ == "__main__":
    sys.exit(main())
