"""The product's fetchers against simulated brokers: single schedules of late, lost and refused responses."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kzconsumer.brokers.protocol.error_codes import UNKNOWN_SERVER_ERROR
from kzconsumer.errors import OffsetLostError
from kzconsumer.fetcher.fetch_set import FetchSet
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.streams.chunk_queue import Turns
from kzconsumer.zookeeper.operations import Delete
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.broker_faults import ailing
from tests.support.simulated.broker_machine import TIGHT
from tests.support.simulated.fetch_sessions import SLOTS
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.kafka_frames import FETCH, LIST_OFFSETS, METADATA, OFFSET_FOR_LEADER_EPOCH
from tests.support.simulated.member import Member
from tests.support.simulated.partition_logs import PRODUCED_EVERY
from tests.support.simulated.scene import Scene
from tests.support.simulated.virtual_time import BEGINNING, Process

FIRST = TopicPartition("t", 0)
LARGE = 1500
"""Bytes of a value, so that a burst is a response that is decoded after the next request is sent."""
PATIENT = (("request_timeout", "30s"),)
ROOMY = (("response_bytes", "128KiB"), ("max_bytes", "96KiB"))
"""Room in a response for one busy partition, in the queues for everything."""


def just_before_records_are_produced(group: SimulatedGroup) -> None:
    now = group.world.now
    group.world.pass_time(PRODUCED_EVERY - (now - BEGINNING) % PRODUCED_EVERY - 0.05)


def fetched(member: Member) -> dict[TopicPartition, int | None]:
    assert member.connector is not None
    return {at.topic_partition: at.fetched for at in member.connector.positions()}


def rests(group: SimulatedGroup) -> None:
    group.come_to_rest(30, 3)


def test_an_answer_that_a_seek_has_overtaken_is_dropped() -> None:
    """It was made for the position before, and would be taken for that of the new one."""
    with simulated_group(1) as group:
        member = joined(group)
        for target in (4, 2, 8, 1):
            just_before_records_are_produced(group)
            group.broker_faults.slow_down(0, FETCH, 0.5, 0.1)
            group.world.pass_time(0.2)  # the answer is made, and on its way
            group.seek(member, FIRST, target)
            group.world.pass_time(3)
            group.check()
        rests(group)


@pytest.mark.parametrize("slots", [0, SLOTS])
def test_partitions_take_turns_when_a_response_has_no_room_for_all(slots: int) -> None:
    """Whoever keeps their order: the member, or the broker in a fetch session."""
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT) as group:
        group.brokers[0].sessions.slots = slots
        member = joined(group, pace=0.05)
        group.logs.stop()
        group.logs.burst(3000)
        group.world.pass_time(2)
        before = read(group, member)
        group.world.pass_time(5)
        gained = [after - since for after, since in zip(read(group, member), before, strict=True)]
        assert min(gained) > max(gained) / 3 > 0, gained
        group.check()


def always_first(patch: pytest.MonkeyPatch) -> None:
    """Partitions are asked for in the same order each time: a response may have no room for the last ones."""
    patch.setattr(FetchSet, "move_back", lambda self, served: None)


def left_out(patch: pytest.MonkeyPatch) -> None:
    """One partition is not asked for any more."""
    fetchable = FetchState.fetchable
    patch.setattr(FetchState, "fetchable", lambda state, now: state.topic_partition != FIRST and fetchable(state, now))


def goes_on(patch: pytest.MonkeyPatch) -> None:
    """Who has the turn keeps it for as long as it has something."""
    took = Turns.took

    def keep(turns: Turns[object], one: object, size: int, *, more: bool) -> None:
        if not more:
            took(turns, one, size, more=False)

    patch.setattr(Turns, "took", keep)


@pytest.mark.parametrize(
    ("plant", "slots", "expected"),
    [
        (always_first, 0, "had records for a, and others came"),
        (left_out, 0, "a asks for others and not for t-0"),
        (left_out, SLOTS, "a asks for others and not for t-0"),
    ],
)
def test_finds_partitions_that_starve(
    plant: Callable[[pytest.MonkeyPatch], None], slots: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT) as group:
        group.brokers[0].sessions.slots = slots
        joined(group, pace=0.005)
        plant(monkeypatch)
        group.logs.burst(600)
        group.world.pass_time(5)
        assert any(expected in violation for violation in group.promises.violations), group.promises.violations


@pytest.mark.parametrize("plant", [None, goes_on])
def test_queued_partitions_take_turns(
    plant: Callable[[pytest.MonkeyPatch], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each, several chunks are queued."""
    with simulated_group(1, record_bytes=LARGE, fetch=ROOMY) as group:
        joined(group, pace=0.05)
        if plant is not None:
            plant(monkeypatch)
        group.logs.burst(1200)
        group.world.pass_time(5)
        if plant is None:
            rests(group)
        else:
            assert any("is queued, and a had" in violation for violation in group.promises.violations)


