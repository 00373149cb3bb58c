"""When a ready member is degraded, and the sentences that say why."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kzconsumer.counters import CommitCounters
from kzconsumer.group.reconciler import DEGRADED_AFTER, Notices
from kzconsumer.lag.partition import FRESH, Why
from kzconsumer.lag.totals import Finding
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import Blocked
from kzconsumer.registry.group_records import Registration
from kzconsumer.status.partition_health import PartitionStatus, behind_sink
from kzconsumer.status.report import BlockedClaim, Failing, MisplacedPartition, Report, degraded, examination
from tests.core.plain.test_status_metrics import report
from tests.core.plain.test_status_report import changed, unknown


def of(*partitions: PartitionStatus, **fields: Any) -> list[Finding]:
    return degraded(given(*partitions, **fields))


def given(*partitions: PartitionStatus, **fields: Any) -> Report:
    return msgspec.structs.replace(report(), partitions=list(partitions), **fields)


def partition(number: int, **fields: Any) -> PartitionStatus:
    return changed(topic="orders", partition=number, **fields)


def stalled(number: int, why: str = "sink slow", **fields: Any) -> PartitionStatus:
    return partition(number, stalled=True, hindrance=why, **fields)


def texts(found: list[Finding]) -> list[str]:
    return [each.text for each in found]


def test_without_a_reason_it_is_ready() -> None:
    assert of(partition(0), partition(1, judgement="WARN"), partition(2, judgement=None)) == []


def test_stalled_partitions_are_named_by_reason() -> None:
    found = of(stalled(0), partition(1), stalled(3), stalled(4, "no leader"))
    assert texts(found) == [
        "2 partitions stalled: orders-0, orders-3 (sink slow)",
        "1 partition stalled: orders-4 (no leader)",
    ]
    assert (found[0].id, found[0].partitions) == ("sink_slow", ["orders-0", "orders-3"])


def test_what_waits_behind_the_sink_counts_with_it() -> None:
    """In the sentence as in the table; what is not stalled keeps its state."""
    waiting = [stalled(1, "collecting"), stalled(2, "queue full"), stalled(3, "no leader")]
    waiting.append(partition(4, hindrance="collecting"))
    shown = behind_sink([stalled(0), *waiting], sink_busy=False)
    assert [each.hindrance for each in shown] == [*["sink slow"] * 3, "no leader", "collecting"]
    assert [each.partitions for each in of(*shown)] == [["orders-0", "orders-1", "orders-2"], ["orders-3"]]
    assert behind_sink(waiting, sink_busy=False) == waiting
    assert texts(of(waiting[0])) == ["1 partition stalled: orders-1 (collecting)"]
    shown = behind_sink(waiting, sink_busy=True)
    assert [each.hindrance for each in shown] == ["sink slow", "sink slow", "no leader", "sink slow"]


def test_what_other_members_should_own_and_do_not() -> None:
    found = of(
        partition(0),
        misplaced=[MisplacedPartition("a", n, owner) for n, owner in ((1, ""), (2, "g_m-0"), (3, ""), (4, "g_o-1"))],
    )
    assert [(each.id, each.text) for each in found] == [
        ("unowned", "2 partitions without owner: a-1, a-3 (the members that should own them have not claimed them)"),
        (
            "other_owner",
            "2 partitions with another owner than is assigned: a-2, a-4 (do all members have the same assignor?)",
        ),
    ]


def test_a_partition_that_an_operator_has_paused_is_no_reason() -> None:
    assert of(stalled(0, "paused", paused=True, judgement="STALL")) == []


def test_a_sentence_names_some_partitions_and_the_document_all() -> None:
    (found,) = of(*map(stalled, range(12)))
    assert found.text == (
        "12 partitions stalled: orders-0, orders-1, orders-2, orders-3, orders-4 and 7 more (sink slow)"
    )
    assert len(found.partitions) == 12
    assert "more" not in of(*map(stalled, range(5)))[0].text


def test_claims_that_stay_blocked() -> None:
    blocked = [BlockedClaim("orders", n, "owned by a persistent node: only an operator may delete it") for n in (1, 2)]
    assert texts(of(blocked=blocked)) == [
        "2 partitions not claimed: orders-1, orders-2 (owned by a persistent node: only an operator may delete it)"
    ]


@pytest.mark.parametrize(
    ("judgement", "why"),
    [("STOP", "no commits"), ("STALL", "committed offsets do not advance"), ("REWIND", "a committed offset decreased")],
)
def test_judgements(judgement: str, why: str) -> None:
    assert texts(of(partition(7, judgement=judgement))) == [f"1 partition judged {judgement}: orders-7 ({why})"]
    assert texts(of(stalled(7, judgement=judgement))) == ["1 partition stalled: orders-7 (sink slow)"], "said once"


def test_partitions_that_nobody_answers_for() -> None:
    """Not at once, since a new claim has not been read yet, and a leader may change."""
    since = {"progress": unknown(Why("brokers unreachable")), "lag": {}, "lag_seconds": {}, "judgement": None}
    assert of(partition(0, standing=FRESH, **since)) == []
    (found,) = of(partition(0, standing=FRESH + 0.1, **since), partition(1))
    assert (found.id, found.partitions) == ("lag_unknown", ["orders-0"])
    assert found.text == "1 partition with unknown lag: orders-0 (brokers unreachable)"
    paused = of(partition(0, standing=90.0, stalled=True, paused=True, hindrance="paused", **since))
    assert [each.id for each in paused] == ["lag_unknown"], "a pause explains no unknown lag"
    stands = of(partition(0, standing=90.0, stalled=True, hindrance="no leader", **since))
    assert [each.id for each in stands] == ["no_leader"], "said once"


def test_failing_commits_come_first() -> None:
    fails = Failing(since=1_700_000_000, reason="no coordinator")
    assert texts(of(stalled(0), commits_fail=fails, rebalances_fail=fails))[:2] == [
        "no commit has succeeded since 2023-11-14T22:13:20Z: no coordinator",
        "no rebalance has succeeded since 2023-11-14T22:13:20Z: no coordinator",
    ]


@pytest.mark.parametrize("fields", [{"joined": False}, {"session": "doubtful"}, {"alive": "nothing was fetched"}])
def test_a_member_that_is_not_ready_has_that_reason_only(fields: dict[str, Any]) -> None:
    assert of(stalled(0), **fields) == []


def test_health_has_three_values() -> None:
    """What is not known yet is neither healthy nor a problem."""
    unread = {"progress": unknown(Why("not read yet")), "lag": {}, "lag_seconds": {}, "judgement": None}
    for fields, health, not_asked in (
        ({}, "healthy", []),
        ({"joined": False, "state": "starting"}, "not examined", ["starting"]),
        ({"session": "doubtful"}, "not examined", ["the ZooKeeper session is doubtful"]),
        ({"partitions": [partition(0, **unread)]}, "not examined", ["lag unknown: not read yet"]),
        ({"alive": "nothing was fetched"}, "unhealthy", []),
        ({"unreadable": True}, "unhealthy", []),
    ):
        found = examination(msgspec.structs.replace(given(partition(0)), **fields))
        assert (found.health, found.not_asked) == (health, not_asked), fields
        assert bool(found.findings) == (health == "unhealthy")


def test_a_commit_fails_until_one_succeeds() -> None:
    """Also one that hangs, and one that its caller gives up."""
    counters = CommitCounters()
    attempts = counters.attempts
    with counters.one_round(1.0):
        assert (attempts.unsuccessful_since, attempts.under_way_since) == (1.0, 1.0)
    assert (attempts.unsuccessful_since, attempts.failure, counters.rounds) == (None, None, 1)
    with pytest.raises(OSError, match="gone"), counters.one_round(2.0):
        raise OSError("gone")
    with pytest.raises(asyncio.CancelledError), counters.one_round(3.0):
        raise asyncio.CancelledError
    assert (attempts.unsuccessful_since, attempts.under_way_since, attempts.failure) == (2.0, None, "gone")
    with counters.one_round(4.0):
        with counters.one_round(5.0):
            pass
        assert (attempts.unsuccessful_since, counters.rounds) == (4.0, 2), "another one is still under way"
    assert (attempts.unsuccessful_since, attempts.failure, counters.rounds) == (None, None, 3)


def test_a_claim_is_reported_once_it_has_been_blocked_for_a_while() -> None:
    notices = Notices(Registration.of_topics({"orders": 1}))
    at, by = TopicPartition("orders", 1), Blocked("/owners/orders/1", "other-0", 7)
    notices.blocked(10.0, {at: by}, ())
    assert notices.lasting(10.0 + DEGRADED_AFTER - 0.1) == {}
    assert notices.lasting(10.0 + DEGRADED_AFTER) == {at: by}
    notices.blocked(20.0, {}, ())
    assert notices.lasting(20.0) == {}
