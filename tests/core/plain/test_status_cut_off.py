"""What a member reports of itself while its brokers answer, while they do not, and while records wait.

A real member, in a simulated world, observed as its daemon observes it.
"""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest

from kzconsumer.fetcher import response_handler
from kzconsumer.lag.partition import FRESH
from kzconsumer.model import TopicPartition
from kzconsumer.status.partition_health import INTERVAL
from kzconsumer.status.report import degraded
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup
from tests.support.simulated.member import Member
from tests.support.simulated.observed import Observed, observed
from tests.support.simulated.partition_logs import PRODUCED_EVERY
from tests.support.simulated.virtual_time import BEGINNING

FIRST = TopicPartition("t", 0)
#: Seconds after which a member without brokers is degraded.
NOTICED = 2 * FRESH + 5.0


def cut(at: Observed) -> None:
    at.group.lose_brokers(at.member)


def silence(at: Observed) -> None:
    at.group.brokers[0].set_silent(True)


def test_a_quiet_member_is_healthy_and_its_zero_is_measured() -> None:
    with observed() as at:
        for report in at.reports(120):
            assert degraded(report) == []
            assert [(each.progress.lag, each.progress.seconds) for each in report.partitions] == [(0, 0.0)] * 2


def test_the_age_of_records_that_wait_in_the_queue_is_known_at_every_moment() -> None:
    """No broker has to be asked for it, and the next record is another one in each second."""

    def begin(group: SimulatedGroup, member: Member) -> None:
        member.pace = 0.7
        group.logs.burst(100)

    with observed(before=begin, settled=1.0) as at:
        for report in at.reports(6):
            assert [each.progress.behind for each in report.partitions] == [True, True]
            assert all(each.progress.seconds is not None for each in report.partitions)


@pytest.mark.parametrize("lose", [cut, silence])
def test_a_caught_up_member_without_brokers_does_not_stay_healthy(lose: Callable[[Observed], None]) -> None:
    """Records that it cannot know of wait meanwhile."""
    with observed() as at:
        assert at.member.connector is not None
        (since,) = {each.high_watermark_at for each in sessions_of(at.member.connector).positions()}
        lose(at)
        at.group.logs.burst(5_000)
        for second, report in enumerate(at.reports(120)):
            rows = [each.progress for each in report.partitions]
            if second > FRESH + 1:
                assert all(row.lag is None and row.seconds is None and row.behind is None for row in rows)
                assert {row.why.reason for row in rows if row.why} <= {"brokers unreachable", "reading too old"}
                assert all(row.why is not None and row.why.since == since for row in rows)
                assert all(row.why is not None and "broker 0 (kafka0:9092): " in row.why.detail for row in rows)
                assert all(each.judgement is None and each.eta is None for each in report.partitions)
            if second > NOTICED:
                assert degraded(report), second
        assert {each.id for each in degraded(report)} <= {"no_leader", "stalled"}, "it is a stall by now"
        assert "unknown" in report.state


def test_a_member_whose_topic_was_deleted_is_not_healthy() -> None:
    """It owns nothing and waits. That its lag is 0 says nothing; `groups describe` names the topic, too."""
    with observed() as at:
        at.group.logs.delete("t")
        *_, report = at.reports(60)
        assert report.partitions == []
        assert [(each.id, each.text) for each in degraded(report)] == [
            ("topic_missing", "1 topic not found: t (the member waits for it)")
        ]
        at.group.logs.grow("t", 2)
        *_, report = at.reports(60)
        assert (degraded(report), len(report.partitions)) == ([], 2)


def test_a_member_is_not_healthy_if_another_one_has_another_assignor() -> None:
    """It owns all that it wants; but nobody reads what each of them assigns to the other."""
    with observed(looks="300ms", unowned_alarm="5s") as at:
        at.group.logs.grow("t", 7)
        other = at.group.join("b", {"t": 1}, 0.0, in_batches=False, assignor="roundrobin")
        reports = list(at.reports(30))
        assert not any(map(degraded, reports[:4])), "ordinary rebalances are no reason"
        unread = {TopicPartition("t", n) for n in range(9)} - at.member.owned - other.owned
        assert [(each.id, each.partitions) for each in degraded(reports[-1])] == [("unowned", sorted(map(str, unread)))]
        at.group.leave(other)
        *_, report = at.reports(30)
        assert (degraded(report), len(at.member.owned)) == ([], 9)


