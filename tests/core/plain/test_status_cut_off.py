"""What a member reports of itself while its brokers answer, while they do not, and while records wait.

A real member, in a simulated world, observed as its daemon observes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pytest

from kzconsumer.lag.partition import FRESH
from kzconsumer.model import TopicPartition
from kzconsumer.sinks.runner import SinkRunner
from kzconsumer.status import observer as observing
from kzconsumer.status.degraded import degraded
from kzconsumer.status.documents import DOCUMENTS
from kzconsumer.status.health import Health
from kzconsumer.status.observer import Observer
from kzconsumer.status.report import Report
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import Member
from tests.support.simulated.partition_logs import PRODUCED_EVERY
from tests.support.simulated.virtual_time import BEGINNING

WRITTEN = 1_700_000_000.0
"""The timestamp of all simulated records."""
FIRST = TopicPartition("t", 0)
#: Seconds after which a member without brokers is degraded.
NOTICED = 2 * FRESH + 5.0


class Observed:
    """One member of a simulated group with two partitions and its observer."""

    def __init__(self, group: SimulatedGroup, member: Member, observer: Observer) -> None:
        self.group, self.member, self.observer = group, member, observer

    def reports(self, seconds: int) -> Iterator[Report]:
        """One in each second; of every one of them the figures agree."""
        for _ in range(seconds):
            self.group.world.pass_time(1.0)
            report = self.observer.report()
            assert_agreement(self.observer, report)
            yield report


def assert_agreement(observer: Observer, report: Report) -> None:
    status = cast(dict[str, object], DOCUMENTS["status"](observer, report))
    rows = [each.progress for each in report.partitions]
    lags = [each.lag for each in rows if each.lag is not None]
    assert status["lag"] == (sum(lags) if len(lags) == len(rows) else None)
    assert [each.lag.get("processed") for each in report.partitions] == [each.lag for each in rows]
    assert [each.lag_seconds.get("processed") for each in report.partitions] == [each.seconds for each in rows]
    for each in report.partitions:
        if each.progress.lag == 0:
            assert (each.progress.age or 0) <= FRESH
        assert not (each.stalled and each.judgement == "OK" and each.progress.behind is None)


@contextmanager
def observed(
    pace: float = 0.0,
    silent_logs: bool = True,
    before: Callable[[SimulatedGroup, Member], None] = lambda group, member: None,
) -> Iterator[Observed]:
    """A member that processes each record in `pace` seconds. `before`: what happens before the first look."""
    with simulated_group(1) as group:
        clock = SimpleNamespace(time=lambda: WRITTEN + group.world.now - BEGINNING)
        with mock.patch.object(observing, "time", clock):
            group.logs.grow("t", 2)
            member = group.join("a", {"t": 1}, pace, in_batches=False)
            assert group.world.pass_time(10, lambda: len(member.owned) == 2)
            if silent_logs:
                group.logs.stop()
            before(group, member)
            assert member.connector is not None
            sessions = sessions_of(member.connector)
            health = Health(sessions.lease, 1e9, 1e9)
            health.phase, health.sessions = "", sessions
            observer = Observer(lambda: sessions.settings, health, sessions.lease)
            observer.begin(sessions, cast(SinkRunner, None))
            tasks: list[asyncio.Task[None]] = []
            member.process.call_soon(lambda: tasks.append(member.process.create_task(observer.run())))
            group.world.pass_time(30.0)
            yield Observed(group, member, observer)
            member.process.call_soon(tasks[0].cancel)
            group.world.pass_time(1.0)


def cut(at: Observed) -> None:
    at.group.lose_brokers(at.member)


def silence(at: Observed) -> None:
    at.group.brokers[0].set_silent(True)


def test_a_quiet_member_is_healthy_and_its_zero_is_measured() -> None:
    with observed() as at:
        for report in at.reports(120):
            assert degraded(report) == []
            assert [(each.progress.lag, each.progress.seconds) for each in report.partitions] == [(0, 0.0)] * 2


@pytest.mark.parametrize("lose", [cut, silence])
def test_a_caught_up_member_without_brokers_does_not_stay_healthy(lose: Callable[[Observed], None]) -> None:
    """Records that it cannot know of wait meanwhile."""
    with observed() as at:
        lose(at)
        at.group.logs.burst(5_000)
        for second, report in enumerate(at.reports(120)):
            rows = [each.progress for each in report.partitions]
            if second > FRESH + 1:
                assert all(row.lag is None and row.seconds is None and row.behind is None for row in rows)
                assert {row.why.reason for row in rows if row.why} <= {"brokers unreachable", "reading too old"}
                assert all(each.judgement is None and each.eta is None for each in report.partitions)
            if second > NOTICED:
                assert degraded(report), second
        assert {each.id for each in degraded(report)} <= {"no_leader", "stalled"}, "it is a stall by now"
        assert "unknown" in report.state


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
        sessions = at.observer._sessions
        assert sessions is not None
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
