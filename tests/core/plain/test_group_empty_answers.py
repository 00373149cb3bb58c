"""A simulated group and brokers that answer without records though the log goes on: tiered storage, compaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kzconsumer.fetcher import silent_partitions
from kzconsumer.fetcher.response_handler import ResponseHandler
from kzconsumer.model import TopicPartition
from tests.support.members import sessions_of
from tests.support.simulated import product
from tests.support.simulated.broker_machine import TIGHT
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.kafka_frames import FETCH, OFFSET_FOR_LEADER_EPOCH, Fetch
from tests.support.simulated.member import Member

EVENT = "no records though the log goes on"
RECORDS = 300
FIRST, SECOND, THIRD = (TopicPartition("t", number) for number in range(3))


def lines(group: SimulatedGroup) -> list[Mapping[str, Any]]:
    return [each for each in group.events if each["event"] == EVENT]


def filled(group: SimulatedGroup) -> None:
    group.logs.grow("t", 3)
    group.logs.burst(RECORDS)


def consumed(member: Member) -> dict[TopicPartition, int]:
    if member.connector is None:
        return {}
    return {each.topic_partition: each.consumed for each in member.connector.positions()}


@pytest.mark.parametrize("takes", [0.0, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("remote", [(FIRST,), (FIRST, SECOND)])
def test_a_remote_read_that_takes_longer_than_max_wait(takes: float, remote: tuple[TopicPartition, ...]) -> None:
    """Brokers 3.6 and 3.7 give it up after the 1 s that the member asks for at first."""
    with simulated_group(1) as group:
        filled(group)
        for each in remote:
            group.broker_faults.move_to_remote(each, takes)
        group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.come_to_rest(120, 5)
        assert not lines(group), "no read takes so long that a line is due"


def test_other_partitions_of_the_broker_do_not_wait() -> None:
    with simulated_group(1) as group:
        filled(group)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: len(member.owned) == 3)
        group.world.pass_time(3)
        group.broker_faults.move_to_remote(FIRST, 60.0)  # longer than any request may take
        group.seek(member, FIRST, 0)
        group.world.pass_time(5)
        behind = []
        for _ in range(40):
            group.world.pass_time(1)
            at = consumed(member)
            behind.append(max(group.logs.end(each) - at[each] for each in (SECOND, THIRD)))
        assert at[FIRST] == 0
        assert max(behind) <= 8, "two seconds of records"
        (line,) = lines(group)
        assert (line["partition"], line["offset"]) == (0, 0)
        group.check()


def test_partitions_for_which_a_response_has_no_room_are_not_asked_for_alone() -> None:
    """They are next in the request that follows."""
    with simulated_group(1, record_bytes=1500, fetch=TIGHT) as group:
        alone: list[Fetch] = []
        for broker in group.brokers:
            broker.answered.append(lambda peer, fetch, parts: alone.append(fetch) if fetch.epoch < 0 else None)
        group.logs.grow("t", 3)
        group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(3)
        group.logs.burst(2000)
        group.come_to_rest(60, 3)
        assert not alone


@pytest.mark.parametrize("knows", [False, True])
def test_compaction_at_the_end_of_the_log_is_waited_out(knows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member without end goes on with the next record, as Kafka's consumer. It is not behind if the broker knows what
    it has on its own disks: then there is nothing to read.
    """

    async def local_start(*_: object) -> int:
        return 0

    if knows:
        monkeypatch.setattr(silent_partitions, "local_start", local_start)
    with simulated_group(1) as group:
        filled(group)
        group.logs.stop()
        first = group.broker_faults.compact_end(FIRST, group.logs.end(FIRST) - 150)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(60)
        assert group.brokers[0].requests[FETCH] < 60 * 3, "the broker answers at once"
        (line,) = lines(group)
        assert (line["partition"], line["offset"], line["end"]) == (0, first, group.logs.end(FIRST))
        assert consumed(member)[FIRST] == first
        assert member.connector is not None
        (at,) = (each for each in member.connector.positions() if each.topic_partition == FIRST)
        assert (at.left, at.hole_until) == (
            (0, group.logs.end(FIRST)) if knows else (group.logs.end(FIRST) - first, None)
        )
        group.logs.grow_log(FIRST, 10)
        group.come_to_rest(10, 3)
        assert consumed(member)[FIRST] == group.logs.end(FIRST)


