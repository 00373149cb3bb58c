"""Latency: from `produce` to the application on an idle topic, and from the start of a process to its first message.

Called by `bench_consume`; each run is a process of `tests.bench.delay_client`, and the clients take turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

import msgspec
from confluent_kafka import Producer

from tests.bench.delay_client import TUNED
from tests.bench.report import DelayLine, DelaySection, Spread
from tests.bench.source import Source

MESSAGES = 500
PAUSE = 0.01
_LIMIT = 60.0


def measure_latency(source: Source, make_topic: Callable[[str], None], client: str) -> list[float]:
    """Seconds of each message, a message every 10 ms, on a topic of its own."""
    topic = f"latency-{uuid.uuid4().hex}"
    make_topic(topic)
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 0, "acks": 1})
    process = _start("latency", client, source, topic)
    until = time.monotonic() + _LIMIT
    while process.poll() is None:
        if time.monotonic() > until:
            process.kill()
            raise TimeoutError(f"{client} has not received {MESSAGES} messages in {_LIMIT} s")
        producer.produce(topic, repr(time.monotonic()).encode())
        producer.flush(1.0)
        time.sleep(PAUSE)
    return msgspec.json.decode(_output(process, client), type=list[float])


def measure_first(source: Source, client: str) -> float:
    """Seconds from the start of a process to its first message of a full topic."""
    began = time.monotonic()
    process = _start("first", client, source, source.topic)
    return msgspec.json.decode(_output(process, client), type=float) - began


def latency_section(runs: Mapping[str, Sequence[Sequence[float]]]) -> DelaySection:
    """p50 and p99 of each run, and their spread across the runs."""
    lines = []
    for client, each in runs.items():
        cuts = [statistics.quantiles(run, n=100) for run in each]
        lines.append(DelayLine(client, "p50", Spread.of([cut[49] for cut in cuts])))
        lines.append(DelayLine(client, "p99", Spread.of([cut[98] for cut in cuts])))
    return DelaySection(
        f"produce to application, a message every {PAUSE * 1000:.0f} ms, {MESSAGES} a run", tuple(lines)
    )


def first_section(runs: Mapping[str, Sequence[float]]) -> DelaySection:
    lines = tuple(DelayLine(client, "first message", Spread.of(each)) for client, each in runs.items())
    return DelaySection("start of the process to its first message", lines)


def _start(what: str, client: str, source: Source, topic: str) -> subprocess.Popen[bytes]:
    assert client in TUNED
    arguments = [what, client, source.zookeeper, source.bootstrap, topic, str(MESSAGES)]
    return subprocess.Popen([sys.executable, "-m", "tests.bench.delay_client", *arguments], stdout=subprocess.PIPE)


def _output(process: subprocess.Popen[bytes], client: str) -> bytes:
    out, _ = process.communicate(timeout=_LIMIT)
    if process.returncode != 0:
        raise RuntimeError(f"{client} ended with {process.returncode}")
    return out
