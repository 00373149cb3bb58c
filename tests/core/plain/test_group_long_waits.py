"""How long a broker may hold an answer back while nothing comes, and what ends the wait."""

from __future__ import annotations

import pytest

from kzconsumer.fetcher import broker_fetcher
from kzconsumer.fetcher.fetch_session import SESSIONS
from kzconsumer.model import TopicPartition
from tests.core.plain.test_group_fetch_sessions import FIRST, NEVER, fetched, positions, requests
from tests.core.plain.test_group_looks import insides
from tests.support.simulated.broker_machine import QUICK
from tests.support.simulated.group import SimulatedGroup, joined, simulated_group
from tests.support.simulated.kafka_frames import FETCH, OFFSET_FOR_LEADER_EPOCH
from tests.support.simulated.member import Member


def quiet(group: SimulatedGroup) -> Member:
    """A member of which the broker holds an answer back for long: nothing has come for seconds."""
    member = joined(group)
    group.logs.stop()
    group.world.pass_time(5)
    return member


@pytest.mark.parametrize(
    ("since", "longest"),
    [(SESSIONS, broker_fetcher.LONGEST_WAIT), (NEVER, broker_fetcher.LONGEST_WITHOUT_SESSION)],
)
def test_the_broker_waits_longer_while_the_partitions_are_the_same(
    since: int, longest: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And answers at once when something comes, which is no reason to be asked more often."""
    monkeypatch.setattr(broker_fetcher, "SESSIONS", since)
    with simulated_group(1, fetch=(*QUICK, ("request_timeout", "30s"))) as group:
        member = joined(group)
        group.logs.stop()
        with requests(monkeypatch) as asked:
            group.world.pass_time(40)
        waits = [each.max_wait for each in asked]
        assert waits == sorted(waits), "longer each time"
        assert waits[0] < 1.0
        assert waits[-1] == longest
        group.logs.grow_log(FIRST, 1)
        with requests(monkeypatch) as asked:
            group.world.pass_time(0.01)
        assert fetched(member)[FIRST] == group.logs.end(FIRST)
        assert [each.max_wait for each in asked] == [longest]
        group.pause(member, FIRST)
        group.logs.grow_log(FIRST, 1)
        with requests(monkeypatch) as asked:
            group.world.pass_time(0.01)
        assert [each.max_wait for each in asked] == [0.1], "it may be resumed soon"
        group.resume(member)
        group.come_to_rest(30, 3)


@pytest.mark.parametrize("usual", ["0s", "2s"])
def test_a_wait_that_the_operator_has_set_is_kept(usual: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None cannot be doubled; a longer one stays."""
    with simulated_group(1, fetch=(("max_wait", usual),)) as group:
        joined(group)
        group.logs.stop()
        with requests(monkeypatch) as asked:
            group.world.pass_time(0.5)
        assert {each.max_wait for each in asked} <= {float(usual.removesuffix("s"))}


def test_a_wait_is_no_reason_to_give_up_a_broker() -> None:
    """It answers in time, however short that is."""
    with simulated_group(1, fetch=(*QUICK, ("request_timeout", "400ms"))) as group:
        member = quiet(group)
        connections = list(group.brokers[0].connections)
        group.world.pass_time(5)
        assert list(group.brokers[0].connections) == connections
        assert member.active


def test_records_that_do_not_end_the_wait_are_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1, fetch=(*QUICK, ("min_bytes", "1MiB"))) as group:
        member = quiet(group)
        group.logs.grow_log(FIRST, 1)
        group.world.pass_time(0.12)
        assert fetched(member)[FIRST] == group.logs.end(FIRST)
        group.come_to_rest(30, 3)


