"""Single schedules of a simulated group about claims: moved between streams, released late, sought, of a new topic."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from kzconsumer.errors import NotOwnedError
from kzconsumer.group.claim_and_release import LEAST_FOR_LISTENER
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import ClaimRecord, decode_claim_record
from kzconsumer.zookeeper.operations import Create, Delete, Operation, SetData
from tests.support.members import present_member, sessions_of
from tests.support.plans import plan_of
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.lost_replies import SYSTEM_ERROR, Loss
from tests.support.simulated.member import Handed, Member
from tests.support.simulated.promises import REVOKE_DEADLINE

MOVED = TopicPartition("t", 2)
"""Of six partitions that one member with two streams has, this one moves to its second stream when another joins."""


def joined(group: SimulatedGroup, streams: int = 1) -> Member:
    """A member that has all six partitions."""
    group.logs.grow("t", 6)
    member = group.join("a", {"t": streams}, 0.0, in_batches=False)
    assert group.world.pass_time(10, lambda: len(member.owned) == 6)
    return member


def thread_of(member: Member, partition: TopicPartition) -> int | None:
    thread = member.held.get(partition)
    return thread.thread if thread is not None else None


def record_of(group: SimulatedGroup, partition: TopicPartition) -> ClaimRecord:
    return decode_claim_record(group.ensemble.tree.nodes[group.paths.claim_record(partition)].data)


def stored_from_now_on(group: SimulatedGroup, partition: TopicPartition) -> list[int]:
    """The offsets that are stored for it, in order; the list grows as they are."""
    stored: list[int] = []

    def look(session: int, operations: Sequence[Operation]) -> None:
        writes = [each for each in operations if isinstance(each, (SetData, Create))]
        stored.extend(int(each.data) for each in writes if each.path == group.paths.offset(partition))

    group.ensemble.committed.append(look)
    return stored


def test_a_partition_with_a_range_in_flight_does_not_move_to_another_stream() -> None:
    """Only a claim asks whether the destination has that range: streams have none, so it must not be asked here."""
    with simulated_group(1) as group:
        member = joined(group, streams=2)
        group.logs.stop()
        assert group.world.pass_time(10, lambda: not group.settled())
        assert member.connector is not None
        sessions, claim = sessions_of(member.connector), present_member(member.connector).owned.claims[MOVED]
        plan = plan_of(claim.progress.processed, claim.progress.processed + 5)
        planned = member.process.create_task(sessions.plan({claim.progress: plan}))
        assert group.world.pass_time(1, planned.done)
        assert thread_of(member, MOVED) == 0
        other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(15, lambda: len(other.owned) == 2)
        group.world.pass_time(5)
        assert thread_of(member, TopicPartition("t", 3)) == 1
        assert thread_of(member, MOVED) is None
        left = record_of(group, MOVED).plan
        assert (left is not None and left.id) == plan.id, "the range may be half written"
        group.check()


def test_a_partition_that_moves_before_it_has_an_offset_begins_by_the_reset_policy() -> None:
    with simulated_group(1, reset="largest") as group:
        stored = stored_from_now_on(group, MOVED)
        group.logs.grow("t", 6)
        group.logs.burst(100)
        member = group.join("a", {"t": 2}, 0.0, in_batches=False)
        group.lose_brokers(member)
        assert group.world.pass_time(10, lambda: len(member.owned) == 6)
        other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(15, lambda: len(other.owned) == 2 and thread_of(member, MOVED) == 1)
        group.find_brokers(member)
        assert group.world.pass_time(10, lambda: len(stored) > 2)
        assert stored[0] >= 100
        group.check()


def test_a_partition_that_is_lost_while_its_release_waits_for_work_is_reported_as_lost() -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        kept, moved = group.logs.partitions
        member = group.join("a", {"t": 1}, 2.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        group.pause(member, kept)
        group.logs.burst(40)
        assert group.world.pass_time(5, lambda: bool(member.in_hand))
        group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert member.connector is not None
        present = present_member(member.connector)
        progress = present.owned.claims[moved].progress
        assert group.world.pass_time(1.0, lambda: not progress.open)
        group.promises.disturb(moved)
        present.committer.lose(progress, "as a commit finds it")
        group.world.pass_time(5.0)
        assert member.lost == {moved}
        group.check()


async def hang(*_: object) -> None:
    await anyio.sleep_forever()


def test_a_listener_that_hangs_is_cancelled_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1) as group:
        member = joined(group)
        monkeypatch.setattr(member, "deadline", 1.0)
        monkeypatch.setattr(member, "on_revoked", hang)
        other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert not group.world.pass_time(1.0, lambda: bool(other.owned))
        assert group.world.pass_time(2.0, lambda: len(other.owned) == 3)
        (entry,) = [each for each in group.events if each["event"] == "rebalance listener timed out"]
        assert (entry["level"], entry["seconds"]) == ("error", 1.0)


def test_a_listener_that_hangs_keeps_partitions_no_longer_than_the_revoke_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own deadline may be longer: other members wait for the partitions."""
    with simulated_group(1) as group:
        member = joined(group)
        monkeypatch.setattr(member, "deadline", 600.0)
        monkeypatch.setattr(member, "on_revoked", hang)
        other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        latest = REVOKE_DEADLINE + LEAST_FOR_LISTENER + 1.0
        assert group.world.pass_time(latest, lambda: len(other.owned) == 3)


