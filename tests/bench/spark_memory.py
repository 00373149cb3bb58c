"""Memory of a streaming query of `GroupSource`, by process, record size and sink: `python -m tests.bench.spark_memory`.

Each case is one batch of one query in a `local[2]` session of its own, whose JVM has 1 GiB of heap. Reported is the
largest resident memory (proc(5), `VmHWM`) of the driver's Python, the JVM, the source's process and of the largest
worker of a task.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio
from pyspark.sql import DataFrame

from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark import GroupSource
from tests.bench.folder import bench_folder
from tests.bench.spark_source import session_in
from tests.support.producing import Sent, produce

BROKER, PARTITIONS = "3.9.1", 4
SINKS = ("noop", "parquet", "toArrow")
_PARTS: Mapping[str, str] = {"python_streaming_source_runner": "source", "pyspark.daemon": "worker of a task"}


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench.spark_memory")
    arguments.add_argument("--size", type=int, nargs="+", default=[100, 10_240], metavar="BYTES", help="(100 10240)")
    arguments.add_argument("--records", type=int, default=500_000, help="of a batch (500,000)")
    arguments.add_argument("--sink", nargs="+", choices=SINKS, default=list(SINKS))
    arguments.add_argument("--min-partitions", default="1")
    arguments.add_argument("--case", nargs=3, metavar=("CONNECT", "TOPIC", "SCRATCH"), help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.case:
        connect, topic, scratch = args.case
        _case(connect, topic, Path(scratch), args)
    else:
        anyio.run(_run, args)


async def _run(args: argparse.Namespace) -> None:
    with bench_folder() as folder:
        async with Sandbox(folder, BROKER, 1, heap="512m") as sandbox:
            for size in args.size:
                topic = f"memory-{size}"
                await create_topic(sandbox.zookeeper_connect, topic, PARTITIONS)
                # In this thread: the processes that it starts must not outlive it.
                _measure(sandbox, topic, size, folder, args)


def _measure(sandbox: Sandbox, topic: str, size: int, folder: Path, args: argparse.Namespace) -> None:
    values = [random.Random(n).randbytes(size) for n in range(100)]  # no codec makes them smaller
    records = (Sent(n % PARTITIONS, None, values[n % 100]) for n in range(args.records))
    produce(sandbox.bootstrap, BROKER, topic, records, limit=600)
    for sink in args.sink:
        command = [sys.executable, "-m", "tests.bench.spark_memory", "--sink", sink, "--records", str(args.records)]
        command += ["--min-partitions", args.min_partitions]
        command += ["--case", sandbox.zookeeper_connect, topic, str(folder / f"{topic}-{sink}")]
        done = subprocess.run(command, env=os.environ | {"PYSPARK_PYTHON": sys.executable}, check=False)
        if done.returncode:
            print(f"{topic}, {sink}: failed, as printed above", flush=True)


def _case(connect: str, topic: str, scratch: Path, args: argparse.Namespace) -> None:
    (sink,) = args.sink
    scratch.mkdir()
    session = session_in(str(scratch), {})
    session.dataSource.register(GroupSource)
    gateway = session.sparkContext._gateway
    assert gateway is not None
    options = {"zookeeper.connect": connect, "group.id": f"{topic}-{sink}", "topics": topic}
    options |= {"maxRecordsPerBatch": str(args.records), "minPartitions": args.min_partitions}
    written = session.readStream.format("kzconsumer").options(**options).load().writeStream

    def collect(frame: DataFrame, number: int) -> None:
        print(f"{frame.toArrow().num_rows:,} rows at the driver", flush=True)

    to = written.foreachBatch(collect) if sink == "toArrow" else written.format(sink).option("path", f"{scratch}/out")
    with _peaks(gateway.proc.pid) as peaks:
        query = to.option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
    batches = [batch["numInputRows"] for batch in query.recentProgress if batch["numInputRows"]]
    shown = ", ".join(f"{name} {peak // 1024} MiB" for name, peak in sorted(peaks.items()))
    print(f"{topic}, {sink}, batches of {batches}: {shown}", flush=True)
    session.stop()


@contextmanager
def _peaks(jvm: int) -> Iterator[dict[str, int]]:
    """In KiB, and complete at the end of the block."""
    peaks: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for pid in (os.getpid(), *_below(jvm)):
                name = "driver" if pid == os.getpid() else "JVM" if pid == jvm else _name(pid)
                if name:
                    peaks[name] = max(peaks.get(name, 0), _peak(pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def _below(pid: int) -> Iterator[int]:
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _text(file).split():
            yield from _below(int(child))


def _name(pid: int) -> str | None:
    command = _text(Path(f"/proc/{pid}/cmdline"))
    return next((name for part, name in _PARTS.items() if part in command), None)


def _peak(pid: int) -> int:
    lines = _text(Path(f"/proc/{pid}/status")).splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _text(file: Path) -> str:
    """Empty once the process has ended."""
    try:
        return file.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
