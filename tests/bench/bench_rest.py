"""A consumer at rest: processor time, memory and delays while few records come, and how that grows with the partitions.

Called by `bench_consume`; each run is a process of its own, and the clients take turns. Measured is a process that has
joined its group and has read: all of its processor time, as Linux counts it, over some seconds. For Java that is
`kafka-console-consumer`, whose delays include a pipe.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec
from confluent_kafka import Producer

from tests.bench.delay_client import CLIENTS
from tests.bench.java_clients import console_consumer
from tests.bench.report import RestLine, RestSection
from tests.bench.source import Source

SECONDS = 20.0
SETTLING = 3.0
"""Seconds after the first message that do not count."""
_LIMIT = 120.0
_CPUCLOCK_SCHED = 2
"""As `clock_getcpuclockid` of glibc makes the number of a process's clock."""
JAVA = "Java 3.9.1"
REST_CLIENTS = (*CLIENTS, JAVA)
END = b"end"


class RestRun(msgspec.Struct, frozen=True):
    """One run of one client."""

    cores: float
    """Processor seconds per second."""
    broker_cores: float
    peak_rss: int
    """Bytes."""
    p50: float
    """Seconds from `produce` to the application; 0.0 without records."""
    p99: float


def measure_rest(
    source: Source, client: str, *, partitions: int, rate: int, broker_pid: int, seconds: float = SECONDS
) -> RestRun:
    """Of a client that reads `source.topic` while `rate` records per second come, to one partition after the other."""
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 0, "acks": 1})
    process = _start(client, source)
    output = _Output(process, values=client == JAVA)
    produced = 0

    def produce(value: bytes) -> None:
        nonlocal produced
        producer.produce(source.topic, value, partition=produced % partitions)
        produced += 1
        producer.poll(0)

    try:
        began = time.monotonic()
        while not output.ready.wait(0.1):
            produce(b"0")
            if process.poll() is not None or time.monotonic() - began > _LIMIT:
                raise RuntimeError(f"{client} has not read within {_LIMIT} s")
        time.sleep(SETTLING + partitions / 1000)  # the first message may come before all are read
        before, broker_before, began = cpu_seconds(process.pid), cpu_seconds(broker_pid), time.monotonic()
        if rate:
            for number in range(int(rate * seconds)):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                produce(repr(time.monotonic()).encode())
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        took = time.monotonic() - began
        cores = (cpu_seconds(process.pid) - before) / took
        broker_cores = (cpu_seconds(broker_pid) - broker_before) / took
        peak_rss = _peak_rss(process.pid)
        if client != JAVA:
            produce(END)
            producer.flush(5.0)
            process.wait(_LIMIT)
    finally:
        process.kill()
        process.wait()
        output.thread.join()
    cuts = statistics.quantiles(output.delays, n=100) if len(output.delays) > 1 else [0.0] * 99
    return RestRun(cores, broker_cores, peak_rss, cuts[49], cuts[98])


def _start(client: str, source: Source) -> subprocess.Popen[bytes]:
    if client == JAVA:
        command = console_consumer(source)
    else:
        command = [sys.executable, "-m", "tests.bench.delay_client", "rest", client]
        command += [source.zookeeper, source.bootstrap, source.topic, "0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if client == JAVA else None)


class _Output:
    """Reads what a client writes: a line once it has read, and its delays at the end; or (`values`) each record."""

    def __init__(self, process: subprocess.Popen[bytes], *, values: bool) -> None:
        self.ready = threading.Event()
        self.delays: list[float] = []
        assert process.stdout is not None
        self.thread = threading.Thread(target=self._read, args=(process.stdout, values), daemon=True)
        self.thread.start()

    def _read(self, lines: IO[bytes], values: bool) -> None:
        for line in lines:
            at = time.monotonic()
            if not self.ready.is_set():
                self.ready.set()
            elif not values:
                self.delays = msgspec.json.decode(line, type=list[float])
            elif line != b"0\n":
                self.delays.append(at - float(line))


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process. To the nanosecond, where /proc has hundredths of seconds."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def _peak_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no VmHWM of process {pid}")


def rest_section(partitions: int, rate: int, runs: Mapping[str, Sequence[RestRun]]) -> RestSection:
    """The medians of each client's figures."""

    def median(client: str, figure: str) -> float:
        return statistics.median([float(getattr(run, figure)) for run in runs[client]])

    return RestSection(
        f"{partitions:,} partitions, {rate} records a second",
        partitions,
        rate,
        tuple(
            RestLine(client, *(median(client, name) for name in ("cores", "broker_cores", "peak_rss", "p50", "p99")))
            for client in runs
        ),
    )
