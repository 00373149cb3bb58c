"""SIGTERM at any moment: the process ends in time, the offsets match the sink's output, and the group is free.

A few moments; `KZCONSUMER_STOPS=50` (`make chaos-stop`) takes so many and prints how long they took; `make nightly`
takes 20 random ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import seeds
from tests.support.members import Daemon, Reader, reader, settings
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.servers import Servers
from tests.support.stops import (
    DEADLINE,
    PARTITIONS,
    Stopped,
    T,
    left_behind,
    registered,
    stoppable,
    stored,
    terminated,
)
from tests.support.zookeeper_sessions import session, until

STOPS = seeds(int(os.environ.get("KZCONSUMER_STOPS", "3")), 20)
STOPS_WITHOUT = seeds(int(os.environ.get("KZCONSUMER_STOPS", "1")), 10)
RECORDS = 40_000
MARGIN = 1.0
"""Seconds that a busy machine needs to begin and to notice."""

FILLED: set[tuple[str, str]] = set()
NOT_COMMITTED = "final commit failed: records since the previous commit will be redelivered"
MOMENTS = ("starting", "rebalancing", "writing", "registered", "flowing")


@pytest.fixture(scope="module")
def lasting() -> Iterator[dict[str, list[float]]]:
    """Seconds from the signal to the end, by form; printed at the end."""
    seconds: dict[str, list[float]] = {"with ZooKeeper": [], "without": []}
    yield seconds
    for form, all_of_it in seconds.items():
        if all_of_it:
            figures = f"{min(all_of_it):.2f} / {median(all_of_it):.2f} / {max(all_of_it):.2f} s"
            print(f"\n{len(all_of_it)} stops {form}: min / median / max {figures}")


async def filled(cluster: Cluster, topic: str) -> None:
    """Once for all the tests of the cluster."""
    if (cluster.connect, topic) in FILLED:
        return
    FILLED.add((cluster.connect, topic))
    await create_topic(cluster.connect, topic, PARTITIONS)
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(RECORDS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


@pytest.mark.parametrize("seed", STOPS)
async def test_a_stop_at_any_moment_is_exact_and_in_time(
    cluster: Cluster, unique: str, tmp_path: Path, lasting: dict[str, list[float]], seed: int
) -> None:
    chance = random.Random(seed)
    moment = MOMENTS[seed % len(MOMENTS)]
    topic = "stops"
    await filled(cluster, topic)
    with stoppable(tmp_path, cluster.connect, unique, topic) as member:
        if moment == "starting":
            await anyio.sleep(chance.uniform(0.1, 2.0))
        else:
            await registered(cluster.connect, unique, "stopped")
        if moment == "registered":
            await anyio.sleep(chance.uniform(0.0, 0.2))
        if moment == "rebalancing":
            await until(lambda: member.out.stat().st_size, 30)
            lasting_session = {"connect": cluster.connect, "session_timeout": "30s"}
            async with reader(settings(cluster.connect, unique, zookeeper=lasting_session), {topic: 1}) as guest:
                await anyio.sleep(chance.uniform(0.0, 0.3))
                stopped = await terminated(member, DEADLINE + MARGIN)
                await until(lambda: len(guest.owned) == PARTITIONS, T / 2)  # sooner than any session could expire
                await until(lambda: len(taken(stopped) | read_by(guest)) >= RECORDS, 60)
            both = taken(stopped) + read_by(guest)
            assert set(both.values()) == {1} or held_up(member), member.err.read_text()[-5000:]
            assert await stored(cluster.connect, unique, topic) == [RECORDS // PARTITIONS] * PARTITIONS
        else:
            if moment in ("flowing", "writing"):
                await until(lambda: member.out.stat().st_size, 30)
            if moment == "flowing":
                await anyio.sleep(chance.uniform(0.0, 1.5))
            if moment == "writing":
                size = member.out.stat().st_size
                await until(lambda: member.out.stat().st_size > size, 10)  # it has 0.1 s to go then
            stopped = await terminated(member, DEADLINE + MARGIN)
            assert await left_behind(cluster.connect, unique, topic) == []
            assert await stored(cluster.connect, unique, topic) == stopped.written or held_up(member)
    began = b'"event"' in member.err.read_bytes()
    too_early = moment == "starting" and not began and stopped.status == -signal.SIGTERM
    assert stopped.status == 0 or too_early or held_up(member)
    assert "Traceback" not in member.err.read_text()
    lasting["with ZooKeeper"].append(stopped.seconds)


def held_up(member: Daemon) -> bool:
    """Whether a busy machine suspended it for longer than a session: what is true then has a test of its own."""
    return bool(member.events("session expired") or member.events("partition lost"))


def read_by(guest: Reader) -> Counter[tuple[int, int]]:
    return Counter((each.partition, each.offset) for each in guest.messages)


def taken(stopped: Stopped) -> Counter[tuple[int, int]]:
    return Counter((each["partition"], each["offset"]) for each in stopped.member.records())


@pytest.mark.parametrize("seed", STOPS_WITHOUT)
async def test_a_stop_without_zookeeper_is_in_time_and_reports_what_was_not_done(
    mortal: ZooKeeperServer,
    mortal_cluster: Cluster,
    unique: str,
    tmp_path: Path,
    lasting: dict[str, list[float]],
    seed: int,
) -> None:
    """It fails before the signal or a moment after, suspended or killed; at worst, written records are redelivered."""
    chance = random.Random(seed)
    connect, topic = mortal_cluster.connect, "stops"
    await filled(mortal_cluster, topic)
    with stoppable(tmp_path, connect, unique, topic) as member:
        await until(lambda: member.out.stat().st_size, 30)
        await anyio.sleep(chance.uniform(0.0, 1.0))
        if seed % 2:
            mortal.kill()
        else:
            mortal.send_signal(signal.SIGSTOP)
        try:
            await anyio.sleep(chance.choice([0.0, chance.uniform(0.0, T / 3), chance.uniform(0.0, 2 * T)]))
            stopped = await terminated(member, DEADLINE + MARGIN)
        finally:
            if seed % 2:
                mortal.start()
            else:
                mortal.send_signal(signal.SIGCONT)
            await anyio.to_thread.run_sync(mortal.wait_ready)
    committed = await stored(connect, unique, topic)
    assert all(have <= written for have, written in zip(committed, stopped.written, strict=True))
    # Not the deadline: the rest of the lease, a reconnect, a second for the last commit, and as much to close.
    assert stopped.seconds < DEADLINE / 2
    complaints = member.events(NOT_COMMITTED)
    assert (stopped.status, len(complaints)) in ((0, 0), (1, 1))
    # What the stopped process could not know: the server may still execute its commit when it resumes.
    assert committed == stopped.written or stopped.status == 1
    assert "Traceback" not in member.err.read_text()
    lasting["without"].append(stopped.seconds)


async def test_a_stop_after_the_session_expired_reports_what_was_not_committed(
    servers: Servers, cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    """ZooKeeper is unreachable for longer than the session, and returns with the signal."""
    upstream = servers.zookeeper
    topic, chroot = "stops", cluster.connect.partition("/")[2]
    await filled(cluster, topic)
    async with FaultProxy(upstream.host, upstream.port) as proxy:
        with stoppable(tmp_path, f"{proxy.connect}/{chroot}", unique, topic) as member:
            await until(lambda: member.out.stat().st_size, 30)
            proxy.silent = True
            async with session(cluster.connect) as other:
                ids = f"/consumers/{unique}/ids"
                with anyio.fail_after(4 * T):
                    while await other.children(ids):
                        await anyio.sleep(0.02)
            proxy.silent = False
            stopped = await terminated(member, DEADLINE + MARGIN)
    committed = await stored(cluster.connect, unique, topic)
    assert sum(committed) < sum(stopped.written)
    assert all(have <= written for have, written in zip(committed, stopped.written, strict=True))
    assert stopped.status == 1
    assert len(member.events(NOT_COMMITTED)) == 1
