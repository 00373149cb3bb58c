"""What a member reports whose commits, rebalances or joins fail again and again, or hang: it is not healthy.

A real member, in a simulated world, observed as its daemon observes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs

from kzconsumer.status.report import degraded, examination
from kzconsumer.zookeeper.operations import Delete
from tests.support.members import sessions_of
from tests.support.simulated.observed import Observed, observed
from tests.support.simulated.scene import SESSION_TIMEOUT

OFFSETS, OWNERS = "/consumers/g/offsets", "/consumers/g/owners"
LIMIT = 5.0
"""`[status] stalled_after`."""


@contextmanager
def impatient() -> Iterator[Observed]:
    with observed(settled=1.0) as at:
        assert at.member.connector is not None
        sessions = sessions_of(at.member.connector)
        settings = sessions.settings
        sessions.reconfigure(
            structs.replace(
                settings,
                status=structs.replace(settings.status, stalled_after=LIMIT),
                group=structs.replace(settings.group, revoke_deadline=1.0),
            )
        )
        yield at


def found(at: Observed, seconds: float) -> dict[str, str]:
    """The findings after so many seconds."""
    at.group.world.pass_time(seconds)
    return {each.id: each.text for each in degraded(at.observer.report())}


@pytest.mark.parametrize(
    ("how", "reason"),
    [("too_large", "closed by the server"), ("forbidden", "not permitted"), ("quota", "QUOTAEXCEEDED")],
)
def test_a_member_that_can_never_commit_is_not_healthy(how: str, reason: str) -> None:
    """Not at once, since a short outage is none of its faults; also if its commits never end, so that none fails."""
    with impatient() as at:
        setattr(at.group.ensemble, how, OFFSETS)
        at.group.logs.burst(5)
        assert found(at, LIMIT - 1) == {}
        text = found(at, 3.0)["commits_fail"]
        assert text.startswith("no commit has succeeded since ")
        assert reason in text
        assert found(at, 8.0)["commits_fail"] == text
        hangs = [each for each in at.group.events if each["event"] == "commit hangs, offsets are not stored"]
        assert all(reason in each["reason"] for each in hangs)
        assert bool(hangs) == (how != "forbidden"), "that one is logged as a failure"
        setattr(at.group.ensemble, how, None)
        assert found(at, 6.0) == {}
        assert [each.offsets["committed"] for each in at.observer.report().partitions] == [5, 5]


@pytest.mark.parametrize(
    ("how", "reason"), [("too_large", "closed by the server"), ("no brokers", "no broker is registered")]
)
def test_a_member_that_can_never_claim_is_not_healthy(how: str, reason: str) -> None:
    with impatient() as at:
        if how == "no brokers":
            at.group.take_brokers(40.0)
        else:
            at.group.ensemble.too_large = OWNERS
        at.group.logs.grow("t", 2)
        assert "rebalances_fail" not in found(at, LIMIT)
        text = found(at, 5.0)["rebalances_fail"]
        assert text.startswith("no rebalance has succeeded since ")
        assert reason in text
        at.group.ensemble.too_large = None
        assert found(at, 60.0) == {}
        assert len(at.observer.report().partitions) == 4


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("id is taken", "consumer id is taken by a node that no session holds: `kzconsumer groups clean g` removes it"),
        ("unreadable member", "/consumers/g/ids/g_z: member registration unreadable, waiting until it leaves"),
    ],
)
def test_a_member_that_cannot_join_again_is_not_ready(how: str, reason: str) -> None:
    """After the end of its session. It is no member then, though its session is valid, and nothing has failed."""
    with impatient() as at:
        assert at.observer.report().unready is None
        at.group.expire(at.member)
        at.group.ensemble.make(at.group.paths.member("g_a" if how == "id is taken" else "g_z"))
        at.group.world.pass_time(3 * SESSION_TIMEOUT)
        report = at.observer.report()
        assert report.session == "held"
        assert (report.unready, report.state) == (f"joining the group: {reason}",) * 2
        assert examination(report).health == "not examined"
        at.group.ensemble.operate(Delete(at.group.paths.member("g_a" if how == "id is taken" else "g_z"), -1))
        at.group.world.pass_time(10.0)
        report = at.observer.report()
        assert report.unready is None
        assert len(report.partitions) == 2
