"""The nodes of a group that has members are deleted, or set back with their ZooKeeper: members keep what they know.

Their sessions go on. Without that knowledge `largest` would lose records, `smallest` would repeat all, and a
destination that takes part in exactly once would refuse the ranges that overlap those it has.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.operations import Delete, SetData
from tests.support.extent import seeds
from tests.support.simulated.daemons import simulated_daemons
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.member import Handed, Member
from tests.support.simulated.scene import Scene

RESTORED = "stored offset deleted or set back, restored"


def set_back(group: SimulatedGroup) -> None:
    """By a restore of all servers, which elect a leader."""
    copy = max(each.zxid for each in group.ensemble.log if each.time_ms <= (group.world.now - 4.0) * 1000)
    group.ensemble.restore(copy, elected=True)


def delete_claim_records(group: SimulatedGroup) -> None:
    for partition in group.logs.partitions:
        group.delete_claim_record(partition, None)


LOSSES = [SimulatedGroup.delete_nodes, set_back]


@pytest.mark.parametrize("reset", ["smallest", "largest"])
@pytest.mark.parametrize("lose", LOSSES)
def test_a_member_continues_where_it_was(lose: Callable[[SimulatedGroup], None], reset: str) -> None:
    with simulated_group(1, reset=reset, looks="3s") as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        for _ in range(4):
            group.logs.burst(5)
            group.world.pass_time(1.5)
        group.logs.stop()
        group.world.pass_time(3.0)  # all is committed
        group.promises.watching = False
        came = set[tuple[TopicPartition, int]]()
        hand_out = group.promises.handed_out

        def note(member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed:
            came.update((partition, offset) for offset in offsets)
            return hand_out(member, partition, offsets, key)

        group.promises.handed_out = note  # type: ignore[method-assign]
        ends = {each: group.logs.end(each) for each in group.logs.partitions}
        lose(group)
        group.logs.burst(5)
        group.world.pass_time(10.0)
        assert came == {(each, offset) for each, end in ends.items() for offset in range(end, end + 5)}
        assert [event["continues_at"] for event in group.events if event["event"] == RESTORED] == list(ends.values())
        assert {int(group.ensemble.tree.node(group.paths.offset(each)).data) - ends[each] for each in ends} == {5}


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("lose", [*LOSSES, delete_claim_records])
def test_a_destination_gets_each_record_once(lose: Callable[[SimulatedGroup], None], epoch: int) -> None:
    """Whatever is in flight then: a range may be published, and its commit is what finds the claim lost."""
    for seed in seeds(1, 40):
        scene = Scene(looks="3s")
        with simulated_daemons(seed, scene, replayable=True) as daemons:
            daemons.group.logs.grow("t", 2)
            daemon = daemons.start(scene, 1.0, topics={"t": 1})
            daemons.world.pass_time(4.0)
            if epoch:
                daemons.recreate("t", 2)
            daemons.world.pass_time(8.0 + daemons.world.random.random())
            daemon.misled_until = daemons.world.now + 3.0
            daemons.faults.trouble_all(3.0)
            lose(daemons.group)
            daemons.group.logs.burst(20)
            daemons.world.pass_time(8.0)
            assert daemon.runs, f"seed {seed}"
            if lose in LOSSES:
                assert RESTORED in {event["event"] for event in daemons.group.events}, f"seed {seed}"
            daemons.come_to_an_end(45.0)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
@pytest.mark.parametrize("after", [None, 0.03, 0.3], ids=["record", "owner and record", "owner, later record"])
def test_partitions_whose_claim_records_are_deleted_go_on_and_move(after: float | None, busy: bool) -> None:
    """An owner of many records finds it by the next commit, an idle one when it releases the partition."""
    with simulated_group(1) as group:
        member = joined(group)
        for partition in group.logs.partitions:
            group.delete_claim_record(partition, after)
        if busy:
            group.logs.burst(40)
            group.world.pass_time(5.0)
            assert len(member.held) == 4
            assert all(group.paths.claim_record(each) in group.ensemble.tree.nodes for each in member.held)
        another = group.join("b", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10.0, lambda: len(another.held) == 2)
        group.come_to_rest(20.0, 8.0)


def test_a_lower_offset_that_another_member_has_stored_counts() -> None:
    """It has sought back while it owned the partition: its claim record shows that it did."""
    with simulated_group(1, looks="3s") as group:
        group.logs.grow("t", 1)
        (partition,) = group.logs.partitions
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.logs.burst(20)
        group.world.pass_time(5.0)
        group.promises.watching = False
        record, offset = group.paths.claim_record(partition), group.paths.offset(partition)
        content, before = group.ensemble.tree.node(record).data, int(group.ensemble.tree.node(offset).data)
        owner = Delete(group.paths.owner(partition), -1)
        group.ensemble.operate(owner, SetData(record, content, -1), SetData(offset, b"3", -1))
        assert group.world.pass_time(5.0, lambda: int(group.ensemble.tree.node(offset).data) > before)
        assert partition in member.held
        assert RESTORED not in {event["event"] for event in group.events}


def test_an_id_that_another_process_takes_over_at_once_loses_nothing() -> None:
    """Its member is suspended. The group counts both processes as one member, and each partition is claimed once."""
    with simulated_group(1, reset="largest", looks="3s") as group:
        group.logs.grow("t", 3)
        members = [group.join("a", {"t": 1}, 0.01, in_batches=False)]
        group.world.pass_time(8.0)
        group.freeze(members[0], 1.5)
        group.delete_registration(members[0])
        members.append(group.join("a", {"t": 1}, 0.01, in_batches=False))
        for _ in range(2):
            group.logs.burst(20)
            group.world.pass_time(2.0)
        assert group.ensemble.tree.node(group.paths.member(members[0].consumer)).owner == members[1].session
        group.logs.stop()
        group.world.pass_time(6.0)
        group.check()
        assert [group.promises.unfinished(each, group.logs.end(each)) for each in group.logs.partitions] == [""] * 3
        assert sorted(len(each.owned) for each in members) == [0, 3]
