"""What `make bench-spark` measures: runs, and the tables and JSON made of them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich import box
from rich.table import Table

from tests.bench.report import Spread


class Run(msgspec.Struct, frozen=True):
    """One round of one side."""

    records: int
    seconds: float
    cpu_seconds: dict[str, float]
    """Of the process itself ("root"), and of those it has started by their program.

    What a child has cost moves to its parent's program when it ends, so that one may be negative; their sum is right.
    """

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds for a million records, all processes."""
        return sum(self.cpu_seconds.values()) / self.records * 1e6


class Line(msgspec.Struct, frozen=True):
    side: str
    rate: Spread
    cpu_per_million: Spread
    of_it: dict[str, float]
    """The median of each program's processor seconds for a million records."""
    runs: tuple[Run, ...]


class Section(msgspec.Struct, frozen=True):
    """One size of values. The ratios are those of `compared` to another side, of medians; then their goals."""

    size: int
    records: int
    lines: tuple[Line, ...]
    compared: str
    rate_ratio: float
    cpu_ratio: float
    goals: tuple[float, float] | None


class Report(msgspec.Struct, frozen=True):
    broker: str
    partitions: int
    processors: int
    settings: str
    """Settings other than our defaults."""
    sections: tuple[Section, ...]


def section(
    size: int, records: int, runs: Mapping[str, list[Run]], compared: str, to: str, goals: tuple[float, float] | None
) -> Section:
    """`compared` and `to` are sides; without runs of `to` the ratios are 1."""
    lines = []
    for side, each in runs.items():
        programs = sorted({program for run in each for program in run.cpu_seconds})
        of_it = {
            program: Spread.of([run.cpu_seconds.get(program, 0.0) / run.records * 1e6 for run in each]).median
            for program in programs
        }
        rate, cpu = Spread.of([run.rate for run in each]), Spread.of([run.cpu_per_million for run in each])
        lines.append(Line(side, rate, cpu, of_it, tuple(each)))
    by_side = {line.side: line for line in lines}
    one = by_side[compared]
    other = by_side.get(to, one)
    return Section(
        size=size,
        records=records,
        lines=tuple(lines),
        compared=compared,
        rate_ratio=one.rate.median / other.rate.median,
        cpu_ratio=one.cpu_per_million.median / other.cpu_per_million.median,
        goals=goals,
    )


def table(found: Report, section: Section) -> Table:
    goals = f"; goals {section.goals[0]}x and {section.goals[1]}x" if section.goals else ""
    drawn = Table(
        title=f"{section.records:,} x {section.size} B into snappy Parquet; {found.partitions} partitions, one broker "
        f"{found.broker}; {found.processors} processors",
        caption=f"{section.compared}: rate {section.rate_ratio:.2f}x, CPU {section.cpu_ratio:.2f}x{goals}",
        box=box.SIMPLE,
    )
    for name in ("", "k records/s", "min", "max", "CPU s/M", "min", "max", "of it"):
        drawn.add_column(name, justify="right" if name and name != "of it" else "left")
    for line in section.lines:
        rate, cost = line.rate, line.cpu_per_million
        drawn.add_row(
            line.side,
            *(f"{value / 1000:,.0f}" for value in (rate.median, rate.min, rate.max)),
            *(f"{value:.2f}" for value in (cost.median, cost.min, cost.max)),
            ", ".join(f"{program} {seconds:.2f}" for program, seconds in line.of_it.items() if abs(seconds) > 0.01),
        )
    return drawn