@pytest.mark.parametrize(
    ("how", "since"), [("resumed", SESSIONS), ("sought", SESSIONS), ("resumed", NEVER), ("sought", NEVER)]
)
def test_a_partition_is_read_on_during_a_long_wait(how: str, since: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker would not see another request on this connection before it has answered."""
    monkeypatch.setattr(broker_fetcher, "SESSIONS", since)
    with simulated_group(1, fetch=QUICK) as group:
        member = quiet(group)
        for number in range(5):
            if how == "resumed":
                group.pause(member, FIRST)
            group.world.pass_time(3 + number / 10)
            if how == "resumed":
                group.logs.grow_log(FIRST, 5)
                group.resume(member)
            else:
                group.seek(member, FIRST, number)
            group.world.pass_time(0.15)
            assert fetched(member)[FIRST] == group.logs.end(FIRST)
            group.world.pass_time(1)
            assert since > SESSIONS or positions(group) == [fetched(member)], "one session, of all"
        group.come_to_rest(30, 3)
        assert not [each for each in group.events if each["event"] == "broker lost"], "the member ends the wait itself"


def test_a_partition_that_comes_as_a_long_wait_begins_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look was due that found the former wait over: something else had changed during that."""
    with simulated_group(1, brokers=2, fetch=QUICK) as group:
        for partition in group.logs.partitions:
            group.logs.lead(partition, partition.partition % 2)
        monkeypatch.setattr(broker_fetcher, "LONGEST_WAIT", 0.5)
        member = quiet(group)
        for ahead in (0.106, 0.108, 0.110, 0.112, 0.114, 0.116):  # another leader is looked up after 0.1 s
            asked = group.brokers[1 - group.logs.leaders[FIRST]].requests
            before = asked[FETCH]
            while asked[FETCH] == before:
                group.world.pass_time(0.001)
            group.world.pass_time(0.5 - ahead)
            group.broker_faults.move_leader(FIRST, 0.0)
            group.logs.grow_log(FIRST, 1)
            group.world.pass_time(ahead - 0.002)
            member.process.call_soon(insides(member).parts.fetchers.limit, None)  # as a reload: it changes nothing
            group.world.pass_time(0.2)
            assert fetched(member)[FIRST] == group.logs.end(FIRST)
            group.world.pass_time(6)
        group.come_to_rest(30, 3)


def test_a_partition_that_comes_while_another_log_is_compared_is_read() -> None:
    """The request that follows has nothing new, so the broker would wait for long."""
    compared, others = TopicPartition("t", 1), [TopicPartition("t", number) for number in (1, 2, 3)]
    with simulated_group(1, brokers=2, fetch=(("max_wait", "240ms"),)) as group:
        for partition in group.logs.partitions:
            group.logs.lead(partition, int(partition in others))
        member = quiet(group)
        group.broker_faults.slow_down(1, OFFSET_FOR_LEADER_EPOCH, 0.5, 0.6)
        group.logs.lead(compared, 1)
        group.world.pass_time(0.6)
        group.pause(member, compared)
        group.broker_faults.move_leader(FIRST, 0.0)
        group.logs.grow_log(FIRST, 1)
        group.world.pass_time(0.6)
        assert fetched(member)[FIRST] == group.logs.end(FIRST)
        group.resume(member)
        group.come_to_rest(30, 3)


def test_a_seek_to_the_end_is_answered_during_a_long_wait() -> None:
    """How far the log can be read is asked for at once, though the broker is to read where it does."""
    with simulated_group(1, fetch=QUICK) as group:
        member = quiet(group)
        for wait in (3.0, 3.1, 3.2, 3.3, 3.4):
            group.world.pass_time(wait)
            group.seek(member, FIRST, group.logs.end(FIRST))
            group.world.pass_time(0.25)
            assert member.connector is not None
            assert all(at.verified for at in member.connector.positions())


def test_a_partition_that_is_claimed_during_a_long_wait_is_read() -> None:
    with simulated_group(1, fetch=QUICK) as group:
        member = quiet(group)
        other = group.join("b", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(10)
        group.leave(other)
        before = len(member.owned)
        assert group.world.pass_time(10, lambda: len(member.owned) > before)
        group.logs.burst(1)
        group.world.pass_time(0.15)
        assert all(at == group.logs.end(each) for each, at in fetched(member).items())
        group.world.pass_time(1)
        assert positions(group) == [fetched(member)]
        group.come_to_rest(30, 3)


def test_a_long_wait_goes_on_if_there_is_nothing_more_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection costs more than an answer."""
    with simulated_group(1, fetch=QUICK) as group:
        member = quiet(group)
        group.world.pass_time(1)  # the broker has just begun to wait
        with requests(monkeypatch) as asked:
            for _ in range(20):
                group.pause(member, FIRST)
                group.world.pass_time(0.05)
        assert all(each.epoch > 0 for each in asked)
        group.come_to_rest(30, 3)
