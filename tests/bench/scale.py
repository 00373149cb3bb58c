"""Many members starting together on one ZooKeeper: `make bench-scale`. A command, never a test with a time limit.

Runs a sandbox with one broker, and the processes of the members. Reported are the seconds until every partition has
exactly one owner and nothing changes any more, and the rebalances and requests to ZooKeeper of each member.
With `--simulated` it needs no server, and shows more than a start (`tests.bench.scale_simulated`).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Self

import anyio
import msgspec
from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import TaskID
from rich.table import Table

from kzconsumer import clock
from kzconsumer.logs import setup
from kzconsumer.model import ConsumerThreadId
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import together
from kzconsumer_sandbox.servers.sandbox import Sandbox
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.bench import scale_simulated
from tests.bench.folder import bench_folder
from tests.bench.report import Spread
from tests.bench.scale_members import Progress
from tests.support.zookeeper_sessions import received_by_session

BROKER = "3.9.1"
# As in tests.bench.bench_consume; thousands of logs on one broker, all of them empty.
TUNING = ("-XX:+UseSerialGC",)
SMALL_LOGS = {"log.index.size.max.bytes": 4096, "num.network.threads": 2}
# Nothing has changed for this long: longer than any delay of a member that still has something to do.
QUIET = 6.0
LIMIT = 180.0


class Scale(msgspec.Struct, frozen=True):
    """One start of a whole group."""

    members: int
    partitions: int
    processes: int
    spread: float
    """Seconds over which the members began."""
    seconds: float
    """From the start until the last partition stopped moving."""
    requests: Spread
    """To ZooKeeper, of each member, by the server's count."""
    rebalances: Spread
    kinds: dict[str, float]
    """Requests by kind, on the average of all members."""


def main() -> int:
    arguments = argparse.ArgumentParser(
        prog="python -m tests.bench.scale", description="Many members starting together."
    )
    arguments.add_argument("--members", type=int, default=100, help="100")
    arguments.add_argument("--processes", type=int, default=4, help="that they live in (4)")
    arguments.add_argument("--topics", type=int, default=20, help="20")
    arguments.add_argument("--partitions", type=int, default=100, help="of each topic (100)")
    arguments.add_argument("--spread", type=float, default=0.0, help="seconds over which members begin, at random (0)")
    arguments.add_argument("--repetitions", type=int, default=1, help="1")
    arguments.add_argument("--json", action="store_true", help="one JSON array instead of a table")
    arguments.add_argument("--simulated", action="store_true", help="members, servers and clock in memory")
    arguments.add_argument("--restarts", type=int, default=3, help="of simulated members, one after the other (3)")
    arguments.add_argument("--seed", type=int, default=1, help="of the simulation (1)")
    args = arguments.parse_args()
    setup.configure("error", "console")
    if args.simulated:
        return _simulate(args)
    found = anyio.run(_run, args)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        Console().print(table(found))
    return 0


def _simulate(args: argparse.Namespace) -> int:
    found = []
    for phase in scale_simulated.phases(
        args.members, args.topics, args.partitions, args.spread, args.restarts, args.seed
    ):
        print(*scale_simulated.row(phase), sep="  ", file=sys.stderr, flush=True)  # the table may take an hour
        found.append(phase)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        print(scale_simulated.table(found, args.members, args.topics * args.partitions))
    return 0


async def _run(args: argparse.Namespace) -> list[Scale]:
    topics = [f"scale-{number}" for number in range(args.topics)]
    with bench_folder() as folder, Bar(console=Console(stderr=True)) as bar:
        async with Sandbox(folder, BROKER, 1, heap="1g", config=SMALL_LOGS, tuning=TUNING) as sandbox:
            task = bar.add_task(f"{args.topics} topics of {args.partitions} partitions", total=len(topics))
            for topic in topics:
                await create_topic(sandbox.zookeeper_connect, topic, args.partitions, limit=LIMIT)
                bar.advance(task)
            found = []
            for repetition in range(args.repetitions):
                task = bar.add_task(f"{args.members} members", total=args.topics * args.partitions)
                group = f"scale-{repetition}"
                found.append(await _measure(sandbox, args, group, topics, partial(_report, bar, task)))
            return found


def _report(bar: Bar, task: TaskID, held: int) -> None:
    bar.update(task, completed=held)


