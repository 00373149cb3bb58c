"""The results of the benchmark, as a table or as JSON.

Called by `bench_consume`. Only `show` writes to standard output.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import msgspec
from rich.console import Console
from rich.table import Table

from tests.bench.stopwatch import Measurement

COLUMNS = ("client", "k msg/s", "min", "max", "CPU s/M", "peak MiB", "rate", "CPU", "whole s", "CPU s")
LEGEND = """\
Every client starts cold, in a process of its own; only its public names are used. From the first record to the last:
k msg/s, CPU s/M (processor seconds for a million records), and both with confluent-kafka = 1 (rate, CPU). From the
start of the process to the last record, with imports and joining the group: whole s, CPU s. Medians; min and max of
the rate. aiokafka reads a tenth of the records, the original consumer a half.
"""
DELAY_COLUMNS = ("client", "", "ms", "min", "max")
REST_COLUMNS = ("client", "cores", "broker's", "peak MiB", "p50 ms", "p99 ms")


class Spread(msgspec.Struct, frozen=True):
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(min(values), statistics.median(values), max(values))


class Line(msgspec.Struct, frozen=True):
    """The runs of one client. The ratios are those of medians, to the reference client's."""

    client: str
    rate: Spread
    """Records a second."""
    cpu_per_million: Spread
    """Processor seconds of the consuming process for a million records."""
    peak_rss: int
    rate_ratio: float
    cpu_ratio: float
    runs: tuple[Measurement, ...]


class Section(msgspec.Struct, frozen=True):
    """One kind of records."""

    size: int
    """Bytes of a record's value."""
    codec: str
    records: int
    lines: tuple[Line, ...]


class DelayLine(msgspec.Struct, frozen=True):
    client: str
    what: str
    seconds: Spread


class DelaySection(msgspec.Struct, frozen=True):
    """One kind of delay."""

    what: str
    lines: tuple[DelayLine, ...]


class RestLine(msgspec.Struct, frozen=True):
    """A client that keeps up with its records: medians of its runs."""

    client: str
    cores: float
    """Processor seconds per second, of the client's process."""
    broker_cores: float
    peak_rss: float
    """Bytes."""
    p50: float
    """Seconds from `produce` to the application; 0.0 without records. As `p99`."""
    p99: float


class RestSection(msgspec.Struct, frozen=True):
    """One number of partitions and topics at one rate."""

    what: str
    partitions: int
    """Of all topics together."""
    topics: int
    rate: int
    """Records per second."""
    lines: tuple[RestLine, ...]


class Report(msgspec.Struct, frozen=True):
    """All sections of one run, and the machine and versions."""

    broker: str
    partitions: int
    processors: int
    python: str
    librdkafka: str
    sections: tuple[Section, ...]
    delays: tuple[DelaySection, ...]
    rests: tuple[RestSection, ...] = ()


def lines(runs: Mapping[str, Sequence[Measurement]], reference: str) -> tuple[Line, ...]:
    rates = {client: Spread.of([run.rate for run in each]) for client, each in runs.items()}
    costs = {client: Spread.of([run.cpu_per_million for run in each]) for client, each in runs.items()}
    return tuple(
        Line(
            client=client,
            rate=rates[client],
            cpu_per_million=costs[client],
            peak_rss=max(run.peak_rss for run in each),
            rate_ratio=rates[client].median / rates[reference].median,
            cpu_ratio=costs[client].median / costs[reference].median,
            runs=tuple(each),
        )
        for client, each in runs.items()
    )


def report(
    broker: str,
    partitions: int,
    sections: Sequence[Section],
    delays: Sequence[DelaySection],
    rests: Sequence[RestSection] = (),
) -> Report:
    return Report(
        broker=broker,
        partitions=partitions,
        processors=os.cpu_count() or 0,
        python=platform.python_version(),
        librdkafka=version("confluent-kafka"),
        sections=tuple(sections),
        delays=tuple(delays),
        rests=tuple(rests),
    )


def title(found: Report, section: Section) -> str:
    return (
        f"{section.records:,} x {section.size} B, {section.codec}; {found.partitions} partitions, one broker "
        f"{found.broker}; {found.processors} processors, Python {found.python}, confluent-kafka {found.librdkafka}"
    )


def cells(line: Line) -> tuple[str, ...]:
    rate, cost = line.rate, line.cpu_per_million
    return (
        line.client,
        *(f"{value / 1000:,.0f}" for value in (rate.median, rate.min, rate.max)),
        f"{cost.median:.3f}",
        f"{line.peak_rss / 2**20:.0f}",
        f"{line.rate_ratio:.2f}x",
        f"{line.cpu_ratio:.2f}x",
        f"{statistics.median(run.whole_seconds for run in line.runs):.2f}",
        f"{statistics.median(run.whole_cpu_seconds for run in line.runs):.2f}",
    )


def show(found: Report, *, as_json: bool) -> None:
    """A drawn table on a terminal, otherwise one of plain text."""
    if as_json:
        print(msgspec.json.encode(found).decode())
        return
    print(LEGEND)
    for section in found.sections:
        _print_table(title(found, section), [COLUMNS, *(cells(line) for line in section.lines)])
    for delays in found.delays:
        _print_table(delays.what, [DELAY_COLUMNS, *(delay_cells(line) for line in delays.lines)])
    for rest in found.rests:
        _print_table(rest.what, [REST_COLUMNS, *(rest_cells(line) for line in rest.lines)])


def delay_cells(line: DelayLine) -> tuple[str, ...]:
    seconds = line.seconds
    return (line.client, line.what, *(f"{1000 * each:,.2f}" for each in (seconds.median, seconds.min, seconds.max)))


def rest_cells(line: RestLine) -> tuple[str, ...]:
    return (
        line.client,
        f"{line.cores:.4f}",
        f"{line.broker_cores:.3f}",
        f"{line.peak_rss / 2**20:.0f}",
        f"{1000 * line.p50:.2f}",
        f"{1000 * line.p99:.2f}",
    )


def _print_table(heading: str, rows: Sequence[Sequence[str]]) -> None:
    if not sys.stdout.isatty():
        print(plain(heading, rows))
        return
    table = Table(title=heading)
    for number, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if number else "left")
    for row in rows[1:]:
        table.add_row(*row)
    Console().print(table)


def plain(heading: str, rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    return "\n".join(
        [
            heading,
            *("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows),
            "",
        ]
    )