def test_a_rebalance_that_the_end_of_the_session_cuts_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had released partitions, so the generation on the status page is that of the log's lines."""
    with simulated_group(1) as group:
        member = joined(group)
        monkeypatch.setattr(member, "deadline", REVOKE_DEADLINE)
        monkeypatch.setattr(member, "on_revoked", hang)
        group.join("b", {"t": 6}, 0.0, in_batches=False)
        assert member.connector is not None
        claims = present_member(member.connector).owned.claims
        assert group.world.pass_time(5, lambda: any(not claim.progress.open for claim in claims.values()))
        group.expire(member)
        group.world.pass_time(5)
        counters = sessions_of(member.connector).counters.rebalances
        (cut,) = [each for each in counters.timeline if each.outcome == "interrupted"]
        assert cut.generation == 2
        assert counters.seconds.count == counters.counts.total()


@pytest.mark.parametrize("in_batches", [False, True], ids=["messages", "batches"])
def test_a_release_and_a_move_wait_for_the_work_in_hand(in_batches: bool) -> None:
    """Each stream has something in hand all the time; the newcomer sorts first and takes the first partition."""
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        group.logs.burst(40)
        member = group.join("b", {"t": 2}, 1.0, in_batches=in_batches)
        group.world.pass_time(5)
        assert len(member.in_hand) == 2
        other = group.join("a", {"t": 1}, 1.0, in_batches=in_batches)
        assert group.world.pass_time(5, lambda: other.owned == {TopicPartition("t", 0)})
        group.world.pass_time(5)
        assert thread_of(member, TopicPartition("t", 1)) == 0
        group.check()  # nothing is handed out twice


