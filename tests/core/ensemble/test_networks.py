"""Networks between members and ZooKeeper with every kind of fault, one server or three, under steady records.

Every message counts: each record is delivered by some member, and no member delivers what another one owns. T is 3 s.
The simulated group has the same faults in many more orders (tests/core/plain/test_group_machine.py).
"""

from __future__ import annotations

import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest

from kzconsumer import clock
from kzconsumer_sandbox.servers.kafka_servers import Cluster, ZooKeeperServer
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.ensemble import Ensemble
from tests.support.extent import only_nightly
from tests.support.printing_member import printing_member
from tests.support.producing import Sent, produce
from tests.support.proxy import FaultProxy
from tests.support.steady_flow import flowing, records
from tests.support.timed_members import drained, in_turn, member, shared_evenly, watched
from tests.support.zookeeper_sessions import until

T = 3.0
PARTITIONS = 6


class Servers(NamedTuple):
    """A cluster, and the ZooKeeper servers it is on."""

    cluster: Cluster
    zookeepers: Sequence[ZooKeeperServer]


ONE, THREE = "one server", "three servers"


@pytest.fixture
def where(request: pytest.FixtureRequest) -> Iterator[Servers]:
    if request.param == ONE:
        yield Servers(request.getfixturevalue("cluster"), [request.getfixturevalue("zookeeper")])
    else:
        three = request.getfixturevalue("three")
        yield Servers(request.getfixturevalue("cluster_of_three"), three.servers)


class Network:
    """The proxies in front of the servers, which fail together."""

    def __init__(self, proxies: Sequence[FaultProxy], chroot: str) -> None:
        self.proxies = proxies
        self.connect = ",".join(proxy.connect for proxy in proxies) + chroot

    def set(self, fault: str, value: bool) -> None:
        for proxy in self.proxies:
            setattr(proxy, fault, value)

    async def cut(self, how: Callable[[FaultProxy], None], chance: random.Random) -> None:
        """Every connection, repeatedly until cancelled, and less and less often: a busy machine needs longer."""
        longest = 0.3
        while True:
            await anyio.sleep(chance.uniform(0.02, longest))
            longest *= 1.03
            for proxy in self.proxies:
                how(proxy)


@asynccontextmanager
async def network_to(where: Servers) -> AsyncIterator[Network]:
    async with AsyncExitStack() as exits:
        proxies = [await exits.enter_async_context(FaultProxy(each.host, each.port)) for each in where.zookeepers]
        yield Network(proxies, "/" + where.cluster.connect.partition("/")[2])


# Before one server: core/servers/test_cut_connections.py; another one of three without a rebalance: test_lease.py.
@only_nightly
@pytest.mark.parametrize(
    ("where", "how"), [*product((ONE, THREE), (FaultProxy.finish, FaultProxy.reset))], indirect=["where"]
)
async def test_a_member_that_is_repeatedly_cut_off_shares_and_takes_over(
    where: Servers, unique: str, how: Callable[[FaultProxy], None]
) -> None:
    """Its session survives, so that nothing is redelivered."""
    await create_topic(where.cluster.connect, unique, PARTITIONS)
    async with (
        network_to(where) as network,
        watched(where.cluster.connect, unique, PARTITIONS) as owners,
        member(network.connect, unique, "a", T) as cut,
        flowing(where.cluster, unique, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, cut) and len(cut.delivered) > 100, 20)
        accepted = sum(proxy.accepted for proxy in network.proxies)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(network.cut, how, random.Random(5))
            async with member(where.cluster.connect, unique, "b", T) as guest:
                await until(lambda: shared_evenly(owners, PARTITIONS, cut, guest) and len(guest.delivered) > 100, 20)
            await until(lambda: shared_evenly(owners, PARTITIONS, cut), 20)
            await until(lambda: sum(proxy.accepted for proxy in network.proxies) > accepted + 10, 20)
            tasks.cancel_scope.cancel()
        flow.end()
        await drained(flow, cut, guest)
    assert in_turn(owners, cut, guest)
    assert set(records([*cut.delivered, *guest.delivered]).values()) == {1}
    assert not owners.moved_back


@only_nightly  # before one server: core/servers/test_zookeeper_faults.py
@pytest.mark.parametrize("where", [ONE, THREE], indirect=True)
async def test_a_member_that_receives_nothing_stops_before_its_successor_begins(where: Servers, unique: str) -> None:
    await create_topic(where.cluster.connect, unique, PARTITIONS)
    async with (
        network_to(where) as network,
        watched(where.cluster.connect, unique, PARTITIONS) as owners,
        member(network.connect, unique, "a", T) as lost,
        member(where.cluster.connect, unique, "b", T) as heir,
        flowing(where.cluster, unique, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, lost, heir) and len(lost.delivered) > 100, 20)
        network.set("silent", True)
        await until(lambda: shared_evenly(owners, PARTITIONS, heir), 3 * T)
        network.set("silent", False)
        network_back = clock.now()
        await until(
            lambda: shared_evenly(owners, PARTITIONS, lost, heir) and lost.delivered[-1].at > network_back, 3 * T
        )
        flow.end()
        await drained(flow, lost, heir)
    assert in_turn(owners, lost, heir)
    assert not owners.moved_back


