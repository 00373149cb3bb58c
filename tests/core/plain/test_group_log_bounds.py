"""Where logs begin and end, as the observer of a member asks: every partition has an answer, or a reason."""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError, NotFoundError
from kzconsumer.model import TopicPartition
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.member import Member

WITHIN = 2.0
MISSING = [TopicPartition("missing", 0), TopicPartition("missing", 1)]


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
