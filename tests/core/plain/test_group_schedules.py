"""Single schedules of the simulated group, which must not depend on hypothesis finding them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kzconsumer.model import TopicPartition
from kzconsumer.zookeeper.operations import SetData
from tests.support.extent import extent
from tests.support.members import sessions_of
from tests.support.simulated.broker_machine import LogsCutOffMachine, ZooKeeperRestoredMachine
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.lost_replies import KINDS, SYSTEM_ERROR, Kind, Loss
from tests.support.simulated.machine import GroupMachine
from tests.support.simulated.member import Member
from tests.support.simulated.network import SLOW
from tests.support.simulated.scene import SESSION_TIMEOUT, Scene

KINDS_HERE = [kind for kind in KINDS if kind not in ("plan", "published plan", "other")]
"""Plans are of replayable sinks, which this group has none of (test_plan_machine)."""
LOST = ("reply lost", "request lost")


def violations_of_a_release_in_the_middle_of_a_lot() -> Iterator[str]:
    """A member joins while the application of the only other one is busy with a burst, at several moments."""
    for seed in range(10):
        with simulated_group(seed, fetch=(("max_bytes", "2KiB"),)) as group:  # a hundred records of each in turn
            group.logs.grow("t", 4)
            group.join("a", {"t": 1}, 0.005, in_batches=False)
            group.world.pass_time(3.0)
            group.logs.burst(600)
            group.world.pass_time(1.1 + seed / 4)  # in the turn of each partition
            group.join("b", {"t": 1}, 0.005, in_batches=False)
            group.world.pass_time(8.0)
        yield from group.promises.violations


def test_a_release_in_mid_lot_redelivers_nothing_and_waits_for_one_message() -> None:
    assert list(violations_of_a_release_in_the_middle_of_a_lot()) == []


@pytest.mark.parametrize(
    "registration",
    [
        b'{"subscription":{"t":1000000},"pattern":"static"}',
        b'{"subscription":{".*":1000000},"pattern":"white_list"}',
        b'{"subscription":{"t":1},"pattern":"static","more":%s}' % (b"[" * 5000 + b"]" * 5000),
        b'{"subscription":{"%s":1},"pattern":"white_list"}' % (b"(" * 2000 + b")" * 2000),
        json.dumps({"subscription": {"a\0b": 1}, "pattern": "static"}).encode(),
    ],
    ids=["streams", "streams of a list", "nested", "nested pattern", "no path"],
)
def test_members_wait_until_an_oversized_registration_leaves(registration: bytes) -> None:
    """No member ends or misses a deadline: owned partitions stay owned, and the newcomer joins when it has left."""
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        first, second = (group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab")
        assert group.world.pass_time(10, lambda: not group.settled())
        owned = first.held, second.held
        began = time.process_time()
        group.poison(20.0, registration)
        group.world.pass_time(2)
        third = group.join("c", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(17)
        assert (first.held, second.held, third.held) == (*owned, {})
        assert time.process_time() - began < 10.0
        group.check()
        assert group.world.pass_time(30, lambda: not group.settled())
        assert third.held


@pytest.mark.parametrize("lost", [None, Loss(executed=True, kind="registration")], ids=["", "reply lost"])
def test_a_member_that_is_started_again_waits_until_its_id_is_free(lost: Loss | None) -> None:
    """Its former session still holds the id. A registration whose reply was lost is its own."""
    with simulated_group(1) as group:
        group.kill(joined(group))
        again = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(SESSION_TIMEOUT / 2)
        assert not again.held
        if lost is not None:
            group.network.losing[again.process] = replace(lost)
        assert group.world.pass_time(2 * SESSION_TIMEOUT, lambda: len(again.owned) == 4)
        group.check()
        waiting = [each for each in group.events if each["event"].startswith("consumer id still registered by")]
    assert len(waiting) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_that_wrongly_reports_expiry_costs_no_second_timeout(seed: int) -> None:
    """The ensemble keeps the sessions with all their nodes; members close those themselves and own all at once."""
    with simulated_group(seed) as group:
        group.logs.grow("t", 6)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab"]
        assert group.world.pass_time(10, lambda: not group.settled())
        kept = [session for session in group.ensemble.sessions.values() if session.alive]
        group.stop_leader(0, SESSION_TIMEOUT, 3.0)
        group.world.pass_time(SESSION_TIMEOUT + 2.9)
        assert all(session.alive for session in kept)
        assert not any(member.held for member in members)
        assert group.world.pass_time(3.0, lambda: all(len(member.held) == 3 for member in members))
        group.check()
        assert not any(session.alive for session in kept)
        group.come_to_rest(10, 3)


def test_a_session_abandoned_early_is_closed_no_earlier_than_it_could_expire() -> None:
    """What its lease promised to sinks and applications holds, although no member of ours relies on it any more."""
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab"]
        assert group.world.pass_time(10, lambda: not group.settled())
        kept = [session for session in group.ensemble.sessions.values() if session.alive]
        began = group.world.now
        group.stop_leader(0, 0.1, 2.5)
        for member in members:
            group.network.cut(member.process, arrives=True)
        group.world.pass_time(4.0)
        assert len(group.ensemble.sessions) == 4  # both have abandoned theirs, and have another
        assert all(session.alive for session in kept)
        assert group.world.pass_time(SESSION_TIMEOUT, lambda: all(len(member.held) == 3 for member in members))
        assert not any(session.alive for session in kept)
        assert SESSION_TIMEOUT - 1.5 < group.world.now - began < SESSION_TIMEOUT + 1.5  # 2.6 s later without our help
        group.check()


def test_a_member_that_is_repeatedly_cut_off_keeps_its_session_and_its_share() -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        first = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(first.owned) == 6)
        (session,) = group.ensemble.sessions.values()
        guest = group.join("b", {"t": 1}, 0.0, in_batches=False)
        for number in range(60):
            group.network.cut(first.process, arrives=bool(number % 2))
            group.world.pass_time(group.world.random.uniform(0.02, 0.3))
            if number == 40:
                assert len(guest.owned) == 3
                group.leave(guest)
        assert session.alive
        group.check()
        group.come_to_rest(10, 3)
        assert len(first.owned) == 6


def test_a_member_that_receives_nothing_stops_before_its_successor_begins() -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        lost, heir = (group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab")
        assert group.world.pass_time(10, lambda: len(lost.owned) == len(heir.owned) == 3)
        group.silence(lost, 2 * SESSION_TIMEOUT)
        assert group.world.pass_time(2 * SESSION_TIMEOUT, lambda: len(heir.owned) == 6)
        assert lost.connector is not None
        assert not sessions_of(lost.connector).lease.held
        assert group.world.pass_time(3 * SESSION_TIMEOUT, lambda: len(lost.owned) == len(heir.owned) == 3)
        group.check()
        group.come_to_rest(10, 3)


def test_a_member_on_a_slow_line_shares_and_takes_over() -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        slow = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(slow.owned) == 6)
        group.network.latency[slow.process] = SLOW
        (session,) = group.ensemble.sessions.values()
        guest = group.join("b", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(30, lambda: len(slow.owned) == len(guest.owned) == 3)
        group.leave(guest)
        assert group.world.pass_time(30, lambda: len(slow.owned) == 6)
        assert session.alive
        group.check()
        group.come_to_rest(20, 3)


@pytest.mark.parametrize("pace", [0.004, 0.05])
def test_a_process_that_resumes_in_mid_lot_hands_out_little(pace: float) -> None:
    """A fast application gets many messages for one check of the lease, a slow one gets one."""
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        member = group.join("a", {"t": 1}, pace, in_batches=False)
        group.world.pass_time(5.0)
        assert group.world.pass_time(2.0, lambda: member.in_hand, every=0.001)
        group.freeze(member, 2 * SESSION_TIMEOUT)
        group.network.cut(member.process, arrives=False)  # or the event of its owner node would come first
        group.world.pass_time(2 * SESSION_TIMEOUT + 1)
        group.check()
        group.come_to_rest(20, 3)


@pytest.mark.parametrize("server", range(2))
def test_a_group_comes_to_rest_after_the_faults_that_have_begun(server: int) -> None:
    """A leader that resumes goes on reporting sessions as expired, and clients may be connected to it later."""
    with simulated_group(2) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        for each in range(3):
            group.cut_off(each, 3.0)
        group.stop_leader(server, 0.05, SESSION_TIMEOUT)
        group.come_to_rest(20, 8)


def test_eager_members_release_everything_before_they_claim() -> None:
    """With `ownership = "eager"` also what stays: it is revoked and committed, and only then claimed again."""
    with simulated_group(1, ownership="eager") as group:
        group.logs.grow("t", 6)
        first = group.join("a", {"t": 2}, 0.005, in_batches=False)
        assert group.world.pass_time(10, lambda: len(first.owned) == 6)
        group.logs.burst(600)
        group.world.pass_time(0.5)
        second = group.join("b", {"t": 1}, 0.005, in_batches=False)
        assert group.world.pass_time(10, lambda: len(first.owned) == 4)
        group.check()
        group.leave(second)
        assert group.world.pass_time(10, lambda: len(first.owned) == 6)
        group.come_to_rest(30, 3)
        assert not first.lost


@pytest.mark.parametrize(
    ("kind", "fate", "nth"),
    [
        *(
            (kind, fate, nth)
            for kind in KINDS_HERE
            if kind != "registration"
            for fate in LOST
            for nth in extent((1,), (1, 2))
        ),
        *((kind, "reply lost", 3) for kind in KINDS_HERE if kind != "registration"),
        *(("registration", fate, 1) for fate in LOST),
        # A member whose registration, first containers or first offsets are refused like that ends with the error.
        *((kind, "refused", nth) for kind in ("claim", "release", "change of thread") for nth in extent((1,), (1, 2))),
        ("commit", "refused", 7),
    ],
)
def test_a_write_that_fails_is_found_out_about(kind: Kind, fate: str, nth: int) -> None:
    """Everybody soon has its share, and the group comes to rest as if nothing had happened."""
    with simulated_group(nth) as group:
        group.logs.grow("t", 6)
        members = [group.join("a", {"t": 2}, 0.005, in_batches=False)]
        group.network.losing[members[0].process] = loss = failure(fate, kind, nth)
        group.world.pass_time(4)
        members.append(group.join("b", {"t": 1}, 0.005, in_batches=False))
        group.world.pass_time(4)
        assert [len(member.owned) for member in members] == [4, 2]
        claim_records_change(group, members[0])
        group.leave(members[1])
        group.world.pass_time(8)
        members.append(group.join("c", {"t": 3}, 0.005, in_batches=False))
        group.world.pass_time(8)
        assert loss.nth <= 0, "no such write was made"
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("fate", [*LOST, "refused"])
def test_a_seek_whose_store_fails_is_stored_by_a_later_commit(fate: str) -> None:
    """In the second epoch of the partitions: their topic was made again."""
    with simulated_group(1) as group:
        group.logs.grow("t", 6)
        member = group.join("a", {"t": 1}, 0.005, in_batches=False)
        group.world.pass_time(4)
        group.broker_faults.recreate("t", 6, 0.0)
        group.world.pass_time(6)
        assert len(member.owned) == 6
        for nth, partition in enumerate(sorted(member.owned)[:3], 1):
            group.network.losing[member.process] = failure(fate, "commit", nth)
            group.seek(member, partition, group.logs.end(partition) // 2)
            group.world.pass_time(2)
        group.come_to_rest(30, 3)


def test_pauses_among_messages_that_are_acknowledged_later_and_out_of_order() -> None:
    """Nothing is committed before it is acknowledged, and the rest of what was fetched goes on behind what is taken."""
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.4, in_batches=False, explicit=True)
        group.world.pass_time(3)
        group.logs.burst(60)
        for _ in range(60):
            group.world.pass_time(0.37)
            for partition in group.logs.partitions:
                group.pause(member, partition)
            group.world.pass_time(0.11)
            group.resume(member)
        group.check()
        other = group.join("b", {"t": 1}, 0.4, in_batches=False, explicit=True)
        group.world.pass_time(5)
        group.check()
        group.leave(other)
        group.come_to_rest(30, 3)


def test_work_in_hand_is_waited_for_though_the_release_of_another_partition_is_refused() -> None:
    """Its records are acknowledged a second later; the next attempt of the rebalance must not give them up."""
    steps = LogsCutOffMachine()
    steps.begin(
        328, 3, Scene(assignor="roundrobin", ownership="eager", reset="smallest", lag=(0.0005, 0.01), looks="1h"), False
    )
    steps.slow_down_broker(by=1.5, lasts=12.0, request=1, wait=7.0, which=6)
    steps.produce_a_burst(records=600, wait=1.5)
    steps.stop_broker(lasts=0.05, wait=0.0, which=1)
    steps.cut_off(read=1, wait=0.6, which=11)
    steps.delete_owner(wait=0.0, which=6)
    steps.join(listed=True, pace=1.0, streams=2, taking="acknowledged messages", wait=0.6)
    steps.delete_owner(wait=0.01, which=10)
    steps.lose_a_reply(loss=Loss(True, "claim", 3), wait=1.5, which=1)
    steps.kill(wait=4.0, which=10)
    steps.add_partitions(partitions=2, wait=0.2, which=5)
    steps.expire(wait=0.05, which=11)
    steps.lose_a_reply(loss=failure("refused", "release", 1), wait=0.2, which=10)
    steps.join(listed=False, pace=0.0, streams=1, taking="messages", wait=0.05)
    steps.join(listed=False, pace=0.005, streams=2, taking="batches", wait=0.6)
    steps.delete_owner(wait=0.2, which=11)
    steps.produce_a_burst(records=200, wait=4.0)
    steps.nothing_wrong()
    steps.teardown()


def failure(fate: str, kind: Kind, nth: int) -> Loss:
    return Loss(fate == "reply lost", kind, nth, SYSTEM_ERROR if fate == "refused" else 0)


def claim_records_change(group: SimulatedGroup, member: Member) -> None:
    """An operator touches them: the claims are lost, and their owner nodes abandoned and made again."""
    for partition in sorted(member.owned)[:2]:
        group.promises.disturb(partition)
        record = group.paths.claim_record(partition)
        group.ensemble.operate(SetData(record, group.ensemble.tree.node(record).data, -1))


def test_what_was_acknowledged_behind_a_late_record_may_be_redelivered() -> None:
    """Three records take longer than a revocation may; those behind them are acknowledged at once."""
    steps = GroupMachine()
    steps.begin(2084, 3, Scene(assignor="roundrobin", ownership="keep", reset="smallest", lag=(0.0, 0.4), looks="1h"))
    steps.add_partitions(which=0, partitions=2, wait=0.0)
    steps.join(listed=False, pace=7.0, streams=1, taking="acknowledged messages", wait=0.0)
    steps.delete_owner(which=0, wait=0.0)
    steps.join(listed=False, pace=1.0, streams=2, taking="messages", wait=0.0)
    steps.take_brokers(lasts=0.05, wait=7.0)
    steps.wait(1.0)
    steps.add_topic(partitions=1, wait=0.0)
    steps.add_topic(partitions=1, wait=0.01)
    steps.add_partitions(which=0, partitions=1, wait=0.0)
    steps.wait(1.0)
    steps.change_pace(which=0, pace=0.0)
    steps.join(listed=False, pace=0.0, streams=1, taking="messages", wait=7.0)
    steps.nothing_wrong()
    steps.teardown()


def test_a_group_is_not_at_rest_while_an_application_works() -> None:
    """Of a partition that a foreign program has moved back, whose records were all read before, too."""
    with simulated_group(0) as group:
        reader = joined(group, partitions=1)
        group.logs.stop()
        assert group.world.pass_time(10, lambda: not group.settled())
        group.kill(reader)
        group.set_offset(TopicPartition("t", 0), 0)
        slow = group.join("b", {"t": 1}, 7.0, in_batches=False, explicit=True)
        assert group.world.pass_time(30, lambda: bool(slow.in_hand))
        group.come_to_rest(45, 8)


def test_a_group_is_not_at_rest_before_its_members_know_that_zookeeper_has_lost_transactions() -> None:
    """Its nodes may be as members left them; the sessions that have seen what is gone end all the same."""
    steps = ZooKeeperRestoredMachine()
    scene = Scene(assignor="sticky", ownership="eager", reset="largest", lag=(0.0005, 0.01), looks="3s")
    steps.begin(49704, 1, scene, False)
    steps.take_brokers(lasts=4.0, wait=0.6)
    steps.restore_zookeeper(ago=0.1, elected=True, wait=0.01)
    steps.produce_a_burst(records=200, wait=0.01)
    steps.cut_off_server(lasts=12.0, wait=0.6, which=7)
    steps.lose_transactions(ago=5.0, wait=0.2)
    steps.change_line(slow=False, which=3)
    steps.change_pace(pace=1.0, which=1)
    steps.restore_zookeeper(ago=0.1, elected=False, wait=0.6)
    steps.restore_zookeeper(ago=3.0, elected=True, wait=4.0)
    steps.seek(part=3, partition=3, wait=0.0, which=9)
    steps.poison(lasts=0.05, wait=0.2)
    steps.take_brokers(lasts=6.0, wait=0.6)
    steps.produce_a_burst(records=200, wait=0.01)
    steps.cut_off_server(lasts=4.0, wait=7.0, which=2)
    steps.restore_zookeeper(ago=10.0, elected=False, wait=0.0)
    steps.cut_off_server(lasts=0.5, wait=0.6, which=10)
    steps.change_line(slow=False, which=8)
    steps.cut_off_server(lasts=4.0, wait=0.05, which=11)
    steps.lose_transactions(ago=2.0, wait=0.0)
    steps.nothing_wrong()
    steps.teardown()


def test_one_commit_of_a_former_owner_may_be_accepted_while_versions_begin_again() -> None:
    """It has slept through two restorations, and finds the versions of its claim, which are those of another one."""
    steps = ZooKeeperRestoredMachine()
    scene = Scene(assignor="range", ownership="keep", reset="smallest", lag=(0.0, 0.4), looks="1h")
    steps.begin(57618, 3, scene, True)
    steps.freeze(lasts=12.0, wait=0.0, which=7)
    steps.change_pace(pace=0.0, which=3)
    steps.restore_zookeeper(ago=60.0, elected=True, wait=4.0)
    steps.change_line(slow=False, which=6)
    steps.seek(part=3, partition=0, wait=4.0, which=4)
    steps.change_pace(pace=7.0, which=9)
    steps.lose_transactions(ago=5.0, wait=0.2)
    steps.join(listed=False, pace=0.05, streams=3, taking="messages", wait=1.5)
    steps.wait(10.0)
    steps.nothing_wrong()
    steps.teardown()


def test_of_several_seeks_that_are_called_while_a_process_sleeps_the_last_one_holds() -> None:
    """Though the first one ends last: its commit has to be repeated."""
    steps = ZooKeeperRestoredMachine()
    scene = Scene(assignor="range", ownership="keep", reset="largest", lag=(0.0005, 0.01), looks="1h")
    steps.begin(351, 2, scene, False)
    steps.wait(3.0)
    steps.resume(wait=0.05, which=4)
    steps.cut(arrives=False, wait=0.0, which=2)
    steps.pause(partition=6, wait=0.2, which=0)
    steps.freeze(lasts=6.0, wait=0.6, which=10)
    steps.cut(arrives=True, wait=4.0, which=9)
    steps.seek(part=1, partition=2, wait=0.6, which=0)
    steps.kill_and_start_again(streams=1, wait=0.0, which=1)
    steps.restore_zookeeper(ago=3.0, elected=False, wait=0.0)
    steps.resume(wait=0.01, which=7)
    steps.seek(part=0, partition=11, wait=4.0, which=3)
    steps.lose_transactions(ago=0.3, wait=7.0)
    steps.change_pace(pace=0.0, which=1)
    steps.resume(wait=0.6, which=10)
    steps.nothing_wrong()
    steps.teardown()


def test_a_partition_that_is_sought_is_not_taken_for_one_that_nobody_fetches() -> None:
    """It is not fetched until its new offset is stored, which takes long here. Two looks come in between."""
    steps = ZooKeeperRestoredMachine()
    scene = Scene(assignor="range", ownership="eager", reset="smallest", lag=(0.0, 0.4), looks="1h")
    steps.begin(3093, 3, scene, False)
    steps.cut(arrives=False, wait=0.2, which=7)
    steps.change_line(slow=True, which=2)
    steps.seek(part=0, partition=11, wait=7.0, which=1)
    steps.seek(part=1, partition=4, wait=0.2, which=10)
    steps.change_line(slow=False, which=5)
    steps.add_topic(partitions=2, wait=7.0)
    steps.seek(part=2, partition=2, wait=1.5, which=4)
    steps.add_topic(partitions=2, wait=0.0)
    steps.add_topic(partitions=3, wait=0.01)
    steps.seek(part=2, partition=3, wait=0.01, which=4)
    steps.seek(part=1, partition=7, wait=0.6, which=7)
    steps.change_line(slow=False, which=8)
    steps.seek(part=0, partition=9, wait=0.0, which=4)
    steps.seek(part=2, partition=6, wait=4.0, which=4)
    steps.nothing_wrong()
    steps.teardown()


def test_the_end_of_a_cut_off_that_is_over_already_disconnects_nobody() -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3.0)
        for server in range(3):
            group.cut_off(server, 2.0)
            group.cut_off(server, 4.0)
        group.world.pass_time(3.9)
        assert "connection lost" in {each["event"] for each in group.events}
        group.events.clear()
        group.world.pass_time(1.0)
        assert "connection lost" not in {each["event"] for each in group.events}
