"""Differences that no event shows are found by periodic reconciliation: something is broken in a simulated group
without an event.

If only reconciliation can repair it, members that hardly ever reconcile are the control.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import pytest

from kzconsumer.errors import ConnectionLostError, SessionExpiredError
from kzconsumer.fetcher.fetcher_manager import FetcherManager
from kzconsumer.group.fitness import FIRST_HOLD_DOWN, UNFIT_AFTER
from kzconsumer.group.owned_partitions import VERIFIED_AT_ONCE, OwnedPartitions
from kzconsumer.group.reconcile_rules import LOOK_INTERVAL
from kzconsumer.group.reconciler import OTHERS_AT_ONCE, Reconciler
from kzconsumer.member import Member as Membership
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.claim_record import OwnerNode
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.cluster import ClusterView
from kzconsumer.registry.paths import topic
from kzconsumer.zookeeper.operations import Create, Delete, SetData, Stat
from tests.support.members import present_member, sessions_of
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import GROUP, Member
from tests.support.simulated.promises import REVOKE_DEADLINE

PARTITIONS = 4
OFTEN, SELDOM = "300ms", "1h"
LONG_ENOUGH = 20.0
"""Seconds: longer than a difference has to last, and than a reconciliation takes."""
UNKNOWN_VERSION = b'{"version": 99}'
"""A claim record of a version that knows more: its partition is not claimed."""

LOOKS = pytest.mark.parametrize("looks", [OFTEN, SELDOM])


def joined(group: SimulatedGroup, *names: str) -> list[Member]:
    """These members, each with its share, a while after they joined."""
    members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in names]
    assert group.world.pass_time(20, lambda: shared(members))
    group.world.pass_time(5)
    return members


def shared(members: Sequence[Member]) -> bool:
    return all(len(member.owned) == PARTITIONS // len(members) for member in members)


def insides(member: Member) -> Membership:
    assert member.connector is not None
    return present_member(member.connector)


def logged(group: SimulatedGroup, event: str) -> list[Mapping[str, Any]]:
    return [each for each in group.events if event in each["event"]]


def test_a_member_looks_soon_once_one_of_another_kind_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may get stuck without any event. Before, the next look was far away, also right after joining."""
    looked, times = Reconciler.look, list[float]()

    async def look(self: Reconciler, expected: Mapping[TopicPartition, ConsumerThreadId] | None) -> bool:
        times.append(group.world.now)
        return await looked(self, expected)

    monkeypatch.setattr(Reconciler, "look", look)
    with simulated_group(1) as group:
        group.logs.grow("t", PARTITIONS)
        joined(group, "a")
        assert times == []
        content = b'{"version":1,"subscription":{"u":1},"pattern":"static","timestamp":"1"}'
        group.ensemble.make(group.paths.member("z"), content)
        assert group.world.pass_time(2 * LOOK_INTERVAL, lambda: bool(times))


@LOOKS
def test_an_owner_node_of_ours_without_a_claim_is_released(looks: str) -> None:
    with simulated_group(1, looks=looks) as group:
        group.logs.grow("t", PARTITIONS)
        first, second = joined(group, "a", "b")
        taken = min(second.owned)
        group.promises.disturb(taken)
        (session,) = (each for each, process in group.network.processes.items() if process is first.process)
        path = group.paths.owner(taken)
        group.ensemble.transact(session, [Delete(path, -1), Create(path, b"g_a-0", ephemeral=True)])
        assert group.world.pass_time(5, lambda: taken not in second.owned)
        assert group.world.pass_time(LONG_ENOUGH, lambda: taken in second.owned) == (looks == OFTEN)
        if looks == OFTEN:
            group.check()


