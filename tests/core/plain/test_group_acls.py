"""Nodes of a simulated group that an ACL closes to its members, one at a time."""

from __future__ import annotations

import pytest

from kzconsumer.errors import NotPermittedError
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import broker
from kzconsumer.status.report import degraded
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.observed import observed
from tests.support.simulated.scene import COMMIT_INTERVAL

CLOSED = TopicPartition("t", 1)
PARTITIONS = 4


def stored(group: SimulatedGroup) -> dict[TopicPartition, int]:
    partitions = [TopicPartition("t", number) for number in range(PARTITIONS)]
    nodes = {each: group.ensemble.tree.data(group.paths.offset(each)) for each in partitions}
    return {each: int(data) for each, data in nodes.items() if data is not None}


def ends(group: SimulatedGroup) -> dict[TopicPartition, int]:
    return {each: log.end for each, log in group.logs.logs.items()}


@pytest.mark.parametrize("rights", ["w", "rw"])
def test_an_offset_that_may_not_be_stored_keeps_no_other_from_it(rights: str) -> None:
    with simulated_group(1) as group:
        group.logs.grow("t", PARTITIONS)
        group.logs.stop()
        group.logs.burst(100)
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        assert group.world.pass_time(20, lambda: stored(group) == ends(group))
        path, before = group.paths.offset(CLOSED), group.logs.end(CLOSED)
        group.ensemble.closed[path] = rights
        for _ in range(3):  # a commit follows others that were refused
            group.logs.burst(100)
            group.world.pass_time(3 * COMMIT_INTERVAL)
            assert stored(group) == {**ends(group), CLOSED: before}
        assert len(member.owned) == PARTITIONS
        assert {each["reason"].partition(": ")[0] for each in group.events if "commit failed" in each["event"]} == {
            path
        }
        del group.ensemble.closed[path]
        group.come_to_rest(30, 5)


def test_a_partition_whose_claim_is_refused_is_reported_and_claimed_once_it_may_be() -> None:
    """The other partitions are consumed, and the status says that it is not."""
    with observed() as at:
        path = at.group.paths.claim_record(CLOSED)
        at.group.ensemble.closed[path] = "rw"
        at.group.expire(at.member)
        *_, report = at.reports(30)
        assert at.member.owned == {TopicPartition("t", 0)}
        (line,) = (each for each in at.group.events if each["level"] == "error")
        assert (line["event"], line["about"]) == ("partition not consumed", path)
        assert line["reason"].startswith("not permitted")
        assert [each.text for each in degraded(report)] == [f"1 partition not claimed: t-1 ({line['reason']})"]
        at.group.ensemble.closed.clear()
        *_, report = at.reports(20)
        assert len(at.member.owned) == 2
        assert degraded(report) == []


def test_a_member_that_may_claim_nothing_ends() -> None:
    """As one of another user among original members, whose list of members is open."""
    with simulated_group(1) as group:
        group.logs.grow("t", PARTITIONS)
        owners, _, _ = group.paths.containers("t")
        group.ensemble.make(owners)
        group.ensemble.closed[owners] = "c"
        member = group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(5)
        assert member.task is not None
        with pytest.raises(NotPermittedError, match=f"{owners}/0: not permitted"):
            member.task.result()


def test_a_broker_whose_node_may_not_be_read_is_reported_and_the_others_are_used() -> None:
    with simulated_group(1, brokers=2) as group:
        group.logs.grow("t", PARTITIONS)
        path = broker(0)
        group.ensemble.closed[path] = "r"
        group.join("a", {"t": 1}, 0.0, in_batches=True)
        group.world.pass_time(5)
        (line,) = (each for each in group.events if each["level"] == "error")
        assert (line["event"], line["path"]) == ("broker unusable", path)
        assert "not permitted" in line["reason"]
        group.come_to_rest(30, 5)
