"""Brokers that hold a member back, close idle connections, or send it to another replica: in a simulated group."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kzconsumer.model import TopicPartition
from tests.core.plain.test_group_fetch_sessions import requests
from tests.support.members import sessions_of
from tests.support.simulated.broker_machine import TIGHT
from tests.support.simulated.fetch_sessions import Answer
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.kafka_frames import FETCH, Fetch
from tests.support.simulated.member import Member

FIRST = TopicPartition("t", 0)
LARGE = 1500


def read(member: Member) -> dict[TopicPartition, int]:
    assert member.connector is not None
    return {at.topic_partition: at.consumed for at in member.connector.positions()}


def left(group: SimulatedGroup, member: Member) -> int:
    return sum(group.logs.end(partition) - offset for partition, offset in read(member).items())


def logged(group: SimulatedGroup, event: str) -> list[Any]:
    return [each for each in group.events if each["event"] == event]


@pytest.mark.parametrize(("quota", "sessions"), [(3_000, 1), (20_000, 1), (20_000, 2), (100_000, 1)])
def test_answers_that_are_too_large_for_a_quota_become_smaller(quota: int, sessions: int) -> None:
    """A broker answers empty what exceeds the quota over its window, however long one waits."""
    with simulated_group(1, record_bytes=LARGE, session_partitions=4 // sessions) as group:
        member = joined(group)
        group.logs.stop()
        group.brokers[0].quota = quota
        for _ in range(150):
            group.logs.burst(10)
        before = left(group, member)
        assert member.connector is not None
        group.world.pass_time(5)
        assert all(at.throttled for at in member.connector.positions())
        assert group.world.pass_time(600, lambda: left(group, member) < before), "the first answer is waited for"
        before = left(group, member)
        group.world.pass_time(60)
        assert (before - left(group, member)) * LARGE > 60 * quota * 0.4 or not left(group, member)
        fetches = sessions_of(member.connector).counters.fetches[0]
        assert fetches.throttled.count > 0
        assert fetches.throttled.total > 1
        assert len(logged(group, "throttled by the broker")) == sessions
        assert not logged(group, "broker lost")
        group.brokers[0].quota = None
        assert group.world.pass_time(60, lambda: not left(group, member))
        group.world.pass_time(20)
        assert not any(at.throttled for at in member.connector.positions())
        group.come_to_rest(30, 3)


def test_requests_wait_for_as_long_as_the_broker_says() -> None:
    with simulated_group(1, record_bytes=LARGE) as group:
        joined(group)
        group.brokers[0].quota = 1_000
        group.logs.burst(100)
        assert group.world.pass_time(5, lambda: logged(group, "throttled by the broker"))
        group.world.pass_time(1)
        for _ in range(30):
            group.world.pass_time(1)
            assert not any(connection.requests for connection in group.brokers[0].connections), "asked too early"


def test_a_partition_that_is_asked_for_alone_waits_for_as_long_as_the_broker_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for less than a second."""
    with simulated_group(1, record_bytes=LARGE) as group:
        (broker,) = group.brokers
        throttles, begin, held, asked = broker.throttles, broker.sessions.begin, [], []

        def throttled(size: int) -> float:
            seconds = throttles(size)
            held.append((group.world.now, group.world.now + seconds))
            return seconds

        def begun(fetch: Fetch) -> Answer:
            asked.append(group.world.now)
            return begin(fetch)

        monkeypatch.setattr(broker, "throttles", throttled)
        monkeypatch.setattr(broker.sessions, "begin", begun)
        group.logs.grow("t", 1)
        group.broker_faults.produce_remotely(100, 1.5, 60.0)
        broker.quota = 100 * LARGE / 10.3  # a batch is above it by 0.3 s
        group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10)
        short = [(at, until) for at, until in held if 0.2 < until - at < 0.6]
        assert len(short) > 2
        assert not [(at, time) for at, until in short for time in asked if at < time < until], "asked too early"
        broker.quota = None
        group.come_to_rest(60, 3)