def test_a_look_that_is_interrupted_is_soon_repeated_also_after_attempts_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rebalance before it was complete, so nothing is left of the pauses between the attempts before that."""
    looked, times = Reconciler.look, list[float]()

    async def look(self: Reconciler, expected: Mapping[TopicPartition, ConsumerThreadId] | None) -> bool:
        if group.paths.member("unreadable") not in group.ensemble.tree.nodes:
            times.append(group.world.now)
            if len(times) == 1:
                raise ConnectionLostError("its connection breaks")
        return await looked(self, expected)

    with simulated_group(1, looks="500ms") as group:
        group.logs.grow("t", PARTITIONS)
        joined(group, "a")
        group.poison(12.0)
        monkeypatch.setattr(Reconciler, "look", look)
        assert group.world.pass_time(20, lambda: len(times) == 2)
        assert logged(group, "rebalance interrupted")
        assert times[1] - times[0] < 1.5


def test_an_owner_node_of_ours_is_found_among_many_of_others() -> None:
    """A look reads a few of them, the next one the next few."""
    with simulated_group(1, looks=OFTEN) as group:
        group.logs.grow("t", 5 * OTHERS_AT_ONCE)
        group.logs.stop()
        first, second = (group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab")
        assert group.world.pass_time(20, lambda: not group.settled())
        (session,) = (each for each, process in group.network.processes.items() if process is first.process)
        for taken in (max(second.owned), min(second.owned)):
            group.promises.disturb(taken)
            path = group.paths.owner(taken)
            group.ensemble.transact(session, [Delete(path, -1), Create(path, b"g_a-0", ephemeral=True)])
            assert group.world.pass_time(5, lambda taken=taken: taken not in second.owned)  # type: ignore[misc]
            assert group.world.pass_time(LONG_ENOUGH, lambda taken=taken: taken in second.owned)  # type: ignore[misc]
        group.check()


@LOOKS
def test_a_claim_whose_owner_node_is_gone_unnoticed_is_claimed_again(looks: str) -> None:
    with simulated_group(1, looks=looks) as group:
        group.logs.grow("t", PARTITIONS)
        (member,) = joined(group, "a")
        group.logs.stop()  # everything is committed: a commit would notice
        group.world.pass_time(5)
        partition = TopicPartition("t", 0)
        insides(member).parts.watches.unguard(group.paths.owner(partition))
        group.delete_owner(partition)
        assert group.settled()
        assert group.world.pass_time(LONG_ENOUGH, lambda: not group.settled()) == (looks == OFTEN)
        group.check()


@pytest.fixture
def looks_read(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The owner nodes that each look has read again. All answers of a slice come in one turn of the event loop."""
    stat, verify, looks, reading = OwnerRegistry.stat, OwnedPartitions.verify, list[list[str]](), 0

    async def noted(owners: OwnerRegistry, owner: OwnerNode) -> Stat | None:
        nonlocal reading
        looks[-1].append(owner.path)
        reading += 1
        assert reading <= VERIFIED_AT_ONCE, "records would wait for the answers"
        try:
            return await stat(owners, owner)
        finally:
            reading -= 1

    async def look(owned: OwnedPartitions) -> None:
        looks.append([])
        await verify(owned)

    monkeypatch.setattr(OwnerRegistry, "stat", noted)
    monkeypatch.setattr(OwnedPartitions, "verify", look)
    return looks


def with_many(group: SimulatedGroup, partitions: int) -> Member:
    """A member that has them all, and a group in which nothing happens any more."""
    group.logs.grow("t", partitions)
    member = group.join("a", {"t": 1}, 0.0, in_batches=True)
    assert group.world.pass_time(20, lambda: len(member.owned) == partitions)
    group.logs.stop()
    group.world.pass_time(5)
    return member


def test_of_thousands_of_owner_nodes_a_few_are_read_at_each_look(looks_read: list[list[str]]) -> None:
    """After those of all were read, as no other was made or deleted since."""
    partitions = 2 * VERIFIED_AT_ONCE + 5
    with simulated_group(1, looks=OFTEN) as group:
        with_many(group, partitions)
        assert len(set(looks_read[0])) == len(looks_read[0]) == partitions
        assert {len(look) for look in looks_read[1:]} == {VERIFIED_AT_ONCE, 5}
        assert len(set(itertools.chain(*looks_read[1:4]))) == partitions
        group.check()


@pytest.mark.parametrize("what", ["deleted", "set", "another server"])
def test_what_happened_unnoticed_to_one_of_many_owner_nodes_is_found(what: str, looks_read: list[list[str]]) -> None:
    partitions = 3 * VERIFIED_AT_ONCE
    with simulated_group(1, looks=OFTEN) as group:
        member = with_many(group, partitions)
        last = max(member.owned)
        insides(member).parts.watches.unguard(group.paths.owner(last))
        seen = len(looks_read)
        if what == "deleted":
            group.delete_owner(last)
        elif what == "set":
            group.promises.disturb(last)
            group.ensemble.operate(SetData(group.paths.owner(last), b"somebody-0", -1))
        else:
            for server in group.ensemble.servers:
                for connection in list(server.connections):
                    connection.close()
        if what != "another server":
            assert group.world.pass_time(LONG_ENOUGH, lambda: bool(logged(group, "partition lost")))
        else:
            group.world.pass_time(5)
        assert max(map(len, looks_read[seen:])) == (VERIFIED_AT_ONCE if what == "set" else partitions)
        assert group.world.pass_time(LONG_ENOUGH, lambda: last in member.owned)
        group.check()


