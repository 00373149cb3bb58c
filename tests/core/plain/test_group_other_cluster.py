"""The addresses of a broker that has died, or of ZooKeeper, are given to another cluster, which has the same topics."""

from __future__ import annotations

import pytest

from kzconsumer.fetcher.broker_fetcher import BrokerFetcher
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.group.fitness import ELSEWHERE
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.status.health import Health
from kzconsumer.zookeeper.operations import Delete
from tests.support.members import sessions_of
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.member import Member
from tests.support.simulated.partition_logs import PartitionLogs, host


def of_other_cluster(group: SimulatedGroup) -> SimulatedBroker:
    """The only broker of its cluster, with more records."""
    logs = PartitionLogs(Ensemble(group.world), 1, 0)
    logs.identify("other")
    logs.grow("t", 4)
    for _ in range(50):
        logs.burst(10)
    logs.stop()
    return SimulatedBroker(group.world, logs, 0)


def read(member: Member) -> dict[TopicPartition, int]:
    assert member.connector is not None
    return {at.topic_partition: at.consumed for at in member.connector.positions()}


def ends(group: SimulatedGroup) -> dict[TopicPartition, int]:
    return {partition: group.logs.end(partition) for partition in group.logs.partitions}


@pytest.mark.parametrize(("brokers", "storage"), [(1, "zookeeper"), (2, "kafka")])
def test_a_broker_of_another_cluster_is_not_taken_for_one_of_ours(brokers: int, storage: str) -> None:
    """It is not read, not believed who leads, and gets no offsets. The other broker is read all the time."""
    with simulated_group(1, brokers=brokers, storage=storage) as group:
        group.logs.identify("ours")
        member = joined(group)
        group.logs.stop()
        assert group.world.pass_time(5, lambda: read(member) == ends(group))

        before, other, address = ends(group), of_other_cluster(group), host(0)
        ours, group.network.hosts[address] = group.network.hosts[address], other
        group.brokers[0].stop()
        group.logs.burst(10)
        group.world.pass_time(30)
        led = group.logs.leaders
        assert read(member) == {each: before[each] if led[each] == 0 else end for each, end in ends(group).items()}
        assert not other.coordinator.stored
        said = "broker 0 (kafka0:9092): a broker of cluster other, not of ours"
        assert any(said in str(event.get("reason")) for event in group.events)

        group.network.hosts[address] = ours
        group.brokers[0].up = True
        assert group.world.pass_time(10, lambda: read(member) == ends(group))


def test_a_cluster_without_an_id_is_read() -> None:
    """Its brokers are older than 0.10.1, or its node in ZooKeeper was deleted."""
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        assert any(ends(group).values())
        assert group.world.pass_time(5, lambda: read(member) == ends(group))


@pytest.mark.parametrize("back", ["other", "ours"])
def test_an_ensemble_that_has_no_cluster_yet_is_left_if_it_becomes_that_of_another(back: str) -> None:
    """Its first broker starts later than the ensemble, or ours has lost its nodes for a while."""
    with simulated_group(1) as group:
        group.logs.identify("ours")
        member = joined(group)
        group.logs.stop()
        assert group.world.pass_time(5, lambda: read(member) == ends(group))

        group.ensemble.operate(Delete(paths.CLUSTER_ID, -1))
        group.logs.register(up=False)
        group.expire(member)
        assert group.world.pass_time(15, lambda: bool(registered(group)))
        group.world.pass_time(5)
        assert health_of(member).status() == "joining the group: no broker is registered"

        group.logs.identify(back)
        group.logs.register(up=True)
        group.logs.burst(10)
        assert group.world.pass_time(20, lambda: read(member) == ends(group)) == (back == "ours")
        assert health_of(member).joined == bool(registered(group)) == (back == "ours")
        if back == "other":
            said = "staying out of the group: ZooKeeper is that of cluster other, not of ours"
            assert health_of(member).status().startswith(said)


@pytest.mark.parametrize("known", [True, False])
def test_an_ensemble_of_another_cluster_is_not_joined(known: bool) -> None:
    """It has the addresses of ours, knows no session of the member, and has its topics. The first one is believed."""
    with simulated_group(1) as group:
        if known:
            group.logs.identify("ours")
        member = joined(group)
        group.logs.stop()
        assert group.world.pass_time(5, lambda: read(member) == ends(group))

        if known:
            group.ensemble.operate(Delete(paths.CLUSTER_ID, -1))
        group.logs.identify("other")
        session = member.session
        group.expire(member)
        if not known:
            assert group.world.pass_time(15, lambda: member.session != session and member.settled)
            return
        assert not group.world.pass_time(60, lambda: bool(registered(group)))
        said = "ZooKeeper is that of cluster other, not of ours; if that is meant, start again"
        assert any(said == event.get("reason") for event in group.events)
        health = health_of(member)
        assert (health.status(), health.joined) == (f"staying out of the group: {said}", False)

        # Its brokers are back later: they are waited for as a member.
        group.ensemble.operate(Delete(paths.CLUSTER_ID, -1))
        group.logs.identify("ours")
        group.logs.register(up=False)
        for broker in group.brokers:
            broker.stop()
        group.world.pass_time(2 * ELSEWHERE)
        assert registered(group)
        assert (health.status(), health.joined) == ("joining the group: no broker is registered", False)
        for broker in group.brokers:
            broker.up = True
        group.logs.register(up=True)
        group.logs.burst(10)
        assert group.world.pass_time(5, lambda: read(member) == ends(group))
        assert health.joined


def health_of(member: Member) -> Health:
    """What its daemon reports."""
    assert member.connector is not None
    sessions = sessions_of(member.connector)
    health = Health(sessions.lease, 1e9, 1e9)
    health.phase, health.sessions = "", sessions
    return health


def registered(group: SimulatedGroup) -> set[str]:
    ids = group.ensemble.tree.nodes.get(group.paths.ids)
    return set(ids.children) if ids is not None else set()


def test_a_cluster_of_which_some_brokers_do_not_know_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before 0.10.1, in the middle of an upgrade: what they and the others call a broker is the same one."""
    begin, begun = FetcherManager._begin, list[int]()

    def noted(self: FetcherManager, broker: Broker) -> BrokerFetcher:
        begun.append(broker.id)
        return begin(self, broker)

    monkeypatch.setattr(FetcherManager, "_begin", noted)
    with simulated_group(1, brokers=2) as group:
        group.logs.identify("ours")
        group.brokers[0].knows_cluster = False
        joined(group)
        for _ in range(10):
            group.broker_faults.move_leader(group.logs.partitions[0], 0.0)
            group.world.pass_time(2)
        group.come_to_rest(30, 3)
    assert sorted(begun) == [0, 1]
