"""Wall clock and processor time up to the last record, in the process that consumes: from the first record, and whole.

Made by `tests.bench.client`; its result becomes one `Measurement` of the benchmark.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec


class Measurement(msgspec.Struct, frozen=True):
    """One run of one client."""

    records: int
    """Those after the first message or batch, whose arrival started the clocks."""
    seconds: float
    cpu_seconds: float
    """User and system time of all threads of the consuming process."""
    peak_rss: int
    """Bytes, since the process began."""
    first: float
    """Seconds from the client's construction to the first message or batch."""
    whole_seconds: float
    """Seconds from the start of the process to the last record: imports and joining the group included."""
    whole_cpu_seconds: float
    """User and system time of all threads of the process in that time."""

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds for a million records."""
        return self.cpu_seconds / self.records * 1e6


STARTED = "KZCONSUMER_BENCH_STARTED"
"""This variable holds the time when the process was started (CLOCK_MONOTONIC, the same for all processes)."""


class Stopwatch:
    """`start` when the first `count` records have arrived, `stop` at the last of all."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self._first = 0
        self._wall = self._cpu = 0.0

    def start(self, count: int) -> None:
        self._first = count
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def stop(self, count: int) -> Measurement:
        """`count`: all records, the first ones included."""
        wall, cpu = time.perf_counter(), time.process_time()
        return Measurement(
            records=count - self._first,
            seconds=wall - self._wall,
            cpu_seconds=cpu - self._cpu,
            peak_rss=_peak_rss(),
            first=self._wall - self._made,
            whole_seconds=time.monotonic() - float(os.environ[STARTED]),
            whole_cpu_seconds=cpu,  # of this process since it began
        )


def _peak_rss() -> int:
    """Of this program only: the value of getrusage would include the process that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("no VmHWM in /proc/self/status")