class _Process:
    """Members in a process of their own; see `tests.bench.scale_members`."""

    def __init__(self, connect: str, group: str, topics: list[str], members: int, spread: float) -> None:
        self._arguments = (connect, group, ",".join(topics), str(members), str(spread))
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.scale_members", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        assert await self._line() == b"ready\n"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()  # sessions that are no longer needed end by themselves
            await self._process.wait()

    async def progress(self) -> Progress:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        return msgspec.json.decode(await self._line(), type=Progress)

    async def _line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        if not (line := await self._process.stdout.readline()):
            raise RuntimeError("a process with members has ended")
        return line


async def _measure(
    sandbox: Sandbox, args: argparse.Namespace, group: str, topics: list[str], report: Callable[[int], None]
) -> Scale:
    each, more = divmod(args.members, args.processes)
    partitions = args.topics * args.partitions
    async with AsyncExitStack() as exits:
        processes = [
            await exits.enter_async_context(
                _Process(sandbox.zookeeper_connect, group, topics, each + (number < more), args.spread)
            )
            for number in range(args.processes)
        ]
        began = clock.now()
        with anyio.fail_after(LIMIT):
            while True:
                seen = await asyncio.gather(*(process.progress() for process in processes))
                held = sum(progress.held for progress in seen)
                changed = max(progress.changed for progress in seen)
                report(held)
                if held == partitions and clock.now() - changed > QUIET:
                    break
                await anyio.sleep(0.25)
        requests = await _requests(sandbox, group)
        await _check(sandbox, group, topics, args)
    assert len(requests) == args.members
    kinds: Counter[str] = Counter()
    for progress in seen:
        kinds.update(progress.requests)
    return Scale(
        members=args.members,
        partitions=partitions,
        processes=args.processes,
        spread=args.spread,
        seconds=changed - began,
        requests=Spread.of(requests),
        rebalances=Spread.of(list(itertools.chain.from_iterable(each.rebalances.values() for each in seen))),
        kinds={kind: number / args.members for kind, number in kinds.most_common()},
    )


async def _requests(sandbox: Sandbox, group: str) -> list[float]:
    """What ZooKeeper has received in the session of each member of the group."""
    async with ZooKeeperSession(ConnectString.parse(sandbox.zookeeper_connect), 6.0) as session:
        members = await session.children(f"/consumers/{group}/ids")
        stats = await together([session.exists(f"/consumers/{group}/ids/{member}") for member in members])
    received = await received_by_session(sandbox.zookeeper.host, sandbox.zookeeper.port)
    return [float(received[stat.ephemeral_owner]) for stat in stats if stat is not None]


async def _check(sandbox: Sandbox, group: str, topics: list[str], args: argparse.Namespace) -> None:
    """Every partition has an owner node, and every member of the group as many as any other, or one more per topic."""
    async with ZooKeeperSession(ConnectString.parse(sandbox.zookeeper_connect), 6.0) as session:
        paths = [f"/consumers/{group}/owners/{topic}/{n}" for topic in topics for n in range(args.partitions)]
        nodes = await together([session.get(path) for path in paths])
    shares = Counter(ConsumerThreadId.parse(node.data.decode()).consumer for node in nodes)
    assert max(shares.values()) - min(shares.values()) <= args.topics, shares


def table(found: list[Scale]) -> Table:
    first = found[0]
    drawn = Table(
        title=f"{first.members} members in {first.processes} processes, {first.partitions:,} partitions",
        caption=f"begun over {first.spread:g} s",
    )
    for number, name in enumerate(("", "min", "median", "max")):
        drawn.add_column(name, justify="right" if number else "left")
    for run in found:
        drawn.add_row("seconds until at rest", "", f"{run.seconds:.1f}", "")
        drawn.add_row("rebalances of a member", *(f"{value:,.0f}" for value in _three(run.rebalances)))
        drawn.add_row("ZooKeeper requests of a member", *(f"{value:,.0f}" for value in _three(run.requests)))
        for kind, mean in run.kinds.items():
            drawn.add_row(f"  {kind}, on the average", "", f"{mean:,.1f}", "")
        drawn.add_section()
    return drawn


def _three(spread: Spread) -> tuple[float, float, float]:
    return spread.min, spread.median, spread.max


if __name__ == "__main__":
    sys.exit(main())
