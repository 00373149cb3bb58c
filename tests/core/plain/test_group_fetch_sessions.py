"""The product's fetch sessions with simulated brokers: what a request names, and what becomes of lost sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kzconsumer.brokers.protocol import error_codes
from kzconsumer.fetcher import broker_fetcher, decode_and_queue
from kzconsumer.fetcher.fetch_session import SESSIONS, FetchSession
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.model import TopicPartition
from tests.core.plain.test_group_empty_answers import finished
from tests.support.simulated.fetch_sessions import SLOTS, Answer, FetchSessions
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.kafka_frames import OFFSET_FOR_LEADER_EPOCH, Fetch
from tests.support.simulated.member import Member

FIRST = TopicPartition("t", 0)
MANY = 60
NEVER = 99
"""Since when brokers have sessions, for one that has none."""


@contextmanager
def requests(patch: pytest.MonkeyPatch) -> Iterator[list[Fetch]]:
    """The fetch requests that come meanwhile."""
    begin, found = FetchSessions.begin, list[Fetch]()

    def noted(sessions: FetchSessions, asked: Fetch) -> Answer:
        found.append(asked)
        return begin(sessions, asked)

    with patch.context() as planted:
        planted.setattr(FetchSessions, "begin", noted)
        yield found


def positions(group: SimulatedGroup) -> list[dict[TopicPartition, int]]:
    """Where each session reads."""
    return [
        {partition: asked.offset for partition, asked in reads.items()} for reads in group.brokers[0].sessions.reads
    ]


def fetched(member: Member) -> dict[TopicPartition, int | None]:
    assert member.connector is not None
    return {at.topic_partition: at.fetched for at in member.connector.positions()}


def test_quiet_partitions_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1) as group:
        member = joined(group, partitions=MANY)
        group.logs.stop()
        group.world.pass_time(3)
        with requests(monkeypatch) as quiet:
            group.world.pass_time(10)
        assert len(quiet) >= 3
        assert all(not (asked.partitions or asked.forgotten) for asked in quiet)
        with requests(monkeypatch) as trickling:
            for _ in range(10):
                group.logs.grow_log(FIRST, 1)
                group.world.pass_time(0.2)
        assert {each.partition for asked in trickling for each in asked.partitions} == {FIRST}
        assert positions(group) == [fetched(member)]
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("since", [SESSIONS, NEVER])
def test_quiet_partitions_are_not_looked_at(since: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though brokers without sessions answer about all of them each time."""
    monkeypatch.setattr(broker_fetcher, "SESSIONS", since)
    fetchable, looks = FetchState.fetchable, list[TopicPartition]()

    def noted(state: FetchState, time: float) -> bool:
        looks.append(state.topic_partition)
        return fetchable(state, time)

    with simulated_group(1) as group:
        member = joined(group, partitions=MANY)
        group.logs.stop()
        group.world.pass_time(3)
        monkeypatch.setattr(FetchState, "fetchable", noted)
        with requests(monkeypatch) as asked:
            for _ in range(10):
                group.logs.grow_log(FIRST, 1)
                group.world.pass_time(0.2)
        assert all(len(each.partitions) == MANY for each in asked) or since == SESSIONS
        assert set(looks) == {FIRST}
        assert fetched(member)[FIRST] == group.logs.end(FIRST)
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("since", [SESSIONS, NEVER])
def test_a_record_is_read_of_which_the_first_answer_has_nothing_but_the_end(
    since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in slow storage, and has to be asked for alone."""
    monkeypatch.setattr(broker_fetcher, "SESSIONS", since)
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        group.world.pass_time(5)
        group.brokers[0].set_silent(True)
        group.logs.grow_log(FIRST, 5)
        group.broker_faults.move_to_remote(FIRST, 1.5)
        group.brokers[0].set_silent(False)
        group.world.pass_time(30)
        assert fetched(member)[FIRST] == group.logs.end(FIRST)


@pytest.mark.parametrize("since", [SESSIONS, NEVER])
def test_how_far_quiet_partitions_can_be_read_is_known_all_the_time(
    since: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise their ends would be asked for every second."""
    monkeypatch.setattr(broker_fetcher, "SESSIONS", since)
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        group.world.pass_time(20)
        assert member.connector is not None
        assert all(group.world.now - (at.high_watermark_at or 0) < 1 for at in member.connector.positions())


def lose_brokers_for_a_moment(group: SimulatedGroup) -> None:
    (member,) = group.members
    group.lose_brokers(member)
    group.world.pass_time(0.1)
    group.find_brokers(member)


LOSSES: dict[str, Callable[[SimulatedGroup], None]] = {
    "evicted": lambda group: group.brokers[0].sessions.evict(),
    "restarted": lambda group: group.broker_faults.stop(0, 1.0),
    "another epoch": lambda group: group.brokers[0].sessions.skip_epoch(),
    "without connection": lose_brokers_for_a_moment,
}


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_session_is_opened_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1) as group:
        member = joined(group)
        for _ in range(3):
            LOSSES[how](group)
            with requests(monkeypatch) as asked:
                group.world.pass_time(8)
            assert sum(each.epoch == 0 for each in asked) == 1
            if how in ("restarted", "without connection"):
                assert asked[0].epoch == 0, "an answer may be lost"
            assert len(group.brokers[0].sessions) == 1, "the former one was ended"
            assert all(group.logs.end(each) - (at or 0) <= 4 for each, at in fetched(member).items())
        group.come_to_rest(30, 3)


