"""A group under load for an hour, with a fault every minute: `make soak`.

A third of the time with a function as the sink, a third with a slow one for two topics of which the broker's quota
allows little more than arrives, and a third with Spark. A producer sends 20,000 records a second to 8 partitions of
each topic, two members share them; faults are those of `tests.support.chaos`. One of the two, b, is never restarted:
its resources must not grow. Ends with status 1 if a record is missing, one was redelivered that must not be, a
partition has waited too long for its turn, or b has grown. It continues until every fault has happened once, however
short the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import anyio
from anyio import to_thread
from rich.console import Console
from rich.table import Table

from kzconsumer.logs import setup
from kzconsumer_sandbox.servers.jars import NEWEST, find_java, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.soak.group import Slow, SoakGroup, With, Without, Written
from tests.soak.process import Held
from tests.support import chaos
from tests.support.ensemble import Ensemble, ensemble
from tests.support.flow import Flow, flow
from tests.support.zookeeper_sessions import session

SINKS: dict[str, type[Written]] = {"function": Without, "slow": Slow, "spark": With}
SUMMARY = "soak; of b: the first and the last third of the time (of a long run after each fault has been there once)"
PARTITIONS = 8
SAMPLES_EVERY = 5.0
LONGEST_TURN = 30.0
"""Seconds for which a partition with records may wait for its next commit, once all are owned again; and four batches
at the pace of the sink: its promise is three and what is queued.
"""
LINGER_MS = 200
"""Of a producer whose records have a quota: batches of one record are three times as large for each."""
GROWTH = 1.10
"""Of memory, after warming up."""
SPARE = 3
"""Descriptors, threads and tasks that may be more or less at one moment and another."""

ORDERLY = (chaos.terminate, chaos.a_third)
"""Nothing is redelivered if members join and leave like this, with any sink."""
HARSH = (chaos.kill_daemon, chaos.freeze, chaos.kill_leader)
OF_SPARK = (chaos.kill_worker, chaos.kill_java)
RESTARTED = (chaos.kill_daemon, chaos.terminate)


class Sample(NamedTuple):
    at: float
    held: Held


class Leg(NamedTuple):
    """The result of one half."""

    name: str
    seconds: float
    faults: int
    sent: int
    missing: int
    twice: int
    samples: list[Sample]
    """After warming up, where that leaves enough."""
    complaints: list[str]


async def main(sinks: Sequence[str], minutes: float, rate: int, batch: int, every: float, seed: int) -> int:
    console = Console(width=130)
    console.print(f"{minutes:g} minutes, {rate:,} records a second, something every {every:g} s, seed {seed}")
    setup.configure("error", "console")
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # and everything that was started ends
    with tempfile.TemporaryDirectory(prefix="kzconsumer-soak-") as folder, ExitStack() as stack:
        java, jars = find_java(), resolve_jars(NEWEST.jars)
        three = stack.enter_context(ensemble(Path(folder, "ensemble"), java, jars))
        # The broker's session outlives every fault: the members' behaviour is tested, not the brokers'.
        config = {"zookeeper.session.timeout.ms": 30_000}
        cluster = Cluster(
            three.connect, NEWEST, Path(folder, "cluster"), java, jars, chroot="/soak", heap="512m", config=config
        )
        stack.callback(cluster.kill)
        cluster.start()
        await to_thread.run_sync(cluster.wait_ready)
        legs = []
        for name in sinks:
            place = Path(folder, name)
            place.mkdir()
            kind, seconds = SINKS[name], minutes * 60 / len(sinks)
            topics = [f"{name}-{number}" for number in range(len(kind.shares))]
            written = kind(place, topics, PARTITIONS)
            legs.append(await leg(name, written, three, cluster, place, seconds, rate, batch, every, Random(seed)))
    console.print(summary(legs))
    for each in legs:
        for complaint in each.complaints:
            console.print(f"[red]{each.name}: {complaint}")
    return 1 if any(each.complaints for each in legs) else 0


async def leg(
    name: str,
    written: Written,
    three: Ensemble,
    cluster: Cluster,
    folder: Path,
    seconds: float,
    rate: int,
    batch: int,
    every: float,
    chance: Random,
) -> Leg:
    for topic in written.topics:
        await create_topic(cluster.connect, topic, PARTITIONS)
    group = SoakGroup(three, cluster, folder, written, batch, rate)
    faults = [*ORDERLY, *HARSH, *(OF_SPARK if written.exactly_once else ())]
    complaints: list[str] = []
    rounds = twice = 0
    harsh = False
    warm = float("inf")
    try:
        group.start("a")
        group.start("b")
        await group.whole(2)
        linger = LINGER_MS if written.spare < math.inf else 5
        longest_turn = LONGEST_TURN + 4 * batch / (rate * written.spare)
        with ExitStack() as sending:
            sent = [
                sending.enter_context(flow(cluster, topic, PARTITIONS, rate * share, linger_ms=linger))
                for topic, share in zip(written.topics, written.shares, strict=True)
            ]
            if written.spare < math.inf:
                await limit_consumers(cluster, written, sent)
            began = time.monotonic()
            async with sampled(group, began) as samples:
                while time.monotonic() - began < seconds or rounds < len(faults):
                    due = began + (rounds + 1) * every
                    if rounds % len(faults) == 0:
                        chance.shuffle(faults)
                    fault = faults[rounds % len(faults)]
                    await anyio.sleep(max(0.0, due - time.monotonic() - every / 2))
                    await fault(group, "a" if fault in RESTARTED else chance.choice("ab"), chance)
                    await group.whole(2)
                    before_turns = time.monotonic()
                    await group.past([at + 1 for at in await group.committed()])
                    if (turns := time.monotonic() - before_turns) > longest_turn:
                        complaints.append(f"{fault.__name__}: {turns:.0f} s until all partitions had their turn")
                    rounds += 1
                    if rounds == len(faults):
                        warm = time.monotonic() - began
                    missing = await looked_at(group)
                    again, twice = written.ledger.twice - twice, written.ledger.twice
                    before, harsh = harsh, fault in (*HARSH, *OF_SPARK)
                    complaints += judged(fault.__name__, missing, again, written.exactly_once, harsh or before, batch)
                    print(progress(name, time.monotonic() - began, seconds, fault.__name__, sent, group, missing, again,
                                   samples), flush=True)  # fmt: skip
                    await anyio.sleep(max(0.0, due - time.monotonic()))
                lasted = time.monotonic() - began
            for each in sent:
                await asyncio.to_thread(each.end)
            counts = (each.sent[partition] for each in sent for partition in range(PARTITIONS))
            ends = dict(enumerate(counts))
            await group.past(list(ends.values()))
            await group.stop("a")
            await group.stop("b")
            await to_thread.run_sync(written.look)
            missing = written.ledger.missing(ends)
            if await group.committed() != list(ends.values()):
                complaints.append("the offsets are not the ends of the log")
            if written.spare < math.inf and not group.events("throttled by the broker"):
                complaints.append("no quota was ever reached")
            if lost := group.events("broker lost"):
                complaints.append(f"a broker was lost {lost} times")
            complaints += judged("the end", missing, written.ledger.twice - twice, written.exactly_once, harsh, batch)
    finally:
        group.kill_all()
    settled = [each for each in samples if each.at > warm]
    if is_long_enough(settled):
        samples = settled
        complaints += memory_grown(samples)
    complaints += grown(samples)
    return Leg(name, lasted, rounds, sum(ends.values()), missing, written.ledger.twice, samples, complaints)


async def limit_consumers(cluster: Cluster, written: Written, sent: Sequence[Flow]) -> None:
    """Give the group a quota of twice what arrives, as the broker stores it. Its client id is its name.

    What is in an answer besides records counts as well, and is much if records come one by one.
    """
    await anyio.sleep(10.0)
    each_record = stored_bytes(cluster, written.topics) / sum(each.sent.total() for each in sent)
    rate = str(int(2 * each_record * sum(each.rate for each in sent)))
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure("/config/clients")
        quota = {"version": 1, "config": {"consumer_byte_rate": rate}}
        await zookeeper.create(f"/config/clients/{written.topics[0]}", json.dumps(quota).encode())
        notice = {"version": 2, "entity_path": f"clients/{written.topics[0]}"}
        await zookeeper.create(f"/config/changes/config_change_{time.time_ns()}", json.dumps(notice).encode())


def stored_bytes(cluster: Cluster, topics: Sequence[str]) -> int:
    """Of the topics' logs."""
    folders = [broker.folder for broker in cluster.brokers.values()]
    logs = [file for folder in folders for topic in topics for file in folder.rglob(f"{topic}-*/*.log")]
    return sum(file.stat().st_size for file in logs)