def test_partitions_that_take_turns_do_not_starve() -> None:
    """The same without a fault."""
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT) as group:
        joined(group, pace=0.005)
        group.logs.burst(600)
        group.world.pass_time(5)
        rests(group)


@pytest.mark.parametrize("seed", range(4))
def test_a_partition_whose_leader_is_looked_up_does_not_starve(seed: int) -> None:
    """It moves between streams while a fetch for the earlier one is held back, and a broker does not answer."""
    with simulated_group(seed, brokers=2, assignor="roundrobin") as group:
        group.logs.grow("t", 4)
        group.broker_faults.stop(0, 0.0)  # the other one leads all of them from now on
        member = group.join("a", {"t": 2}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: len(member.owned) == 4)
        group.world.pass_time(3)
        group.broker_faults.silence(0, 12.0)
        group.join("b", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(12)
        rests(group)


def read(group: SimulatedGroup, member: Member) -> list[int]:
    """How far the member has read each partition."""
    assert member.connector is not None
    return [position.consumed for position in member.connector.positions()]


@pytest.mark.parametrize("part", [0.0, 0.4, 1.0])
def test_a_response_that_is_lost_after_it_was_read_counts_no_longer(part: float) -> None:
    """Whole or in part, before it is decoded: its bytes leave the budget, and it is fetched again."""
    with simulated_group(1, record_bytes=LARGE, fetch=ROOMY) as group:
        member = joined(group)
        for _ in range(5):
            group.network.tearing[member.process] = part
            group.logs.burst(200)
            group.world.pass_time(1)
            assert member.process not in group.network.tearing
        rests(group)


MOVES: dict[str, Callable[[SimulatedGroup], None]] = {
    "moved": lambda group: group.broker_faults.move_leader(FIRST, 0.0),
    "elected late": lambda group: group.broker_faults.move_leader(FIRST, 3.0),
    "stopped": lambda group: group.broker_faults.stop(group.logs.leaders[FIRST], 5.0),
    "silent": lambda group: group.broker_faults.silence(group.logs.leaders[FIRST], 12.0),
}


@pytest.mark.parametrize("how", MOVES)
def test_a_leader_that_moves_is_followed(how: str) -> None:
    with simulated_group(1, brokers=2) as group:
        member = joined(group)
        for _ in range(3):
            MOVES[how](group)
            group.world.pass_time(20)
            assert read(group, member)[0] >= group.logs.end(FIRST) - 8
        rests(group)


def test_a_seek_while_the_leader_is_looked_up() -> None:
    """The claim has another fetch state by then, and that is the one to be fetched."""
    with simulated_group(1, brokers=2) as group:
        member = joined(group)
        for target in (3, 1, 5, 2):
            for number in (0, 1):
                group.broker_faults.slow_down(number, METADATA, 0.5, 1.0)
            group.broker_faults.move_leader(FIRST, 0.0)
            group.world.pass_time(0.3)
            group.seek(member, FIRST, target)
            group.world.pass_time(4)
            assert read(group, member)[0] > target + 4
        rests(group)


@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_records_that_retention_deletes_before_they_are_read(reset: str) -> None:
    with simulated_group(1, reset=reset) as group:
        member = joined(group)
        member.pace = 1.0
        group.logs.burst(400)
        group.world.pass_time(3)
        group.broker_faults.retain(FIRST, 300)
        group.seek(member, FIRST, 10)
        group.world.pass_time(3)
        rests(group)


@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_a_topic_that_is_made_again_is_read_from_its_beginning(gap: float) -> None:
    with simulated_group(1, brokers=2) as group:
        member = joined(group)
        group.logs.burst(300)
        group.world.pass_time(3)
        group.broker_faults.recreate("t", 3, gap)
        group.world.pass_time(5)
        assert len(member.owned) == 3
        rests(group)


def test_a_member_whose_partitions_the_new_topic_does_not_have_says_that_it_released_them() -> None:
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        members = [group.join(name, {"t": 1}, 0.0, in_batches=False) for name in "ab"]
        assert group.world.pass_time(10, lambda: all(len(member.owned) == 1 for member in members))
        group.broker_faults.recreate("t", 1, 0.0)
        group.world.pass_time(5)
        rests(group)
        last = [each for each in group.events if each["event"] == "rebalanced" and each["member"].endswith("b")][-1]
        assert (last["released"], last["claimed"], last["generation"]) == (1, 0, 2)


@pytest.mark.parametrize("seed", range(4))  # which broker is asked for leaders, and answers at once or late
def test_a_partition_is_claimed_again_while_its_start_is_looked_up(seed: int) -> None:
    """The fetcher waits for the answer for the earlier claim, and has nothing else to do when it comes."""
    with simulated_group(seed, brokers=2) as group:
        group.logs.grow("t", 2)
        group.broker_faults.slow_down(1, LIST_OFFSETS, 1.0, 2.0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: member.owned)
        group.world.pass_time(0.2)
        group.broker_faults.recreate("t", 2, 0.0)
        group.world.pass_time(3)
        rests(group)


@pytest.mark.parametrize("seed", range(2))
def test_the_late_answer_of_a_former_leader_moves_no_position(seed: int) -> None:
    """It was asked where the log begins, hung, and answers once another broker has been asked and read."""
    with simulated_group(seed, brokers=2, fetch=(("request_timeout", "30s"),)) as group:
        group.logs.grow("t", 2)
        group.logs.burst(5)
        group.broker_faults.slow_down(1, LIST_OFFSETS, 20.0, 30.0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: member.owned)
        for partition in group.logs.partitions:
            if group.logs.leaders[partition] == 1:
                group.broker_faults.move_leader(partition, 0.0)
        assert group.world.pass_time(15, lambda: all((at or 0) > 5 for at in fetched(member).values()))
        group.world.pass_time(20)
        rests(group)


def test_an_application_that_is_slow_in_the_middle_of_a_lot_gets_what_is_left_once() -> None:
    with simulated_group(1, record_bytes=LARGE, fetch=TIGHT) as group:
        member = joined(group)
        member.pace = 0.2
        group.logs.burst(600)
        group.world.pass_time(5)
        other = group.join("b", {"t": 1}, 0.2, in_batches=False)
        group.world.pass_time(20)
        assert len(member.owned) == len(other.owned) == 2
        rests(group)


@pytest.mark.parametrize("seed", range(4))
def test_answers_that_are_not_whole(seed: int) -> None:
    """A partition is missing, refused, cut short or damaged, also again and again: each record is delivered once."""
    chance = random.Random(seed)
    with simulated_group(seed, Scene(brokers=2)) as group:
        group.logs.grow("t", 4)
        group.join("a", {"t": 2}, 0.0, in_batches=bool(seed % 2))
        for broker in group.brokers:
            broker.alters = ailing(chance, 30, (frames.NOT_LEADER, UNKNOWN_SERVER_ERROR), damaged=1)
        for _ in range(5):
            group.logs.burst(40)
            group.world.pass_time(2)
        group.come_to_rest(60, 5)


def test_a_rate_limit_is_waited_for() -> None:
    """Neither exceeded nor in a busy loop: the processes have few turns while nothing may be fetched."""
    rate = 16 << 10
    with simulated_group(1, record_bytes=1500, fetch=(*TIGHT, ("rate_limit", "16KiB"))) as group:
        group.logs.grow("t", 3)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10)
        group.logs.stop()
        group.logs.burst(200)
        turn, turns = Process.turn, 0

        def count(process: Process) -> None:
            nonlocal turns
            turns += 1
            turn(process)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Process, "turn", count)
            before = sum(read(group, member))
            group.world.pass_time(30)
        fetched = (sum(read(group, member)) - before) * 1500
        assert 0.5 * 30 * rate < fetched < 30 * rate + 2 * (128 << 10)
        assert turns < 200 * 30
        group.come_to_rest(30, 3)


