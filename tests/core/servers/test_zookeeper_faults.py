"""ZooKeeper and members that are suspended or unreachable, under steady records.

Every message counts: each record is delivered by some member, and no member delivers what another one owns.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest

from kzconsumer import clock
from kzconsumer.zookeeper.session import Lease
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import only_nightly
from tests.support.members import Daemon
from tests.support.printing_member import printing_member
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.steady_flow import flowing, records
from tests.support.timed_members import drained, in_turn, member, shared_evenly, watched
from tests.support.zookeeper_sessions import until

T = 3.0
PARTITIONS = 6


class Credulous(Lease):
    """Always held: the assumption of a member without a lease."""

    @property
    def held(self) -> bool:
        return True


@only_nightly  # of three servers: tests/core/ensemble/test_networks.py; one that is silent: the test below
async def test_a_short_stop_of_zookeeper_suspends_delivery_and_nothing_else(
    mortal: ZooKeeperServer, mortal_cluster: Cluster, unique: str
) -> None:
    """The lease ends before the session can expire: delivery stops and resumes in that session, without rebalance."""
    connect = mortal_cluster.connect
    await create_topic(connect, unique, PARTITIONS)
    async with (
        watched(connect, unique, PARTITIONS) as owners,
        member(connect, unique, "a", T) as first,
        member(connect, unique, "b", T) as second,
        flowing(mortal_cluster, unique, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, first, second) and len(second.delivered) > 200)
        before = owners.all
        stopped = clock.now()
        mortal.send_signal(signal.SIGSTOP)
        await until(lambda: not first.lease.held and not second.lease.held, T)
        await anyio.sleep(max(0.0, stopped + 0.7 * T - clock.now()))
        mortal.send_signal(signal.SIGCONT)
        resumed = clock.now()
        await until(lambda: all(m.delivered[-1].at > resumed for m in (first, second)), T)
        flow.end()
        await drained(flow, first, second)
        assert owners.all == before
    silent = [d for m in (first, second) for d in m.delivered if stopped + T / 2 < d.at < resumed]
    assert not silent
    assert set(records([*first.delivered, *second.delivered]).values()) == {1}


async def blackhole(cluster: Cluster, zookeeper: ZooKeeperServer, group: str, lease: Lease | None, work: float) -> bool:
    """One of two members loses ZooKeeper, but not Kafka, until the other one has all. Returns whether owners never
    overlapped.
    """
    chroot = "/" + cluster.connect.partition("/")[2]
    async with (
        FaultProxy(zookeeper.host, zookeeper.port) as proxy,
        watched(cluster.connect, group, PARTITIONS) as owners,
        member(proxy.connect + chroot, group, "a", T, lease=lease, work=work) as lost,
        member(cluster.connect, group, "b", T) as heir,
        flowing(cluster, group, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, lost, heir) and len(lost.delivered) > 30)
        proxy.silent = True
        await until(lambda: shared_evenly(owners, PARTITIONS, heir), 2 * T)
        await anyio.sleep(1.0)
        proxy.silent = False
        await until(lambda: shared_evenly(owners, PARTITIONS, lost, heir), 2 * T)
        flow.end()
        if not work:
            await drained(flow, lost, heir)
        return in_turn(owners, lost, heir)


@pytest.mark.parametrize("lease", [Lease, pytest.param(Credulous, marks=only_nightly)])  # the second: the control
async def test_a_member_that_loses_zookeeper_stops_before_its_successor_begins(
    mortal: ZooKeeperServer, mortal_cluster: Cluster, unique: str, lease: type[Lease]
) -> None:
    """The control, by night, has no lease, and delivers what another one owns."""
    await create_topic(mortal_cluster.connect, unique, PARTITIONS)
    assert await blackhole(mortal_cluster, mortal, unique, lease(), 0.0) is (lease is Lease)


@only_nightly  # what was made before, and not handed out: the test below
async def test_a_slow_application_that_loses_zookeeper_stops_as_early(
    mortal: ZooKeeperServer, mortal_cluster: Cluster, unique: str
) -> None:
    """Messages that were made but not handed out are under the lease as well."""
    await create_topic(mortal_cluster.connect, unique, PARTITIONS)
    await backlog(mortal_cluster, unique, 12_000)
    assert await blackhole(mortal_cluster, mortal, unique, None, 0.02)


async def backlog(cluster: Cluster, topic: str, number: int) -> None:
    sent = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(number)]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, topic, sent)


# test_networks has one that yields, on three servers.
@pytest.mark.parametrize("block", [pytest.param(False, marks=only_nightly), True])
async def test_a_member_suspended_beyond_its_session_delivers_nothing_more(
    mortal_cluster: Cluster, unique: str, tmp_path: Path, block: bool
) -> None:
    """Suspended within a backlog: what it has ready belongs to its successor. `block`: it never yields, either."""
    connect = mortal_cluster.connect
    await create_topic(connect, unique, PARTITIONS)
    await backlog(mortal_cluster, unique, 24_000)
    where = connect, unique, unique, T
    async with watched(connect, unique, PARTITIONS) as owners, flowing(mortal_cluster, unique, PARTITIONS) as flow:
        with (
            printing_member(tmp_path, "a", *where, work=0.001, block=block) as zombie,
            printing_member(tmp_path, "b", *where) as heir,
        ):
            await until(lambda: owners.holds(zombie.consumer) and owners.holds(heir.consumer), 20)
            await until(lambda: len(zombie.delivered()) > 300)
            zombie.signal(signal.SIGSTOP)
            await until(lambda: len(owners.holds(heir.consumer)) == PARTITIONS, 2 * T)
            seen = len(heir.delivered())
            await until(lambda: len(heir.delivered()) > seen + 100)  # the control: it was taken over
            woken = clock.now()
            zombie.signal(signal.SIGCONT)
            await until(lambda: len(owners.holds(zombie.consumer)) == PARTITIONS // 2)
            await until(lambda: zombie.delivered()[-1].at > woken)
            flow.end()
            await until(
                lambda: (
                    flow.ended
                    and len(records(zombie.delivered() + heir.delivered())) >= 24_000 + len(flow.acknowledged)
                ),
                30,
            )
            heirs = records(heir.delivered())
            late = [each for each in zombie.delivered() if each.at > woken and each[1:] in heirs]
    assert not flow.refused
    assert not late, f"{len(late)} records within {late[-1].at - woken:.3f} s"
    assert len(owners.stored) == PARTITIONS
    assert not owners.moved_back


async def test_a_daemon_suspended_beyond_its_session_writes_nothing_more(
    mortal_cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    connect = mortal_cluster.connect
    await create_topic(connect, unique, PARTITIONS)
    zombie, heir = (Daemon(tmp_path / name, connect, unique, {unique: 1}, "", "smallest") for name in "ab")
    for each in (zombie, heir):
        each.config.write_text(each.config.read_text().replace('"6s"', f'"{T}s"'))
    async with watched(connect, unique, PARTITIONS) as owners, flowing(mortal_cluster, unique, PARTITIONS) as flow:
        zombie.start()
        heir.start()
        try:
            await until(
                lambda: len(owners.present) == PARTITIONS and len({t.consumer for t in owners.present.values()}) == 2,
                20,
            )
            await until(lambda: len(zombie.records()) > 200 and len(heir.records()) > 200)
            zombie.signal(signal.SIGSTOP)
            await until(lambda: len({t.consumer for t in owners.present.values()}) == 1, 2 * T)
            await until(lambda: len(owners.present) == PARTITIONS)
            seen = len(heir.records())
            await until(lambda: len(heir.records()) > seen + 100)
            output = len(zombie.records())
            zombie.signal(signal.SIGCONT)
            await until(lambda: len({t.consumer for t in owners.present.values()}) == 2)
            await until(lambda: len(zombie.records()) > output + 50)
            flow.end()
            await until(lambda: flow.ended and found(zombie, heir).keys() >= flow.acknowledged, 30)
            late = found(heir).keys() & {(r["partition"], r["offset"]) for r in zombie.records()[output:]}
        finally:
            for each in (zombie, heir):
                assert each.process is not None
                each.process.kill()
                each.process.wait()
    assert not late
    assert len(owners.stored) == PARTITIONS
    assert not owners.moved_back


def found(*daemons: Daemon) -> Counter[tuple[int, int]]:
    return Counter((record["partition"], record["offset"]) for each in daemons for record in each.records())