async def looked_at(group: SoakGroup) -> int:
    """Which committed records are missing: offsets are read first, since records are written before the commit."""
    committed = await group.committed()
    await to_thread.run_sync(group.written.look)
    return group.written.ledger.missing(dict(enumerate(committed)))


def judged(what: str, missing: int, again: int, exactly_once: bool, harsh: bool, batch: int) -> list[str]:
    """A member that is killed leaves one batch written and not committed, of up to twice its limit, since a response is
    taken whole; two members do if both lose their sessions.
    """
    allowed = 4 * batch if harsh and not exactly_once else 0
    output = [f"{what}: {missing} records are missing"] if missing else []
    return [*output, f"{what}: {again} records were redelivered, {allowed} may be"] if again > allowed else output


@asynccontextmanager
async def sampled(group: SoakGroup, began: float) -> AsyncIterator[list[Sample]]:
    samples: list[Sample] = []

    async def look() -> None:
        while True:
            samples.append(Sample(time.monotonic() - began, await to_thread.run_sync(group.held, "b")))
            await anyio.sleep(SAMPLES_EVERY)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        yield samples
        tasks.cancel_scope.cancel()


def thirds(samples: Sequence[Sample]) -> tuple[list[Held], list[Held]]:
    """The first and the last third after warming up: each fault has filled once what it fills."""
    third = len(samples) // 3
    return [each.held for each in samples[:third]], [each.held for each in samples[len(samples) - third :]]