def test_a_broker_that_hangs_is_left_when_it_is_no_longer_registered() -> None:
    """Its partitions have another leader by then: an answer of it is not waited for until the request times out."""
    with simulated_group(1, Scene(brokers=2, fetch=(("request_timeout", "60s"),))) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert group.world.pass_time(10, lambda: len(member.owned) == 2)
        group.world.pass_time(3)
        group.brokers[0].set_silent(True)
        group.world.pass_time(3)
        group.ensemble.operate(Delete(paths.broker(0), -1))
        for partition in group.logs.partitions:
            group.logs.lead(partition, 1)
        group.logs.burst(10)
        ends = {partition: group.logs.end(partition) for partition in group.logs.partitions}
        assert member.connector is not None
        positions = member.connector.positions
        assert group.world.pass_time(5, lambda: all(at.consumed >= ends[at.topic_partition] for at in positions()))
        (lost,) = (each["reason"] for each in group.events if each["event"] == "broker lost")
        assert str(lost).endswith("closed: it is not registered any more")
        group.brokers[0].set_silent(False)


@pytest.mark.parametrize("seed", range(2))
def test_a_partition_stays_with_a_late_broker_while_its_records_are_decoded(seed: int) -> None:
    """Another broker leads it by then. What that one sends would be queued first."""
    with simulated_group(seed, record_bytes=LARGE, brokers=2, decoding=15.0, fetch=PATIENT) as group:
        group.logs.grow("t", 3)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: len(member.owned) == 3)
        group.logs.burst(40)
        group.world.pass_time(30)
        first = group.logs.leaders[FIRST]
        moved = next(partition for partition, leader in group.logs.leaders.items() if leader != first)
        group.broker_faults.slow_down(first, OFFSET_FOR_LEADER_EPOCH, 20.0, 20.0)
        group.broker_faults.move_leader(moved, 0.0)
        group.world.pass_time(6)
        group.logs.burst(300)
        group.world.pass_time(2)
        group.broker_faults.move_leader(FIRST, 0.0)
        group.world.pass_time(1)
        group.logs.burst(10)
        group.world.pass_time(40)
        group.come_to_rest(60, 3)