def test_a_partition_that_is_asked_for_alone_does_not_wait_for_a_hung_broker() -> None:
    """Nothing else is asked of that broker, and another one leads by then."""
    with simulated_group(1, brokers=2, fetch=(("request_timeout", "30s"), ("max_wait", "100ms"))) as group:
        group.logs.grow("t", 1)
        group.logs.burst(RECORDS)
        group.logs.stop()
        group.broker_faults.compact_end(FIRST, group.logs.end(FIRST) - 150)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(7)
        group.broker_faults.silence(group.logs.leaders[FIRST], 300.0)
        group.broker_faults.move_leader(FIRST, 0.0)
        group.logs.grow_log(FIRST, 10)
        # It may hold its answer back for 30 s, and is late 5 s after that.
        assert group.world.pass_time(45, lambda: consumed(member)[FIRST] == group.logs.end(FIRST))


@pytest.mark.parametrize("remote", [(FIRST,), (FIRST, SECOND, THIRD)])
def test_partitions_that_are_asked_for_alone_are_read_on_after_their_connection_broke(
    remote: tuple[TopicPartition, ...],
) -> None:
    """Also those that wait until they are asked for, one after the other."""
    with simulated_group(1) as group:
        filled(group)
        for each in remote:
            group.broker_faults.move_to_remote(each, 4.0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(4)
        for arrives in (True, False, True):
            group.network.cut(member.process, arrives)
            group.world.pass_time(1.5)
        group.come_to_rest(60, 1)
        assert "broker lost" in [each["event"] for each in group.events]


def test_a_broker_stops_that_is_asked_for_a_partition_alone() -> None:
    """Nothing else is asked of it: this request has to find out that another one leads."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 1)
        group.broker_faults.produce_remotely(RECORDS, 4.0, 60.0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(10, lambda: bool(member.owned))
        group.world.pass_time(3)
        group.broker_faults.stop(group.logs.leaders[FIRST], 60.0)
        assert group.world.pass_time(20, lambda: consumed(member).get(FIRST, 0) >= RECORDS)
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("hole", [100, 200, RECORDS])
def test_a_run_whose_last_records_were_compacted_ends(hole: int) -> None:
    with simulated_group(1) as group:
        filled(group)
        group.logs.stop()
        until = group.logs.end(FIRST)
        assert group.broker_faults.compact_end(FIRST, until - hole) == until - hole
        member = group.join("a", {"t": 1}, 0.0, in_batches=True, stop_at=dict.fromkeys((FIRST, SECOND, THIRD), until))
        assert group.world.pass_time(60, lambda: finished(member))
        assert consumed(member) == dict.fromkeys((FIRST, SECOND, THIRD), until)
        group.come_to_rest(10, 1)


@pytest.mark.parametrize("takes", [1.5, 4.0])
def test_a_run_in_tiered_storage_does_not_end_before_its_records(takes: float) -> None:
    """Empty answers of a broker that does not know what it has on its own disks prove nothing for a while."""
    with simulated_group(1) as group:
        filled(group)
        group.logs.stop()
        until = group.logs.end(FIRST)
        group.broker_faults.move_to_remote(FIRST, takes)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True, stop_at=dict.fromkeys((FIRST, SECOND, THIRD), until))
        assert group.world.pass_time(60, lambda: finished(member))
        group.come_to_rest(10, 1)


def test_retention_reaches_a_partition_that_is_asked_for_alone() -> None:
    """Nobody else wakes the task that looks for its next position."""
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        group.logs.burst(RECORDS)
        group.broker_faults.move_to_remote(FIRST, 60.0)  # longer than any request may take
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(20, lambda: bool(lines(group)))
        group.broker_faults.retain(FIRST, group.logs.end(FIRST))
        group.come_to_rest(60, 3)
        assert consumed(member)[FIRST] == group.logs.end(FIRST)


def test_a_partition_stays_with_its_fetcher_while_what_came_alone_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetcher of the next leader would find it being decoded, and never hear of the end of that."""
    with simulated_group(1, record_bytes=1500, brokers=2) as group:
        filled(group)
        group.logs.stop()
        group.broker_faults.move_to_remote(FIRST, 1.5)
        came: list[TopicPartition] = []
        for broker in group.brokers:
            broker.answered.append(lambda peer, fetch, parts: came.extend(p.partition for p in parts if p.records))
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(20, lambda: consumed(member).get(THIRD) == group.logs.end(THIRD))
        assert FIRST not in came
        monkeypatch.setattr(product, "IN_A_THREAD", 2.0)
        assert group.world.pass_time(20, lambda: FIRST in came, every=0.05)
        group.world.pass_time(0.1)
        monkeypatch.undo()
        group.pause(member, SECOND)  # then the other broker has nothing else to do
        group.broker_faults.stop(group.logs.leaders[FIRST], 60.0)
        group.world.pass_time(0.2)
        group.pause(member, THIRD)
        assert group.world.pass_time(30, lambda: consumed(member)[FIRST] == group.logs.end(FIRST))
        group.come_to_rest(60, 3)


def test_what_comes_alone_for_a_claim_that_was_lost_is_not_the_next_ones() -> None:
    """That one begins at the same offset, and its log is being compared: it would seem to have been cut off."""
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(5)
        group.logs.stop()
        group.pause(member, FIRST)
        group.world.pass_time(5)
        group.logs.burst(40)
        group.broker_faults.move_to_remote(FIRST, 2.5)
        alone: list[Fetch] = []
        group.brokers[0].answered.append(lambda peer, fetch, parts: alone.append(fetch) if fetch.epoch < 0 else None)
        group.resume(member)
        assert group.world.pass_time(20, lambda: len(alone) == 1, every=0.1)  # the next one waits for the read
        group.world.pass_time(0.5)
        group.broker_faults.slow_down(0, OFFSET_FOR_LEADER_EPOCH, 3.0, 10.0)
        group.delete_owner(FIRST)
        group.world.pass_time(0.5)
        group.logs.grow_log(FIRST, 20)
        group.come_to_rest(60, 3)
        assert len(alone) > 1
        assert not [each for each in group.events if each["event"] == "log truncated below the consumed offset"]
        assert consumed(member)[FIRST] == group.logs.end(FIRST)


@pytest.mark.parametrize("how", ["paused", "limited"])
def test_what_keeps_a_silent_partition_from_being_asked_for_may_last(how: str) -> None:
    """Meanwhile it is looked at now and then; its end is noticed within a second."""
    limit = (("rate_limit", "4KiB"),) if how == "limited" else ()
    with simulated_group(1, record_bytes=1500, fetch=limit) as group:
        filled(group)
        group.logs.stop()
        group.broker_faults.move_to_remote(FIRST, 1.5)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(20, lambda: consumed(member).get(SECOND, 0) > 0)
        if how == "paused":
            group.pause(member, FIRST)
        group.world.pass_time(5)
        held_back, looks = ResponseHandler.held_back, 0

        def looked(self: ResponseHandler, time: float) -> float:
            nonlocal looks
            looks += 1
            return held_back(self, time)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ResponseHandler, "held_back", looked)
            group.world.pass_time(30)
        assert consumed(member)[FIRST] < group.logs.end(FIRST)
        assert looks < 4 * 30
        assert member.connector is not None
        membership = sessions_of(member.connector).member
        assert membership is not None
        member.process.call_soon(membership._fetchers.limit, None)
        group.resume(member)
        assert group.world.pass_time(6, lambda: consumed(member)[FIRST] == group.logs.end(FIRST))


def finished(member: Member) -> bool:
    return member.connector is not None and member.connector.finished.is_set()