def test_a_broker_without_a_slot_is_asked_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1) as group:
        group.brokers[0].sessions.slots = 0
        joined(group)
        with requests(monkeypatch) as asked:
            group.world.pass_time(5)
        assert all(len(each.partitions) == 4 and each.epoch == 0 for each in asked)
        group.come_to_rest(30, 3)


def test_a_partition_that_is_paused_is_forgotten_until_it_is_resumed() -> None:
    """Though nothing else happens."""
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        group.world.pass_time(3)
        group.pause(member, FIRST)
        group.world.pass_time(3)
        assert FIRST not in positions(group)[0]
        group.resume(member)
        group.world.pass_time(3)
        assert positions(group) == [fetched(member)]
        group.come_to_rest(30, 3)


def test_a_partition_that_another_member_has_is_forgotten() -> None:
    with simulated_group(1) as group:
        joined(group)
        group.logs.stop()
        group.join("b", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10)
        assert sorted(len(reads) for reads in positions(group)) == [2, 2]
        group.come_to_rest(30, 3)


def test_another_leader_epoch_is_read_in() -> None:
    """The same broker was elected again."""
    with simulated_group(1) as group:
        member = joined(group)
        for _ in range(3):
            group.logs.lead(FIRST, 0)
            group.world.pass_time(5)
            (reads,) = group.brokers[0].sessions.reads
            assert reads[FIRST].leader_epoch == group.logs.logs[FIRST].epoch
            assert group.logs.end(FIRST) - (fetched(member)[FIRST] or 0) <= 4
        group.come_to_rest(30, 3)


def test_a_position_that_was_reset_is_read_from() -> None:
    with simulated_group(1) as group:
        member = joined(group)
        group.pause(member, FIRST)
        group.world.pass_time(3)
        group.broker_faults.retain(FIRST, group.logs.end(FIRST))
        group.resume(member)
        group.world.pass_time(5)
        assert positions(group) == [fetched(member)]
        assert group.logs.end(FIRST) - (fetched(member)[FIRST] or 0) <= 4
        group.come_to_rest(30, 3)


def test_a_partition_whose_log_was_compared_is_read_on() -> None:
    """It came while the other one's log was compared, and was looked at in vain."""
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        for partition in group.logs.partitions:
            group.logs.lead(partition, 0)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(10)
        group.broker_faults.slow_down(1, OFFSET_FOR_LEADER_EPOCH, 1.0, 10.0)
        for partition in group.logs.partitions:
            group.broker_faults.move_leader(partition, 0.0)
            group.world.pass_time(0.3)
        group.world.pass_time(4.7)
        assert all(group.logs.end(each) - (at or 0) <= 4 for each, at in fetched(member).items())
        group.come_to_rest(30, 3)