def test_brokers_that_all_hang_are_waited_for() -> None:
    """Who leads their partitions by now is asked of each, and none answers."""
    with simulated_group(1, brokers=2, fetch=(("request_timeout", "9s"),)) as group:
        group.logs.grow("t", 3)
        group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(4)
        for broker in group.brokers:
            group.broker_faults.silence(broker.number, 30.0)
        group.world.pass_time(30)
        group.come_to_rest(30, 1)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("no offset", "has no stored offset"),
        ("retention", "is not in the log any more, or not yet, at offset 40"),
        ("cut off", "is not in the log any more, or not yet, at offset 40"),
    ],
)
def test_with_reset_fail_a_member_stops_at_an_offset_that_is_lost(case: str, why: str) -> None:
    """It names the partition and the setting, and leaves the offset as it is."""
    with simulated_group(1, reset="fail") as group:
        group.logs.grow("t", 1)
        group.logs.stop()
        group.logs.burst(50)
        (partition,) = group.logs.partitions
        if case != "no offset":
            group.ensemble.make(group.paths.offset(partition).rpartition("/")[0], b"")
            group.ensemble.make(group.paths.offset(partition), b"40")
        if case == "retention":
            group.broker_faults.retain(partition, 45)
        if case == "cut off":
            group.broker_faults.elect_uncleanly(partition, 20, 0, 0.0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        assert member.task is not None
        assert group.world.pass_time(30, member.task.done)
        error = member.task.exception()
        assert isinstance(error, OffsetLostError)
        assert str(error) == f't-0 {why}, and reset = "fail"'
        assert group.ensemble.tree.data(group.paths.offset(partition)) == (None if case == "no offset" else b"40")
