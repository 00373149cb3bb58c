"""A consumer that keeps up: processor time, memory and delays, and how they grow with partitions, topics and records.

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
from itertools import cycle
from pathlib import Path
from typing import IO, NamedTuple

import msgspec
from confluent_kafka import Producer

from tests.bench.delay_client import CLIENTS, TUNED
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
END, UNTIMED = b"end", b"0"
TICK = 0.001
"""Seconds between two sends to the producer, at least."""
TIMED = 1000
"""Records per second that tell when they were produced, at most."""


class Load(NamedTuple):
    """What the clients read."""

    partitions: int
    """Of all topics together."""
    topics: int
    rate: int
    """Records per second."""
    clients: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.partitions}/{self.topics}/{self.rate}"

    @property
    def topic_names(self) -> list[str]:
        name = f"rest-{self.partitions}-{self.topics}-{self.rate}"
        return [name] if self.topics == 1 else [f"{name}-{number}" for number in range(self.topics)]


LOADS = (
    *(Load(8, 1, rate, REST_CLIENTS) for rate in (0, 10, 100, 1000, 100_000)),
    Load(250, 1, 100, TUNED),
    Load(250, 25, 100, TUNED),
    Load(250, 250, 100, TUNED),
    Load(2000, 1, 100, REST_CLIENTS),
    Load(10_000, 1, 100, TUNED),
)


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


def measure_rest(source: Source, load: Load, client: str, *, broker_pid: int, seconds: float = SECONDS) -> RestRun:
    """Of a client that reads `load` from the topics of `source`, whose partitions have their records in turn."""
    producer = _Producer(source.bootstrap, load)
    process = _start(client, source)
    output = _Output(process, values=client == JAVA)
    try:
        began = time.monotonic()
        while not output.ready.wait(0.1):
            producer.send(UNTIMED)
            if process.poll() is not None or time.monotonic() - began > _LIMIT:
                raise RuntimeError(f"{client} has not read within {_LIMIT} s")
        # The first message may come before all are read, and broker and client have to become warm for this rate.
        producer.keep_rate(time.monotonic(), SETTLING + load.partitions / 1000, timed=False)
        before, broker_before, began = cpu_seconds(process.pid), cpu_seconds(broker_pid), time.monotonic()
        producer.keep_rate(began, seconds)
        took = time.monotonic() - began
        cores = (cpu_seconds(process.pid) - before) / took
        broker_cores = (cpu_seconds(broker_pid) - broker_before) / took
        peak_rss = _peak_rss(process.pid)
        if client != JAVA:
            producer.send(END)
        producer.flush()
        if client != JAVA:
            process.wait(_LIMIT)
    finally:
        process.kill()
        process.wait()
        output.thread.join()
    cuts = statistics.quantiles(output.delays, n=100) if len(output.delays) > 1 else [0.0] * 99
    return RestRun(cores, broker_cores, peak_rss, cuts[49], cuts[98])


class _Producer:
    """One record to each partition in turn."""

    def __init__(self, bootstrap: str, load: Load) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": 1, "queue.buffering.max.messages": 1_000_000}
        )
        self._rate = load.rate
        places = [(topic, number) for number in range(load.partitions // load.topics) for topic in load.topic_names]
        self._places = cycle(places)

    def send(self, value: bytes) -> None:
        topic, partition = next(self._places)
        self._producer.produce(topic, value, partition=partition)
        self._producer.poll(0)

    def keep_rate(self, began: float, seconds: float, *, timed: bool = True) -> None:
        """Send what is due, for so long. `timed`: some of the records say when that was, of a few all."""
        sent, every = 0, max(1, self._rate // TIMED)
        while self._rate and (passed := time.monotonic() - began) < seconds:
            due = int(passed * self._rate) + 1
            for number in range(sent, due):
                self.send(repr(time.monotonic()).encode() if timed and number % every == 0 else UNTIMED)
            sent = due
            time.sleep(max(began + sent / self._rate - time.monotonic(), TICK if self._rate > TIMED else 0.0))
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    def flush(self) -> None:
        self._producer.flush(5.0)


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
            elif line.strip() != UNTIMED:
                self.delays.append(at - float(line))


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process. To the nanosecond, where /proc has hundredths of seconds."""
    return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)


def _peak_rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no VmHWM of process {pid}")


def rest_section(load: Load, runs: Mapping[str, Sequence[RestRun]]) -> RestSection:
    """The medians of each client's figures."""

    def median(client: str, figure: str) -> float:
        return statistics.median([float(getattr(run, figure)) for run in runs[client]])

    where = f" in {load.topics} topics" if load.topics > 1 else ""
    return RestSection(
        f"{load.partitions:,} partitions{where}, {load.rate:,} records a second",
        load.partitions,
        load.topics,
        load.rate,
        tuple(
            RestLine(client, *(median(client, name) for name in ("cores", "broker_cores", "peak_rss", "p50", "p99")))
            for client in runs
        ),
    )