def test_a_member_that_leaves_ends_its_session() -> None:
    with simulated_group(1) as group:
        member = joined(group)
        assert len(group.brokers[0].sessions) == 1
        group.leave(member)
        group.world.pass_time(5)
        assert len(group.brokers[0].sessions) == 0


@pytest.mark.parametrize("slots", [0, SLOTS])
def test_partitions_that_were_not_decoded_come_first(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory. A session's order is the broker's, which believes that they were read."""
    monkeypatch.setattr(decode_and_queue, "MOST_DECODED", 16 << 10)
    monkeypatch.setattr(decode_and_queue, "QUICK_EXPANSION", 0.0)
    sizes = (("queue_bytes", "32KiB"), ("response_bytes", "512KiB"), ("max_bytes", "128KiB"))
    with simulated_group(1, record_bytes=150, fetch=sizes) as group:
        group.brokers[0].sessions.slots = slots
        member = joined(group, pace=0.05)
        group.logs.stop()
        group.logs.burst(10_000)
        group.world.pass_time(1)
        before = fetched(member)
        group.world.pass_time(3)
        gained = [(at or 0) - (before[partition] or 0) for partition, at in fetched(member).items()]
        assert min(gained) > max(gained) / 3 > 0, gained
        group.check()


def test_an_error_of_a_session_for_a_request_without_one_loses_the_broker() -> None:
    """It is not asked again at once, without end."""
    with simulated_group(1) as group:
        member = joined(group)
        group.brokers[0].sessions.refuses = error_codes.FETCH_SESSION_ID_NOT_FOUND
        group.world.pass_time(10)
        group.brokers[0].sessions.refuses = 0
        group.world.pass_time(5)
        assert all(group.logs.end(each) - (at or 0) <= 4 for each, at in fetched(member).items())
        group.come_to_rest(30, 3)


def test_a_partition_that_is_not_forgotten_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the tests above."""
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        group.world.pass_time(3)
        monkeypatch.setattr(FetchSession, "leave", lambda session, partition: None)
        group.pause(member, FIRST)
        group.world.pass_time(1)
        assert FIRST in positions(group)[0]


def test_a_run_ends_whose_partition_was_away_while_its_broker_was_not_asked() -> None:
    """The session still has the partition, of which its broker has nothing new to say."""
    elsewhere = TopicPartition("t", 1)
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", 2)
        group.logs.lead(FIRST, 0)
        group.logs.lead(elsewhere, 1)
        group.logs.burst(100)
        group.logs.stop()
        ends = {partition: group.logs.end(partition) for partition in group.logs.partitions}
        ends[FIRST] += 5
        member = group.join("a", {"t": 1}, 0.0, in_batches=True, stop_at=ends)
        group.world.pass_time(10)
        other = group.join("b", {"t": 1}, 0.0, in_batches=True, stop_at=ends)
        group.world.pass_time(10)
        group.leave(other)
        group.world.pass_time(20)
        group.logs.grow_log(FIRST, 5)
        assert group.world.pass_time(60, lambda: finished(member))


def test_a_seek_into_slow_storage_is_read_on_a_quiet_partition() -> None:
    """A read that takes longer than an answer is given up by the broker, and has to be asked for alone."""
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.burst(200)
        group.logs.stop()
        group.world.pass_time(5)
        group.broker_faults.move_to_remote(FIRST, 1.5)
        group.seek(member, FIRST, 3)
        group.world.pass_time(60)
        assert fetched(member)[FIRST] == group.logs.end(FIRST)


def test_the_end_of_a_quiet_partition_is_known_after_a_seek_to_it() -> None:
    with simulated_group(1) as group:
        member = joined(group)
        group.logs.stop()
        group.world.pass_time(5)
        group.seek(member, FIRST, group.logs.end(FIRST))
        group.world.pass_time(5)
        assert member.connector is not None
        assert all(at.high_watermark is not None and at.verified for at in member.connector.positions())
