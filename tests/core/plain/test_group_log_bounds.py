"""What a member says of logs and of its group when its status page asks: every partition has an answer, or a reason."""

from __future__ import annotations

from typing import Literal

import pytest

from kzconsumer.errors import KzConsumerError, NotFoundError
from kzconsumer.group.group_overview import PATIENCE, OverviewPartition
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.member import Member

WITHIN = 2.0
MISSING = [TopicPartition("missing", 0), TopicPartition("missing", 1), TopicPartition("t", 7)]


def bounds(group: SimulatedGroup, member: Member) -> dict[TopicPartition, tuple[int, int] | KzConsumerError]:
    assert member.connector is not None
    asking = sessions_of(member.connector).log_bounds([*group.logs.partitions, *MISSING], WITHIN)
    task = member.process.create_task(asking)
    assert group.world.pass_time(WITHIN + 0.1, task.done)
    return {
        where: (found[0].offset, found[1].offset) if isinstance(found, tuple) else found
        for where, found in task.result().items()
    }


def test_every_partition_has_its_bounds_or_a_reason() -> None:
    with simulated_group(1, brokers=2) as group:
        member = joined(group, partitions=2)
        group.logs.grow("u", 2)
        group.logs.stop()
        partitions = group.logs.partitions
        for each in partitions:
            group.logs.lead(each, each.partition % 2)
        group.world.pass_time(3)
        ends = {each: (group.logs.logs[each].start, group.logs.end(each)) for each in partitions}
        found = bounds(group, member)
        assert {each: at for each, at in found.items() if isinstance(at, tuple)} == ends
        assert {each for each, why in found.items() if isinstance(why, NotFoundError)} == set(MISSING)
        group.brokers[1].set_silent(True)
        found = bounds(group, member)
        known = {each for each, leader in group.logs.leaders.items() if leader == 0}
        assert {each: at for each, at in found.items() if isinstance(at, tuple)} == {each: ends[each] for each in known}
        assert found.keys() == {*partitions, *MISSING}
        group.brokers[0].set_silent(True)
        found = bounds(group, member)
        assert found.keys() == {*partitions, *MISSING}
        assert all(isinstance(each, KzConsumerError) for each in found.values())


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_the_overview_of_a_group_is_what_its_nodes_and_logs_have(storage: Literal["zookeeper", "kafka"]) -> None:
    """Of partitions of others, too, and of those that nobody owns."""
    with simulated_group(1, storage=storage) as group:
        member = joined(group, partitions=2)
        group.logs.grow("u", 1)
        other = group.join("b", {"u": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: len(other.owned) == 1)
        group.logs.grow("unowned", 1)
        group.world.pass_time(3)
        group.logs.stop()
        group.world.pass_time(3)
        ends = {each: group.logs.end(each) for each in group.logs.partitions}
        nobody = TopicPartition("unowned", 0)
        owners = {each: f"g_{'a' if each.topic == 't' else 'b'}-0" for each in ends if each != nobody}

        def read() -> dict[TopicPartition, OverviewPartition]:
            assert member.connector is not None
            of = sessions_of(member.connector).member
            assert of is not None
            task = member.process.create_task(of.overview.read(group.logs.partitions))
            assert group.world.pass_time(PATIENCE + 0.1, task.done)
            return task.result()

        assert min(ends.values()) > 0
        assert read() == {
            each: OverviewPartition(owners.get(each), None if each == nobody else end, end)
            for each, end in ends.items()
        }
        if storage == "zookeeper":  # else the coordinator is one of them
            group.brokers[0].stop()
            assert {isinstance(each.end, Why) and each.end.reason for each in read().values()} == {
                "brokers unreachable"
            }