def is_long_enough(samples: Sequence[Sample]) -> bool:
    """Three minutes are enough for a verdict on memory."""
    return len(samples) * SAMPLES_EVERY >= 180


def memory_grown(samples: Sequence[Sample]) -> list[str]:
    """By medians. Only after warming up: what a fault fills for the first time is not growth."""
    was, now = (statistics.median(each.rss for each in part) for part in thirds(samples))
    return [f"memory of b grew from {was:.0f} to {now:.0f} MiB"] if now > was * GROWTH else []


def grown(samples: Sequence[Sample]) -> list[str]:
    """What is counted, by the minimum of each third, since faults have more open for a moment."""
    first, last = thirds(samples)
    output = []
    for what in ("descriptors", "threads", "tasks"):
        was, now = (least(part, what) for part in (first, last))
        if now > was + SPARE:
            output.append(f"{what} of b grew from {was} to {now}")
    return output


def least(part: Sequence[Held], what: str) -> int:
    """Of the reported values: 0 means that none was."""
    return min((number for each in part if (number := getattr(each, what))), default=0)


def progress(
    name: str, at: float, seconds: float, fault: str, sent: Sequence[Flow], group: SoakGroup, missing: int, again: int,
    samples: Sequence[Sample],
) -> str:  # fmt: skip
    ledger, total = group.written.ledger, sum(each.sent.total() for each in sent)
    return (
        f"{name} {at:5.0f} of {seconds:.0f} s  {fault:12} sent {total:>10,}  behind {total - ledger.distinct:>8,}  "
        f"missing {missing}  again {again:,}  b: {samples[-1].held.rss:.0f} MiB, {samples[-1].held.descriptors} "
        f"descriptors, {samples[-1].held.threads} threads, {samples[-1].held.tasks} tasks"
    )


def summary(legs: Sequence[Leg]) -> Table:
    table = Table("sink", "s", "faults", "records", "a second", "missing", "redelivered", "b: MiB", "descriptors",
                  "threads", "tasks", title=SUMMARY)  # fmt: skip
    for each in legs:
        first, last = thirds(each.samples)
        cells = []
        if first:
            medians = [statistics.median(held.rss for held in part) for part in (first, last)]
            cells = [" -> ".join(f"{value:.0f}" for value in medians)]
            for what in ("descriptors", "threads", "tasks"):
                cells.append(" -> ".join(str(least(part, what)) for part in (first, last)))
        rate = each.sent / each.seconds
        table.add_row(each.name, f"{each.seconds:.0f}", str(each.faults), f"{each.sent:,}", f"{rate:,.0f}",
                      str(each.missing), f"{each.twice:,}", *cells)  # fmt: skip
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=int, default=20_000, help="records a second (20,000)")
    parser.add_argument("--batch", type=int, default=50_000, help="most records of a batch (50,000)")
    parser.add_argument("--every", type=float, default=60.0, help="seconds from one fault to the next (60)")
    parser.add_argument("--seed", type=int, default=time.time_ns() // 1_000_000 % 1_000_000)
    parser.add_argument("--sinks", nargs="+", choices=SINKS, default=list(SINKS), help="one after the other (all)")
    given = parser.parse_args()
    sys.exit(asyncio.run(main(given.sinks, given.minutes, given.rate, given.batch, given.every, given.seed)))
