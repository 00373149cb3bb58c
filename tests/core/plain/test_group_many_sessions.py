"""A member with many partitions of a broker has several fetch sessions there, each on a connection of its own."""

from __future__ import annotations

import math

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.settings.sections import FetchSettings
from tests.core.plain.test_group_fetch_sessions import fetched, positions, requests
from tests.core.plain.test_group_looks import insides
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.member import Member

FIRST = TopicPartition("t", 0)
FEW = 4
"""Partitions of one session at most."""


def sizes(group: SimulatedGroup) -> list[int]:
    return sorted(len(reads) for reads in positions(group))


def all_read(*members: Member) -> dict[TopicPartition, int | None]:
    return {partition: at for member in members for partition, at in fetched(member).items()}


def test_each_session_has_a_share_of_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker looks at a session's partitions for each record of one of them. Memory is that of one response."""
    with simulated_group(1, session_partitions=FEW) as group, requests(monkeypatch) as asked:
        member = joined(group, partitions=10)
        assert sizes(group) == [2, 4, 4]
        assert {partition: at for reads in positions(group) for partition, at in reads.items()} == fetched(member)
        assert max(each.max_bytes for each in asked[-10:]) == FetchSettings().response_bytes // 3
        group.logs.stop()
        group.world.pass_time(3)
        with requests(monkeypatch) as after:
            group.logs.grow_log(FIRST, 1)
            group.world.pass_time(0.2)
        assert len({each.session for each in after if each.partitions}) == 1
        group.come_to_rest(30, 3)


def test_a_partition_that_comes_later_joins_the_smallest_session() -> None:
    with simulated_group(1, session_partitions=FEW) as group:
        member = joined(group, partitions=6)
        assert sizes(group) == [3, 3]
        group.logs.grow("t", 2)
        assert group.world.pass_time(20, lambda: len(member.owned) == 8)
        group.world.pass_time(3)
        assert sizes(group) == [4, 4]
        group.logs.grow("t", 1)
        assert group.world.pass_time(20, lambda: len(member.owned) == 9)
        group.world.pass_time(3)
        assert len(sizes(group)) == 3
        group.come_to_rest(30, 3)


def test_a_member_with_fewer_partitions_has_fewer_sessions() -> None:
    """Each costs an idle member two answers a second."""
    with simulated_group(1, session_partitions=2) as group:
        first = joined(group, partitions=12)
        assert len(sizes(group)) == 6
        others = [group.join(name, {"t": 1}, 0.0, in_batches=True) for name in ("b", "c", "d")]
        members = [first, *others]
        assert group.world.pass_time(20, lambda: all(len(member.owned) == 3 for member in members))
        group.world.pass_time(3)
        assert len(sizes(group)) == len(members) * math.ceil(3 / 2)
        assert {partition for reads in positions(group) for partition in reads} == all_read(*members).keys()
        group.come_to_rest(30, 3)
        for other in others:
            group.leave(other)
        assert group.world.pass_time(20, lambda: len(first.owned) == 12)
        group.world.pass_time(3)
        assert {at for reads in positions(group) for at in reads.items()} == set(fetched(first).items())
        group.come_to_rest(30, 3)


def test_a_partition_that_is_started_twice_stays_in_its_session() -> None:
    """Else two fetchers would queue its records."""
    with simulated_group(1, session_partitions=FEW) as group:
        member = joined(group, partitions=8)
        inside = insides(member)
        inside.parts.fetchers.start(claim.fetch for claim in inside.owned.claims.values())
        group.world.pass_time(3)
        assert sizes(group) == [4, 4]
        group.come_to_rest(30, 3)


def test_all_sessions_are_opened_again_after_a_restart() -> None:
    with simulated_group(1, session_partitions=2, brokers=2) as group:
        member = joined(group, partitions=8)
        for number in (0, 1):
            group.broker_faults.stop(number, 1.0)
            group.world.pass_time(8)
        assert sum(len(broker.sessions) for broker in group.brokers) == 4, "wherever the leaders are"
        assert all(group.logs.end(each) - (at or 0) <= 4 for each, at in fetched(member).items())
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("how", ["stopped", "silent"])
def test_a_broker_that_is_lost_is_logged_once(how: str) -> None:
    """Not by each of the connections."""
    with simulated_group(1, session_partitions=2, brokers=2) as group:
        joined(group, partitions=16)
        if how == "stopped":
            group.broker_faults.stop(0, 3.0)
        else:
            group.broker_faults.silence(0, 7.0)
        group.world.pass_time(20)
        assert [event["broker"] for event in group.events if event["event"] == "broker lost"] == [0]
        group.come_to_rest(30, 3)