def test_a_member_that_stops_during_a_release_waits_for_the_work_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is delivered of a partition that it releases, but its records are still being processed."""
    handed: list[tuple[TopicPartition, int]] = []
    with simulated_group(1) as group:
        handed_out = group.promises.handed_out

        def note(member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed:
            handed.extend((partition, offset) for offset in offsets)
            return handed_out(member, partition, offsets, key)

        monkeypatch.setattr(group.promises, "handed_out", note)
        group.logs.grow("t", 2)
        group.logs.burst(12)
        member = group.join("b", {"t": 2}, 0.9, in_batches=False, explicit=True)
        assert group.world.pass_time(10, lambda: len(member.in_hand) > 1)
        other = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert member.connector is not None
        claims = present_member(member.connector).owned.claims
        assert group.world.pass_time(5, lambda: any(not claim.progress.open for claim in claims.values()))
        assert member.in_hand
        group.leave(member)
        assert group.world.pass_time(30, lambda: len(other.owned) == 2)
        group.come_to_rest(20, 3)
        assert sorted(set(handed)) == sorted(handed)


@pytest.mark.parametrize("in_a_task", [False, True])
@pytest.mark.parametrize("call", ["on_assigned", "on_revoked", "on_lost"])
def test_a_listener_may_leave_the_group(call: str, in_a_task: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The member cannot leave before that call has ended, so `leave` does not wait for it there.

    What the call awaits in a task of its own ends with the membership, at the listener's deadline.
    """
    called: list[float] = []
    left: list[float] = []

    with simulated_group(1) as group:
        member = joined(group)

        async def leave(*_: object) -> None:
            assert member.connector is not None
            called.append(group.world.now)
            if in_a_task:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(member.connector.leave)
            else:
                await member.connector.leave()
            left.append(group.world.now)

        monkeypatch.setattr(member, "deadline", 1.0)
        monkeypatch.setattr(member, call, leave)
        if call == "on_lost":
            group.expire(member)
        else:
            other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        if call == "on_assigned":
            assert group.world.pass_time(15, lambda: len(other.owned) == 3)
            group.leave(other)
        assert group.world.pass_time(15, lambda: bool(called))
        registration = group.paths.member(member.consumer)
        assert group.world.pass_time(3, lambda: registration not in group.ensemble.tree.nodes)
        assert left or in_a_task


def test_a_seek_on_a_partition_that_is_just_lost_says_so() -> None:
    """It was owned when the call began: only its write finds out."""
    with simulated_group(1) as group:
        member = joined(group)
        group.world.pass_time(3)
        assert member.connector is not None
        partition = TopicPartition("t", 0)
        group.delete_owner(partition)
        sought = member.process.create_task(member.connector.seek(partition, 1))
        assert group.world.pass_time(5, sought.done)
        assert isinstance(sought.exception(), NotOwnedError)
        assert group.world.pass_time(10, lambda: partition in member.owned)


def test_a_seek_holds_though_an_operator_sets_the_offset_just_before_it_is_stored() -> None:
    with simulated_group(1) as group:
        member = joined(group)
        member.pace = 7.0
        group.logs.burst(100)  # none of which it has read when it seeks over them
        group.world.pass_time(3)
        partition = TopicPartition("t", 0)
        sought = group.logs.end(partition) - 5
        stored = stored_from_now_on(group, partition)
        group.seek(member, partition, sought)
        group.set_offset(partition, 3)
        assert group.world.pass_time(5, lambda: len(stored) > 1)
        assert stored[:2] == [3, sought]
        group.come_to_rest(20, 3)


def test_a_partition_that_comes_back_is_still_paused() -> None:
    with simulated_group(1) as group:
        member = joined(group)
        partition = TopicPartition("t", 5)
        group.pause(member, partition)
        other = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(15, lambda: partition in other.owned)
        group.leave(other)
        assert group.world.pass_time(15, lambda: partition in member.owned)
        group.world.pass_time(3)
        group.check()  # nothing that is paused is handed out
        group.come_to_rest(10, 3)


def test_a_topic_that_is_created_again_is_claimed_again() -> None:
    """Its partitions begin by the reset policy, in an epoch of their own."""
    with simulated_group(1) as group:
        member = joined(group)
        group.world.pass_time(5)
        node = group.ensemble.tree.nodes[paths.topic("t")]
        stored = stored_from_now_on(group, MOVED)
        group.ensemble.operate(Delete(paths.topic("t"), -1), Create(paths.topic("t"), node.data))
        present = group.ensemble.tree.nodes[paths.topic("t")].czxid
        assert present > node.czxid
        assert group.world.pass_time(10, lambda: all(record_of(group, each).epoch == 1 for each in member.owned))
        assert len(member.owned) == 6
        assert {record_of(group, each).incarnation for each in member.owned} == {f"{present:#x}"}
        assert group.world.pass_time(5, lambda: stored)
        assert stored[0] == 0
        for event in ("stored offset of a deleted topic removed", "topic recreated"):
            reported = [each for each in group.events if each["event"] == event]
            assert sorted(each["partition"] for each in reported) == list(range(6))


