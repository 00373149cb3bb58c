"""Events of a group, ours compared with Kafka's own consumer: `make bench-group`. A command, never a test with a time
limit.

Runs a ZooKeeper and a broker. The kinds take turns within each repetition, so that changes in the load of the machine
affect both; one round before the first that counts warms the broker.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread
import msgspec
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.jars import NEWEST
from tests.bench.folder import bench_folder
from tests.bench.group_events import BODY, EVENTS, KINDS, ORIGINAL, OURS, PARTITIONS, SESSION_TIMEOUT, measure
from tests.bench.report import Spread
from tests.support.original import NEWEST_ORIGINAL
from tests.support.servers import Servers

GOALS: Mapping[str, float] = {
    "join: until half is owned": 0.17,
    "join: pause, moved partitions": 0.10,
    "join: pause, kept partitions": 0.005,
    "stop: until all is owned": 0.09,
    "stop: until all is delivered": 0.09,
    "kill: then until all is delivered": 0.10,
    "busy: until half is owned": 0.17 + BODY,
}
"""Seconds, for our median. Kept partitions have no pause at all: 5 ms is the error of two timestamps and a flow."""


class Figure(msgspec.Struct, frozen=True):
    """One duration, in seconds."""

    name: str
    runs: dict[str, tuple[float, ...]]
    """By kind of member."""
    ratio: float | None
    """Our median to the original's; None where that is 0."""
    goal: float | None


class Report(msgspec.Struct, frozen=True):
    broker: str
    partitions: int
    session_timeout: float
    repetitions: int
    figures: tuple[Figure, ...]


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.bench.group", description="Events of a group, compared with the original."
    )
    arguments.add_argument("--repetitions", type=int, default=11, help="of each kind, that count (11)")
    arguments.add_argument("--events", nargs="+", default=list(EVENTS), choices=EVENTS, help="all unless given")
    arguments.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS, help="both unless given")
    arguments.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = arguments.parse_args()
    setup.configure("warning", "console")
    found = anyio.run(_run, args)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        Console().print(table(found))
    return 0


async def _run(args: argparse.Namespace) -> Report:
    runs: list[tuple[str, dict[str, float]]] = []
    with bench_folder() as folder, Progress(console=_progress()) as bar:
        task = bar.add_task("servers", total=(args.repetitions + 1) * len(args.kinds))
        servers = Servers(folder)
        try:
            cluster = servers.cluster_of(NEWEST.number)
            for repetition in range(args.repetitions + 1):
                for kind in args.kinds:
                    bar.update(task, description=f"{kind}, {repetition} of {args.repetitions}")
                    name = f"bench-{KINDS.index(kind)}-{repetition}"
                    figures = await measure(servers, cluster, kind, name, folder / name, args.events)
                    bar.advance(task)
                    if repetition > 0:
                        runs.append((kind, figures))
        finally:
            servers.kill()
    return report(args.repetitions, runs)


def _progress() -> Console:
    return Console(stderr=True)


def report(repetitions: int, runs: Sequence[tuple[str, Mapping[str, float]]]) -> Report:
    names = dict.fromkeys(name for _, figures in runs for name in figures)
    return Report(
        broker=NEWEST.number,
        partitions=PARTITIONS,
        session_timeout=SESSION_TIMEOUT,
        repetitions=repetitions,
        figures=tuple(_figure(name, runs) for name in names),
    )


def _figure(name: str, runs: Sequence[tuple[str, Mapping[str, float]]]) -> Figure:
    by_kind: dict[str, tuple[float, ...]] = {}
    for kind, figures in runs:
        if name in figures:
            by_kind[kind] = (*by_kind.get(kind, ()), figures[name])
    medians = {kind: statistics.median(values) for kind, values in by_kind.items()}
    ratio = medians[OURS] / medians[ORIGINAL] if OURS in medians and medians.get(ORIGINAL) else None
    return Figure(name=name, runs=by_kind, ratio=ratio, goal=GOALS.get(name))


def table(found: Report) -> Table:
    drawn = Table(
        box=box.SIMPLE,
        title=f"{found.partitions} partitions, broker {found.broker}, session timeout {found.session_timeout:g} s",
        caption=f"seconds since registration, signal, expiry; {found.repetitions} runs; original: {NEWEST_ORIGINAL}",
    )
    for name in ("", "member", "min", "median", "max", "ratio", "goal"):
        drawn.add_column(name, justify="left" if name in ("", "member") else "right")
    for figure in found.figures:
        for kind, values in figure.runs.items():
            spread = Spread.of(values)
            ours = kind == OURS
            drawn.add_row(
                figure.name if kind == next(iter(figure.runs)) else "",
                kind,
                *(f"{value:.3f}" for value in (spread.min, spread.median, spread.max)),
                f"{figure.ratio:.2f}x" if ours and figure.ratio is not None else "",
                _verdict(figure.goal, spread.median) if ours and figure.goal is not None else "",
            )
    return drawn


def _verdict(goal: float, median: float) -> str:
    return f"{goal:g} {'met' if median <= goal else 'missed'}"


if __name__ == "__main__":
    sys.exit(main())