def test_a_throttle_counts_in_the_answer_that_ends_a_fetch_session() -> None:
    """The broker reads nothing more for that time, whatever else the answer says."""
    with simulated_group(1, record_bytes=LARGE) as group:
        member = joined(group)
        assert member.connector is not None
        group.logs.stop()
        group.world.pass_time(2)
        (broker,) = group.brokers
        broker.sessions.evict()
        broker.answered.append(lambda *_: setattr(broker, "quota", 1_000))  # of the former session, at the last moment
        group.logs.burst(100)
        group.world.pass_time(2)
        assert [each["reason"] for each in logged(group, "fetch session ended")] == ["FETCH_SESSION_ID_NOT_FOUND"]
        fetches = sessions_of(member.connector).counters.fetches[0]
        assert (fetches.throttled.count, fetches.throttled.total > 30) == (1, True)
        assert all(at.throttled for at in member.connector.positions())
        assert not any(connection.requests for connection in broker.connections), "asked too early"


@pytest.mark.parametrize("meanwhile", [False, True])
def test_an_idle_connection_that_the_broker_closes_is_no_loss(meanwhile: bool) -> None:
    """Its partitions wait for room, for 45 s; it may be closed while the next request is on its way."""
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT) as group:
        member = joined(group)
        member.pace = 45.0
        group.logs.burst(600)
        if meanwhile:
            group.world.pass_time(40)
            group.brokers[0].hangs_up = True
        else:
            group.brokers[0].idle = 30.0
        group.world.pass_time(55)
        member.pace = 0.0
        group.world.pass_time(60)
        assert not group.brokers[0].hangs_up
        assert not logged(group, "broker lost")
        assert not logged(group, "fetch refused, looking up leader")
        group.come_to_rest(30, 3)


def test_a_line_that_is_too_slow_for_a_large_answer_brings_smaller_ones() -> None:
    """Within 5 s it brings less than one batch of 150 kB, within the longest time for an answer 2.4 MB of the 3 MB."""
    bandwidth, records = 20_000, 500
    with simulated_group(1, record_bytes=LARGE, fetch=(("request_timeout", "5s"),)) as group:
        member = joined(group)
        group.logs.stop()
        group.network.bandwidth = bandwidth
        group.logs.burst(records)
        behind = left(group, member)
        needed = behind * LARGE / bandwidth
        group.world.pass_time(needed * 2)
        assert left(group, member) < behind / 10
        assert all("the next will be smaller" in each["reason"] for each in logged(group, "broker lost"))
        assert 1 <= len(logged(group, "broker lost")) <= 4
        group.network.bandwidth = math.inf
        group.logs.burst(100)
        assert group.world.pass_time(10, lambda: not left(group, member)), "larger ones again"
        group.come_to_rest(30, 3)


def test_connections_that_a_firewall_has_forgotten_are_not_used_again() -> None:
    """Nobody answers there, nor says that the connection is lost: a record would wait for the request's timeout."""
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT, brokers=2) as group:
        member = joined(group)
        group.logs.stop()
        group.network.forgets = 90.0
        group.world.pass_time(100)  # nothing looks for a leader, or compares logs
        group.broker_faults.move_leader(FIRST, 0.0)
        group.logs.grow_log(FIRST, 1)
        assert group.world.pass_time(2, lambda: not left(group, member)), "the control connections"
        member.pace = 120.0
        group.logs.burst(600)
        group.world.pass_time(119)  # nothing is fetched for want of room
        member.pace = 0.0
        assert group.world.pass_time(10, lambda: not left(group, member)), "the fetchers' connections"
        assert not logged(group, "broker lost")
        group.come_to_rest(30, 3)


def test_a_broker_that_closes_busy_connections_is_lost() -> None:
    with simulated_group(1, record_bytes=LARGE) as group:
        joined(group)
        group.brokers[0].hangs_up = True
        group.world.pass_time(3)
        assert logged(group, "broker lost")