@pytest.mark.parametrize("leader_known", [True, False])
def test_a_topic_that_an_acl_hides_is_not_without_leader(leader_known: bool) -> None:
    """The brokers do not say who leads it; a leader that was known before refuses to send."""
    with observed() as at:
        for broker in at.group.brokers:
            broker.hidden.add("t")
        if not leader_known:
            at.group.lose_brokers(at.member)
            at.group.world.pass_time(1.0)
            at.group.find_brokers(at.member)
        *_, unknown = at.reports(int(NOTICED))
        assert unknown.total.unknown == {"not permitted": 2}
        assert {each.hindrance for each in unknown.partitions} == {"not permitted"}
        *_, stalled = at.reports(60)
        assert [(each.id, each.text) for each in degraded(stalled)] == [
            ("not_permitted", "2 partitions stalled: t-0, t-1 (not permitted)")
        ]
        for broker in at.group.brokers:
            broker.hidden.clear()
        *_, report = at.reports(60)
        assert degraded(report) == []


def test_a_topic_that_may_be_described_and_not_read_is_logged() -> None:
    """Its lag is known, and grows."""
    with observed() as at:
        for broker in at.group.brokers:
            broker.unreadable.add("t")
        at.group.logs.burst(50)
        *_, report = at.reports(90)
        assert [each.progress.lag for each in report.partitions] == [50, 50]
        assert {each.state for each in report.partitions} == {"stalled"}
        logged = [each["topic"] for each in at.group.events if each["event"] == "topic may not be read"]
        assert set(logged) == {"t"}
        for broker in at.group.brokers:
            broker.unreadable.clear()
        *_, report = at.reports(60)
        assert (degraded(report), [each.progress.lag for each in report.partitions]) == ([], [0, 0])


def test_a_replica_that_is_behind_does_not_say_how_far_the_member_is_behind() -> None:
    """It copies nothing any more, and the member has read all that it has."""

    def follow(group: SimulatedGroup, member: Member) -> None:
        group.brokers[0].preferred[FIRST] = 1
        group.brokers[1].follows[FIRST] = group.logs.end(FIRST)

    with observed(brokers=2, rack="here", before=follow, settled=5.0) as at:
        assert [each.leader for each in at.observer.report().partitions] == [1, 1], "otherwise this shows nothing"
        at.group.logs.grow_log(FIRST, 500)
        at.group.world.pass_time(INTERVAL + 1)
        for report in at.reports(10):
            first = report.partitions[0]
            assert (first.progress.lag, first.progress.behind, first.hindrance) == (500, True, "no records received")


def test_a_member_that_keeps_up_with_a_replica_has_a_known_lag() -> None:
    """It passes the end that the leader has listed before the next one is."""

    def follow(group: SimulatedGroup, member: Member) -> None:
        group.brokers[0].preferred[FIRST] = 1

    with observed(brokers=2, rack="here", before=follow, settled=5.0) as at:
        for _ in range(3 * int(INTERVAL)):
            at.group.logs.burst(20)
            at.group.brokers[1].follows[FIRST] = at.group.logs.end(FIRST)
            (report,) = at.reports(1)
            first = report.partitions[0]
            assert (first.leader, first.state, first.progress.why) == (1, "caught up", None)


def test_records_that_a_rate_limit_holds_back_are_not_missing_because_of_the_broker() -> None:
    """What was fetched pays for the next half minute."""
    with observed(fetch=(("rate_limit", "1KiB"),), record_bytes=1000, settled=5.0) as at:
        for _ in range(2):
            at.group.logs.burst(15)
            *_, report = at.reports(3)
        assert [(each.progress.lag, each.hindrance) for each in report.partitions] == [(15, "rate limit")] * 2


def test_a_member_that_pays_for_what_it_has_fetched_is_alive() -> None:
    """A restart would free it of that, and it would fetch as much again."""
    with observed(fetch=(("rate_limit", "1KiB"),), record_bytes=1000, settled=5.0) as at:
        at.observer._health.stalled_after = 20.0
        at.group.logs.burst(700)
        *_, report = at.reports(30)
        assert [each.hindrance for each in report.partitions] == ["rate limit"] * 2
        assert report.alive is None