# A session on such a line: core/servers/test_zookeeper_session.py.
@only_nightly
@pytest.mark.parametrize("where", [ONE, THREE], indirect=True)
async def test_a_member_on_a_slow_line_shares_and_takes_over_on_one_connection(where: Servers, unique: str) -> None:
    """Some 900 bytes a second: an answer may take longer than the limit for silence, but it arrives."""
    await create_topic(where.cluster.connect, unique, PARTITIONS)
    async with (
        network_to(where) as network,
        watched(where.cluster.connect, unique, PARTITIONS) as owners,
        member(network.connect, unique, "a", T) as thin,
        flowing(where.cluster, unique, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, thin) and len(thin.delivered) > 100, 20)
        accepted = sum(proxy.accepted for proxy in network.proxies)
        network.set("trickle", True)
        async with member(where.cluster.connect, unique, "b", T) as guest:
            await until(lambda: shared_evenly(owners, PARTITIONS, thin, guest) and len(guest.delivered) > 100, 30)
        await until(lambda: shared_evenly(owners, PARTITIONS, thin), 30)
        assert sum(proxy.accepted for proxy in network.proxies) == accepted
        network.set("trickle", False)
        flow.end()
        await drained(flow, thin, guest)
    assert in_turn(owners, thin, guest)
    assert set(records([*thin.delivered, *guest.delivered]).values()) == {1}
    assert not owners.moved_back


async def test_a_stopped_leader_suspends_delivery_and_loses_nothing(
    three: Ensemble, cluster_of_three: Cluster, unique: str
) -> None:
    """Meanwhile no quorum exists, and no session can expire; when the leader wakes, it decides which one does."""
    await create_topic(cluster_of_three.connect, unique, PARTITIONS)
    connect = cluster_of_three.connect
    async with (
        watched(connect, unique, PARTITIONS) as owners,
        member(connect, unique, "a", T) as first,
        member(connect, unique, "b", T) as second,
        flowing(cluster_of_three, unique, PARTITIONS) as flow,
    ):
        await until(lambda: shared_evenly(owners, PARTITIONS, first, second) and len(second.delivered) > 100, 20)
        leader = three.leader
        stopped = clock.now()
        leader.send_signal(signal.SIGSTOP)
        await anyio.sleep(1.5 * T)
        leader.send_signal(signal.SIGCONT)
        resumed = clock.now()
        await until(
            lambda: (
                shared_evenly(owners, PARTITIONS, first, second)
                and all(each.delivered[-1].at > resumed for each in (first, second))
            ),
            5 * T,
        )
        flow.end()
        await drained(flow, first, second)
    assert not [d for m in (first, second) for d in m.delivered if stopped + T / 2 < d.at < resumed]
    assert in_turn(owners, first, second)
    assert not owners.moved_back


# On one server: core/servers/test_zookeeper_faults.py.
@only_nightly
async def test_a_member_suspended_beyond_its_session_on_three_servers(
    three: Ensemble, cluster_of_three: Cluster, unique: str, tmp_path: Path
) -> None:
    """A zombie delivers and commits nothing when it wakes, though the server it was connected to was not the leader."""
    connect = cluster_of_three.connect
    await create_topic(connect, unique, PARTITIONS)
    behind = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(12_000)]  # what it has ready when it wakes
    await anyio.to_thread.run_sync(produce, cluster_of_three.bootstrap, cluster_of_three.version, unique, behind)
    where = connect, unique, unique, T
    async with watched(connect, unique, PARTITIONS) as owners, flowing(cluster_of_three, unique, PARTITIONS) as flow:
        with (
            printing_member(tmp_path, "a", *where, work=0.001) as zombie,
            printing_member(tmp_path, "b", *where) as heir,
        ):
            await until(lambda: owners.holds(zombie.consumer) and owners.holds(heir.consumer), 20)
            await until(lambda: len(zombie.delivered()) > 100, 20)
            zombie.signal(signal.SIGSTOP)
            await until(lambda: len(owners.holds(heir.consumer)) == PARTITIONS, 3 * T)
            seen = len(heir.delivered())
            await until(lambda: len(heir.delivered()) > seen + 100, 20)
            woken = clock.now()
            zombie.signal(signal.SIGCONT)
            await until(lambda: len(owners.holds(zombie.consumer)) == PARTITIONS // 2, 20)
            await until(lambda: zombie.delivered()[-1].at > woken, 20)
            flow.end()
            everything = len(behind)
            await until(
                lambda: (
                    flow.ended
                    and len(records(zombie.delivered() + heir.delivered())) >= everything + len(flow.acknowledged)
                ),
                30,
            )
            heirs = records(heir.delivered())
            # The first may have been in hand when it was suspended, before it could check the clock.
            _, *others = (each for each in zombie.delivered() if each.at > woken)
            late = [each for each in others if each[1:] in heirs]
    assert not flow.refused
    assert not late
    assert not owners.moved_back