def sent_to_the_replica(group: SimulatedGroup, until: int = 1 << 60, partitions: int = 2) -> Member:
    """The leader of the first partition names the other broker, which has the log up to that offset."""
    group.logs.grow("t", partitions)
    group.broker_faults.stop(1, 0.0)
    group.brokers[0].preferred[FIRST] = 1
    group.brokers[1].follows[FIRST] = until
    member = group.join("a", {"t": 1}, 0.0, in_batches=True)
    assert group.world.pass_time(10, lambda: len(member.owned) == partitions)
    group.world.pass_time(5)
    return member


def leader_of(member: Member) -> int | None:
    assert member.connector is not None
    return next(at.leader for at in member.connector.positions() if at.topic_partition == FIRST)


def test_the_replica_that_the_leader_names_is_fetched_from() -> None:
    with simulated_group(1, brokers=2, rack="here") as group:
        member = sent_to_the_replica(group)
        assert leader_of(member) == 1
        before = group.brokers[1].requests[FETCH]
        group.logs.burst(100)
        group.world.pass_time(5)
        assert group.brokers[1].requests[FETCH] > before
        assert read(member)[FIRST] > 100
        del group.brokers[0].preferred[FIRST]
        group.world.pass_time(250)
        assert leader_of(member) == 1
        group.world.pass_time(60)
        assert leader_of(member) == 0, "the leader decides again after a while"
        group.come_to_rest(30, 3)


def test_a_replica_is_not_asked_to_wait_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Kafka 3.4 its answer waits to the end though records come (KAFKA-14334)."""
    with simulated_group(1, brokers=2, rack="here", fetch=(("max_wait", "100ms"),)) as group:
        sent_to_the_replica(group)
        group.logs.stop()
        group.world.pass_time(3)
        with requests(monkeypatch) as asked:
            group.world.pass_time(3)
        waits = {each.max_wait for each in asked}
        assert 0.1 in waits
        assert max(waits) > 0.2, "the other partition's leader"


def test_without_a_rack_leaders_are_fetched_from() -> None:
    with simulated_group(1, brokers=2) as group:
        assert leader_of(sent_to_the_replica(group)) == 0
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("how", ["stopped", "behind", "no replica any more"])
def test_a_replica_that_fails_is_given_up_for_the_leader(how: str) -> None:
    """What it lacks is no reason to reset the position."""
    with simulated_group(1, brokers=2, rack="here") as group:
        member = sent_to_the_replica(group)
        del group.brokers[0].preferred[FIRST]
        if how == "stopped":
            group.brokers[1].stop()
        elif how == "behind":
            group.brokers[1].follows[FIRST] = 3
        else:
            del group.brokers[1].follows[FIRST]
        group.world.pass_time(5)
        assert leader_of(member) == 0
        assert left(group, member) < 6
        group.check()
        group.brokers[1].up = True
        group.come_to_rest(30, 3)


def test_a_replica_that_the_leader_names_and_that_refuses_is_not_reported_as_the_leader() -> None:
    with simulated_group(1, brokers=2, rack="here") as group:
        sent_to_the_replica(group)
        del group.brokers[1].follows[FIRST]
        group.world.pass_time(40)
        (event,) = [each for each in group.events if "refused by" in each["event"]]
        assert event["event"] == "partition refused by the replica that its leader names, retrying"
        assert (event["broker"], event["reason"]) == (1, "NOT_LEADER_OR_FOLLOWER")
        del group.brokers[0].preferred[FIRST]
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("named", [1, 7])
def test_a_leader_that_names_a_replica_which_is_not_there_is_not_asked_without_pause(
    named: int, partitions: int
) -> None:
    """It is down, or no broker of that number is known. One partition alone waits for no answer about others."""
    with simulated_group(1, brokers=2, rack="here") as group:
        sent_to_the_replica(group, partitions=partitions)
        group.brokers[1].stop()
        group.brokers[0].preferred[FIRST] = named
        before = group.brokers[0].requests[FETCH]
        group.world.pass_time(20)
        assert group.brokers[0].requests[FETCH] - before < 100
        del group.brokers[0].preferred[FIRST]
        group.brokers[1].up = True
        group.come_to_rest(30, 3)
