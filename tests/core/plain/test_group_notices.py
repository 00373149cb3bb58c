"""What a member watches and reports as topics and members come and go, and what it does for original members."""

from __future__ import annotations

from kzconsumer.group.reconcile_rules import LOOK_INTERVAL, PATIENCE
from kzconsumer.zookeeper.operations import Create, Delete
from tests.support.simulated.group import simulated_group

ORIGINAL = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1700000000000"}'


def test_topics_that_nobody_consumes_any_more_are_not_watched() -> None:
    """`come_to_rest` compares what is watched and what was reported: idle streams, and topics that there are not."""
    with simulated_group(1) as group:
        group.logs.grow("t", 1)
        group.logs.grow("u", 1)
        group.join("a", {"t": 2, "missing": 1}, 0.0, in_batches=True)
        other = group.join("b", {"u": 1}, 0.0, in_batches=True)
        group.world.pass_time(3)
        group.leave(other)
        group.come_to_rest(20, 1)


def test_a_list_that_matches_no_topic_is_reported() -> None:
    with simulated_group(1) as group:
        group.join("a", 2, 0.0, in_batches=True)
        group.come_to_rest(20, 1)


def test_original_members_that_own_nothing_are_woken_up() -> None:
    """By a member that comes and goes in one transaction: no member counts with it."""
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        group.join("b", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(3)
        group.ensemble.make(group.paths.member("g_a"), ORIGINAL)
        group.world.pass_time(PATIENCE - 1)
        nudged = "original members nudged"
        assert nudged not in [each["event"] for each in group.events]
        group.world.pass_time(1 + 3 * LOOK_INTERVAL)
        first = next(each for each in group.events if each["event"] == nudged)
        assert (first["number"], first["without_owner"]) == (1, {"t-0": "g_a"})
        poke = group.paths.member("g_b-poke-1")
        (made,) = [each.operations for each in group.ensemble.log if any(o.path == poke for o in each.operations)]
        assert isinstance(made[0], Create)
        assert made[0].ephemeral
        assert made[1:] == [Delete(poke, 0)]
        group.ensemble.operate(Delete(group.paths.member("g_a"), -1))
        group.come_to_rest(20, 1)