@LOOKS
def test_a_claim_that_is_not_fetched_is_fetched_again(looks: str) -> None:
    with simulated_group(1, looks=looks) as group:
        group.logs.grow("t", PARTITIONS)
        with mock.patch.object(FetcherManager, "start"):
            joined(group, "a")
        group.logs.burst(100)
        group.logs.stop()
        assert group.world.pass_time(LONG_ENOUGH, lambda: not group.settled()) == (looks == OFTEN)
        group.check()


@LOOKS
def test_an_assignment_that_no_event_announced_is_carried_out(looks: str) -> None:
    with simulated_group(1, looks=looks) as group:
        group.logs.grow("t", PARTITIONS)
        (first,) = joined(group, "a")
        for server in group.ensemble.servers:
            server.forget_watches(group.paths.ids)
        second = group.join("b", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(1)  # less than a difference has to last
        assert len(first.owned) == PARTITIONS
        assert group.world.pass_time(LONG_ENOUGH, lambda: shared([first, second])) == (looks == OFTEN)
        group.check()


def test_a_partition_without_owner_is_reported_once_and_so_is_its_recovery() -> None:
    with simulated_group(1, looks=OFTEN, unowned_alarm="1500ms") as group:
        group.logs.grow("t", PARTITIONS)
        record = f"/consumers/{GROUP}/claims/t/1"
        group.ensemble.make(record, UNKNOWN_VERSION)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(LONG_ENOUGH)
        (alarm,) = logged(group, "partitions without owner")
        assert (alarm["level"], alarm["partitions"]) == ("error", {"t-1": member.consumer})
        assert member.owned == {TopicPartition("t", n) for n in (0, 2, 3)}
        group.ensemble.operate(Delete(record, -1))
        assert group.world.pass_time(LONG_ENOUGH, lambda: shared([member]))
        group.world.pass_time(LONG_ENOUGH)
        (over,) = logged(group, "partitions have an owner again")
        assert (over["level"], over["partitions"]) == ("info", ["t-1"])
        assert logged(group, "partitions without owner") == [alarm]


def test_a_partition_assigned_to_another_member_has_no_owner_again() -> None:
    with simulated_group(1, looks=OFTEN, unowned_alarm="500ms") as group:
        group.logs.grow("t", PARTITIONS)
        group.logs.stop()
        group.ensemble.make(f"/consumers/{GROUP}/claims/t/1", UNKNOWN_VERSION)
        group.join("b", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(LONG_ENOUGH)
        group.join("a", {"t": 1}, 0.0, in_batches=False)  # sorts before: gets that partition, and reports for all
        group.world.pass_time(LONG_ENOUGH)
        assert [each["member"] for each in logged(group, "partitions without owner")] == ["b", "a"]
        (over,) = logged(group, "unowned partitions are assigned to other members")
        assert over["member"] == "b"
        assert not logged(group, "partitions have an owner again")


def test_a_partition_without_owner_is_reported_by_its_member_and_by_the_first_one() -> None:
    with simulated_group(1, looks=OFTEN, unowned_alarm="1500ms") as group:
        group.logs.grow("t", 6)
        group.logs.stop()
        record = f"/consumers/{GROUP}/claims/t/4"
        group.ensemble.make(record, UNKNOWN_VERSION)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "abc"]
        group.world.pass_time(LONG_ENOUGH)
        assert [len(member.owned) for member in members] == [2, 2, 1]
        assert sorted(each["member"] for each in logged(group, "partitions without owner")) == ["a", "c"]
        group.ensemble.operate(Delete(record, -1))
        group.world.pass_time(2 * LONG_ENOUGH)
        assert sorted(each["member"] for each in logged(group, "partitions have an owner again")) == ["a", "c"]
        assert not logged(group, "unowned partitions are assigned to other members")


def test_a_partition_that_another_member_owns_by_then_has_an_owner_again() -> None:
    with simulated_group(1, looks=OFTEN, unowned_alarm="1500ms") as group:
        group.logs.grow("t", PARTITIONS)
        group.logs.stop()
        record = f"/consumers/{GROUP}/claims/t/2"
        group.ensemble.make(record, UNKNOWN_VERSION)
        _, last = (group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ac")
        group.world.pass_time(LONG_ENOUGH)
        assert sorted(each["member"] for each in logged(group, "partitions without owner")) == ["a", "c"]
        last.process.frozen = True  # it does not look while the partition is on its way
        group.ensemble.operate(Delete(record, -1))
        between = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(3, lambda: between.owned == {TopicPartition("t", 2)})
        last.process.frozen = False
        group.world.pass_time(LONG_ENOUGH)
        assert sorted(each["member"] for each in logged(group, "partitions have an owner again")) == ["a", "c"]


def test_every_member_of_a_group_with_two_assignors_says_which_partitions_are_misplaced() -> None:
    """Also the one that has all it wants: it may be the one with the wrong assignor."""
    with simulated_group(1, looks=OFTEN, unowned_alarm="1500ms") as group:
        group.logs.grow("t", 9)
        group.logs.stop()
        other = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3)
        (*_, last) = [group.join(name, {"t": 1}, 0.0, in_batches=False, assignor="roundrobin") for name in "bc"]
        group.world.pass_time(LONG_ENOUGH)
        owners = {each: member for member in group.members for each in member.owned}
        wanted = assigned_by(insides(other))
        assert len(other.owned) == 3, "it has all that it wants"
        found = {each: owner.rpartition("-")[0] for each, owner in insides(other).misplaced.items()}
        assert found == {
            each: owners[each].consumer if each in owners else ""
            for each, thread in wanted.items()
            if each not in other.owned and (each not in owners or owners[each].consumer != thread.consumer)
        }
        assert "" in found.values()
        assert set(found.values()) != {""}
        assert insides(last).misplaced or insides(last).notices.lasting(group.world.now)
        (entry,) = [each for each in logged(group, "another owner than is assigned") if each["member"] == "a"]
        assert entry["partitions"] == {str(each): owner for each, owner in insides(other).misplaced.items() if owner}
        group.leave(other)
        group.world.pass_time(LONG_ENOUGH)
        assert not insides(last).misplaced


def test_an_owner_without_threads_is_not_misplaced() -> None:
    """As Go's and Ruby's clients write it, which assign partitions by rules of their own."""
    with simulated_group(1, looks=OFTEN, unowned_alarm="1500ms") as group:
        group.logs.grow("t", PARTITIONS)
        group.logs.stop()
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        content = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
        group.ensemble.make(group.paths.member("z"), content)
        assert group.world.pass_time(LONG_ENOUGH, lambda: len(member.owned) == PARTITIONS // 2)
        group.ensemble.make(group.paths.owner(TopicPartition("t", 2)), b"z")
        group.ensemble.make(group.paths.owner(TopicPartition("t", 3)), b"z-1")
        group.world.pass_time(LONG_ENOUGH)
        assert insides(member).misplaced == {TopicPartition("t", 3): "z-1"}


def assigned_by(member: Membership) -> Mapping[TopicPartition, ConsumerThreadId]:
    assert member.group is not None
    return member.group[1]


def test_an_owner_node_without_a_member_is_reported_once() -> None:
    with simulated_group(1, looks=OFTEN) as group:
        group.logs.grow("t", PARTITIONS)
        path = group.paths.owner(TopicPartition("t", 2))
        group.ensemble.make(path, b"somebody-0")
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(LONG_ENOUGH)
        (entry,) = logged(group, "owner node of no member")
        assert (entry["about"], entry["reason"]) == (path, "a persistent node: only an operator may delete it")
        assert TopicPartition("t", 2) not in member.owned
        group.ensemble.operate(Delete(path, -1))
        group.come_to_rest(30, 1)


def test_a_member_that_reaches_no_broker_leaves_and_rejoins() -> None:
    """The work in hand is waited for. What it has fetched and not handed out by then is dropped."""
    with simulated_group(1, looks="1s") as group:
        group.logs.grow("t", PARTITIONS)
        first, second = joined(group, "a", "b")
        first.pace = REVOKE_DEADLINE - 1
        group.logs.burst(40)
        group.world.pass_time(1)
        group.lose_brokers(first)
        assert not group.world.pass_time(UNFIT_AFTER - 1, lambda: not first.owned)
        assert group.world.pass_time(5 + REVOKE_DEADLINE, lambda: shared([second]))
        (left,) = logged(group, "left the group to members that can work")
        assert left["reason"] == "no broker answers, while other members go on"
        assert first.connector is not None
        assert sessions_of(first.connector).waits_for == left["reason"]
        assert group.world.pass_time(
            FIRST_HOLD_DOWN + 2, lambda: logged(group, "no broker is reachable, staying out of the group")
        )
        commit = first.process.create_task(first.connector.commit())
        assert group.world.pass_time(1, commit.done)
        assert isinstance(commit.exception(), SessionExpiredError), "what it had not committed is redelivered"
        group.find_brokers(first)
        assert not group.world.pass_time(2 * FIRST_HOLD_DOWN - 5, lambda: first.owned)
        assert group.world.pass_time(10, lambda: shared([first, second]))
        group.come_to_rest(20, 5)


@pytest.mark.parametrize("why", ["nothing is produced", "no member reaches a broker", "brokers answer again"])
def test_a_member_stays_if_no_other_does_better(why: str) -> None:
    """It is not known that it does worse than others."""
    with simulated_group(1, looks="1s") as group:
        group.logs.grow("t", PARTITIONS)
        if why == "nothing is produced":
            group.logs.stop()
        members = joined(group, "a", "b")
        for member in members if why == "no member reaches a broker" else members[:1]:
            group.lose_brokers(member)
        if why == "brokers answer again":
            group.logs.lead(min(members[0].owned), -1)  # there is still something to look up
            group.world.pass_time(5)
            group.find_brokers(members[0])
        assert not group.world.pass_time(3 * UNFIT_AFTER, lambda: not all(member.owned for member in members))
        assert not logged(group, "left the group")
        group.check()


@pytest.mark.parametrize("expired", [False, True], ids=["connection", "session"])
def test_a_fault_of_zookeeper_does_not_keep_a_member_away_for_longer(
    expired: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing about the brokers, which are asked again."""
    with simulated_group(1, looks="1s") as group:
        group.logs.grow("t", PARTITIONS)
        first, second = joined(group, "a", "b")
        group.lose_brokers(first)
        assert group.world.pass_time(2 * UNFIT_AFTER, lambda: shared([second]))
        group.find_brokers(first)
        unreachable = ClusterView.unreachable

        async def interrupted(self: ClusterView) -> str | None:
            monkeypatch.undo()
            if expired:
                group.expire(first)
            group.world.after(0.0, partial(group.network.cut, first.process, arrives=False))
            return await unreachable(self)

        monkeypatch.setattr(ClusterView, "unreachable", interrupted)
        assert group.world.pass_time(FIRST_HOLD_DOWN + 10, lambda: shared([first, second]))
        assert ClusterView.unreachable is unreachable
        group.check()


def test_a_stop_does_not_wait_for_the_hold_down() -> None:
    with simulated_group(1, looks="1s") as group:
        group.logs.grow("t", PARTITIONS)
        first, second = joined(group, "a", "b")
        group.lose_brokers(first)
        assert group.world.pass_time(2 * UNFIT_AFTER, lambda: shared([second]))
        assert first.task is not None
        group.leave(first)
        assert group.world.pass_time(2, first.task.done)
        group.check()


def test_a_claim_that_waits_for_an_event_that_does_not_come() -> None:
    """The owner node that blocks it goes, and no event says so: the timer of the next attempt reads again."""
    with simulated_group(1, looks=SELDOM) as group:
        group.logs.grow("t", PARTITIONS)
        path = group.paths.owner(TopicPartition("t", 2))
        group.ensemble.make(path, b"somebody-0")
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(5)
        assert TopicPartition("t", 2) not in member.owned
        for server in group.ensemble.servers:
            server.forget_watches(path)
        group.ensemble.operate(Delete(path, -1))
        assert group.world.pass_time(LONG_ENOUGH, lambda: shared([member]))
        group.check()


def test_a_topic_that_grows_without_an_event_is_found_while_a_claim_waits() -> None:
    with simulated_group(1, looks=SELDOM) as group:
        group.logs.grow("t", PARTITIONS)
        group.ensemble.make(group.paths.owner(TopicPartition("t", 2)), b"somebody-0")
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(5)
        for server in group.ensemble.servers:
            server.forget_watches(topic("t"))
        group.logs.grow("t", PARTITIONS + 1)
        assert group.world.pass_time(LONG_ENOUGH, lambda: TopicPartition("t", PARTITIONS) in member.owned)
        group.check()