@pytest.mark.parametrize("partitions", [6, 1], ids=["as many partitions", "fewer partitions"])
def test_a_claim_of_a_topic_that_was_recreated_before_it_reads_nothing(partitions: int) -> None:
    """It would store offsets of the new topic as the earlier one's, and its release would remove them.

    The event that reports the new topic is late: until the next look, as if it were lost.
    """
    with simulated_group(1, lag=(0.2, 0.2), looks="3s") as group:
        group.logs.grow("t", 6)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        nodes = group.ensemble.tree.nodes
        _, _, last_container = group.paths.containers("t")  # made after the group was read, before the claims
        assert group.world.pass_time(10, lambda: last_container in nodes, every=0.01)
        for server in group.ensemble.servers:
            server.forget_watches(paths.topic("t"))
        group.broker_faults.recreate("t", partitions, 0.0)
        group.logs.burst(10)
        present = nodes[paths.topic("t")].czxid
        assert group.world.pass_time(10, lambda: len(member.owned) == partitions)
        assert nodes[group.paths.claim_record(TopicPartition("t", 0))].czxid > present, "claimed too early"
        group.world.pass_time(10)
        group.come_to_rest(20, 3)
        assert {record_of(group, each).incarnation for each in member.owned} == {f"{present:#x}"}
        assert not [each for each in group.events if each["event"] == "stored offset of a deleted topic removed"]
        said = [each for each in group.events if each["event"] == "rebalanced"]
        owned = [len(each["partitions"]) for each in group.events if each["event"] == "partitions owned"]
        assert [each["kept"] + each["moved"] + each["claimed"] for each in said] == owned


def test_nothing_is_delivered_of_new_partitions_before_on_assigned_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It seeks one partition after the other, while the application iterates its stream."""
    new = [TopicPartition("t", number) for number in range(1, 4)]
    early: list[TopicPartition] = []
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 1)
        handed_out, on_assigned = member.group.handed_out, member.on_assigned
        reported: set[TopicPartition] = set()

        async def seek_each(generation: int, partitions: frozenset[TopicPartition]) -> None:
            assert member.connector is not None
            for partition in sorted(partitions):
                await member.connector.seek(partition, 50)
                await anyio.sleep(1.0)
            await on_assigned(generation, partitions)
            reported.update(partitions)

        def look(member: Member, partition: TopicPartition, offsets: range, key: bytes) -> Handed:
            if partition in new and (partition not in reported or offsets[0] < 50):
                early.append(partition)
            return handed_out(member, partition, offsets, key)

        monkeypatch.setattr(member, "on_assigned", seek_each)
        monkeypatch.setattr(member.group, "handed_out", look)
        group.logs.grow("t", 4)
        group.logs.burst(100)
        assert group.world.pass_time(30, lambda: reported >= set(new) and group.settled())
        assert not early


def test_a_partition_that_cannot_be_moved_to_another_stream_keeps_no_other() -> None:
    """A server refuses the first of two moves: its partition is lost and claimed again. The other continues."""
    with simulated_group(1) as group:
        group.logs.grow("t", 8)
        member = group.join("a", {"t": 2}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 8)
        group.network.losing[member.process] = Loss(executed=False, kind="change of thread", refusal=SYSTEM_ERROR)
        group.join("b", {"t": 2}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: not group.settled())
        assert [thread_of(member, TopicPartition("t", number)) for number in range(4)] == [0, 0, 1, 1]
        assert member.lost == {MOVED}
        group.check()


@pytest.mark.parametrize("looks", ["1h", "3s"])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_members_whose_registrations_are_deleted_register_again_and_lose_nothing(names: str, looks: str) -> None:
    with simulated_group(1, looks=looks) as group:
        group.logs.grow("t", 4)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=True) for name in names]
        assert group.world.pass_time(10, lambda: not group.settled())
        owners = group.promises.owners
        for member in members:
            group.delete_registration(member)
        group.come_to_rest(20, 3)
        assert group.promises.owners == owners
        assert not any(member.lost for member in members)
