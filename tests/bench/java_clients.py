"""Kafka's own consumers, measured through their performance tools: the Java one of 3.9.1, the Scala one of 1.1.1.

Called by `tests.bench.client`. The rate is the tool's own: for Java without the time of the group's first rebalance,
for Scala from the first to the last record. The processor time is that of a run, minus that of a run of a thousand
records, so that the start of the JVM does not count. The whole run is that of the process, the start and end of its JVM
included.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from kzconsumer_sandbox.servers.jars import NEWEST, classpath, find_java, kafka_version, resolve_jars
from tests.bench.source import Source
from tests.bench.stopwatch import Measurement
from tests.support.jars import SETS, fetched

JAVA, SCALA = NEWEST.number, "1.1.1"
_TOOLS = f"tools-{JAVA}"
_HEAP = "-Xmx512m"
_FEW = 1000


class _Run(NamedTuple):
    seconds: float
    cpu_seconds: float
    peak_rss: int
    before: float
    """Seconds until consuming began."""
    whole_seconds: float
    """Of the process."""


def fetch_jars() -> None:
    """Downloads what the tools need, unless this user already has it. Blocks."""
    for jars in (NEWEST.jars, SETS[_TOOLS], kafka_version(SCALA).jars):
        resolve_jars(jars)


def read_java(source: Source) -> Measurement:
    """`org.apache.kafka.tools.ConsumerPerformance`, without the time of its group's first rebalance."""
    jars = f"{classpath(resolve_jars(NEWEST.jars))}:{classpath(fetched(_TOOLS))}"
    tool = [jars, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", source.bootstrap]

    def run(records: int) -> _Run:
        line, process = _tool([*tool, "--topic", source.topic, "--group", uuid.uuid4().hex], records)
        # start.time, end.time, MB, MB/s, records, records/s, rebalance.time.ms, fetch.time.ms, ...
        return process._replace(seconds=float(line[7]) / 1000, before=float(line[6]) / 1000)

    return _measured(run(_FEW), run(source.records), source.records)


def console_consumer(source: Source) -> list[str]:
    """The command of `kafka-console-consumer`, which writes the value of each new record of the topic on a line."""
    jars = f"{classpath(resolve_jars(NEWEST.jars))}:{classpath(fetched(_TOOLS))}"
    tool = [str(find_java()), _HEAP, "-cp", jars, "org.apache.kafka.tools.consumer.ConsoleConsumer"]
    return [*tool, "--bootstrap-server", source.bootstrap, "--topic", source.topic]


def read_scala(source: Source) -> Measurement:
    """`kafka.tools.ConsumerPerformance` with one stream of the original consumer."""
    jars = classpath(resolve_jars(kafka_version(SCALA).jars))
    tool = [jars, "kafka.tools.ConsumerPerformance", "--zookeeper", source.zookeeper, "--threads", "1"]

    def run(records: int) -> _Run:
        line, process = _tool([*tool, "--topic", source.topic, "--group", uuid.uuid4().hex], records)
        # start.time, end.time, MB, MB/s, records, records/s
        return process._replace(seconds=records / float(line[5]))

    return _measured(run(_FEW), run(source.records), source.records)


def _measured(few: _Run, all_of_them: _Run, records: int) -> Measurement:
    return Measurement(
        records=records,
        seconds=all_of_them.seconds,
        cpu_seconds=max(all_of_them.cpu_seconds - few.cpu_seconds, 0.0) * records / (records - _FEW),
        peak_rss=all_of_them.peak_rss,
        first=all_of_them.before,
        whole_seconds=all_of_them.whole_seconds,
        whole_cpu_seconds=all_of_them.cpu_seconds,
    )


def _tool(arguments: list[str], records: int) -> tuple[list[str], _Run]:
    """The figures of the tool's last line, and the cost of its process."""
    with tempfile.TemporaryDirectory(prefix="kzconsumer-bench-") as folder:
        out = Path(folder, "out")
        command = [str(find_java()), _HEAP, "-cp", *arguments, "--messages", str(records)]
        with out.open("wb") as file:
            began = time.monotonic()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(process.pid, 0)
            whole = time.monotonic() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        lines = [line.split(",") for line in out.read_text().splitlines() if line[:2] == "20"]
        if process.returncode != 0 or not lines or float(lines[-1][4]) < records:
            raise RuntimeError(f"{arguments[1]} ended with {process.returncode} and printed {lines}")
    return lines[-1], _Run(0.0, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, 0.0, whole)