def test_a_member_that_waits_for_a_transaction_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read all that it may, and its session says nothing more of the partition: no record comes."""
    monkeypatch.setattr(response_handler, "OPEN_FOR", 8.0)
    with observed(fetch=(("isolation", "read_committed"),), settled=5.0) as at:
        (broker,), first = at.group.brokers, at.group.logs.end(FIRST)
        broker.open[FIRST] = first
        at.group.logs.burst(500)
        for second, report in enumerate(at.reports(16)):
            here, other = report.partitions
            assert (here.progress.lag, here.end) == (0, first) or second < 2
            held_back = [(each.text, each.partitions) for each in degraded(report) if each.id == "transaction_open"]
            if not 7 <= second <= 11:
                assert (here.held_back, other.held_back) == (500 if second > 11 else 0, 0)
                text = "1 partition held back: t-0 (500 offsets cannot be read: a transaction has not ended)"
                assert held_back == ([(text, ["t-0"])] if second > 11 else [])
        waits = [each for each in at.group.events if each["event"] == "transaction not ended, records behind it wait"]
        assert [(each["partition"], each["offset"], each["end"]) for each in waits] == [(0, first, first + 500)]
        del broker.open[FIRST]
        at.group.logs.grow_log(FIRST, 1)
        *_, report = at.reports(10)
        assert (degraded(report), report.partitions[0].progress.lag, report.partitions[0].held_back) == ([], 0, 0)


def test_it_is_known_again_when_the_brokers_are_back() -> None:
    with observed() as at:
        at.group.lose_brokers(at.member)
        list(at.reports(60))
        at.group.find_brokers(at.member)
        *_, report = at.reports(15)
        assert degraded(report) == []
        assert [each.progress.lag for each in report.partitions] == [0, 0]


def test_the_lag_in_seconds_is_known_whenever_records_wait() -> None:
    """Of a slow application: also while it catches up, and while it stands still."""
    with observed(pace=0.02, silent_logs=False) as at:
        at.group.logs.burst(2_000)
        behind = 0
        for report in at.reports(60):
            elapsed = at.group.world.now - BEGINNING
            for each in report.partitions:
                if each.progress.lag:
                    behind += 1
                    assert each.progress.seconds == pytest.approx(elapsed, abs=PRODUCED_EVERY), each
        assert behind > 60, "otherwise this shows nothing"


def test_the_age_of_a_record_that_was_not_fetched_is_asked_for_once() -> None:
    """It was written before the first look, and its partition is paused."""

    def pause(group: SimulatedGroup, member: Member) -> None:
        group.pause(member, FIRST)
        group.world.pass_time(3.0)  # what was asked for before has arrived
        group.logs.burst(10)

    with observed(before=pause) as at:
        assert at.member.connector is not None
        sessions = sessions_of(at.member.connector)
        with mock.patch.object(sessions, "written", wraps=sessions.written) as asked:
            *_, report = at.reports(60)
        first = report.partitions[0]
        assert (first.paused, first.progress.lag, first.hindrance) == (True, 10, "paused")
        assert first.progress.seconds == pytest.approx(at.group.world.now - BEGINNING, abs=1.0)
        assert asked.call_count == 0, "the answer of the first look is kept"


def test_nobody_can_ask_without_brokers() -> None:
    """The control of the test above."""

    def pause(group: SimulatedGroup, member: Member) -> None:
        group.pause(member, FIRST)
        group.world.pass_time(3.0)
        group.logs.burst(10)
        group.lose_brokers(member)

    with observed(before=pause) as at:
        *_, report = at.reports(5)
        first = report.partitions[0].progress
        assert (first.lag, first.seconds) == (None, None)


def test_records_that_retention_took_from_a_paused_partition_are_no_lag() -> None:
    with observed() as at:
        retention_overtakes_a_pause(at)
        *_, report = at.reports(20)
        first = report.partitions[0].progress
        assert (first.lag, first.lost) == (3, 497)
        found = [each for each in degraded(report) if each.id == "offsets_lost"]
        assert [each.text for each in found] == ["1 partition behind the log's start: t-0 (497 offsets deleted before)"]


def recreated(at: Observed) -> None:
    at.group.broker_faults.recreate("t", 2, 5.0)


def leader_moves(at: Observed) -> None:
    at.group.broker_faults.move_leader(FIRST, 20.0)


def retention_overtakes_a_pause(at: Observed) -> None:
    at.group.pause(at.member, FIRST)
    at.group.world.pass_time(2.0)
    at.group.logs.burst(500)
    at.group.logs.retain(FIRST, at.group.logs.end(FIRST) - 3)


def sought_beyond_the_end(at: Observed) -> None:
    at.group.seek(at.member, FIRST, at.group.logs.end(FIRST) + 100)


def sought_back(at: Observed) -> None:
    at.group.seek(at.member, FIRST, 0)


def expired(at: Observed) -> None:
    at.group.expire(at.member)


def suspended(at: Observed) -> None:
    at.group.freeze(at.member, 40.0)


def without_zookeeper(at: Observed) -> None:
    at.group.silence(at.member, 30.0)


def bursts(at: Observed) -> None:
    at.member.pace = 0.01
    at.group.logs.burst(1_000)


@pytest.mark.parametrize(
    "state",
    [
        recreated,
        leader_moves,
        retention_overtakes_a_pause,
        sought_beyond_the_end,
        sought_back,
        expired,
        suspended,
        without_zookeeper,
        bursts,
        cut,
        silence,
    ],
)
def test_the_figures_of_every_view_agree_in_odd_states(state: Callable[[Observed], None]) -> None:
    """`reports` compares them in each second."""
    with observed() as at:
        state(at)
        seconds = sum(1 for _ in at.reports(90))
    assert seconds == 90
