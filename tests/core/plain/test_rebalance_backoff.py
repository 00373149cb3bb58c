"""A member whose rebalances fail retries with growing delays, on the virtual clock of the simulated group."""

from __future__ import annotations

import pytest

from kzconsumer.counters import RebalanceCounters
from kzconsumer.errors import CoordinatorError, ZooKeeperError
from kzconsumer.group import rebalancer
from kzconsumer.group.membership import SnapshotReader
from kzconsumer.group.reconciler import Reconciler
from tests.support.simulated.group import simulated_group

MINUTE = 60.0


def attempts_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> int:
    attempts = 0

    async def refused(self: SnapshotReader) -> None:
        nonlocal attempts
        attempts += 1
        raise ZooKeeperError("/consumers/g/ids", "refused")

    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        member = group.join("m", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(5.0)
        assert len(member.held) == 2
        with monkeypatch.context() as fault:
            fault.setattr(SnapshotReader, "members", refused)
            group.poison(0.01)  # an event: the member rebalances
            group.world.pass_time(MINUTE)
            failed = attempts
        group.world.pass_time(2 * rebalancer.LONGEST_RETRY)
        assert len(member.held) == 2
        group.check()
    return failed


def test_failed_rebalances_back_off_and_end_with_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 10 <= attempts_in_a_minute(monkeypatch) <= 20


@pytest.mark.parametrize("error", [ZooKeeperError("/consumers/g/ids", "refused"), CoordinatorError("not available")])
def test_every_interrupted_rebalance_is_counted(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A coordinator is asked for the offsets of a group that commits to Kafka."""

    outcomes: list[str] = []

    async def refused(self: SnapshotReader) -> None:
        raise error

    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        group.join("m", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(5.0)
        monkeypatch.setattr(SnapshotReader, "members", refused)
        monkeypatch.setattr(RebalanceCounters, "add", lambda self, ended: outcomes.append(ended.outcome))
        group.poison(0.01)
        group.world.pass_time(5.0)
    assert set(outcomes) == {"interrupted"}


def test_reconciliation_between_failed_rebalances_backs_off_too(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def refused(self: Reconciler, expected: object) -> bool:
        nonlocal looks
        looks += 1
        raise ZooKeeperError("/consumers/g/owners", "refused")

    monkeypatch.setattr(Reconciler, "look", refused)
    with simulated_group(1, looks="3s") as group:
        group.logs.grow("t", 2)
        group.join("m", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(MINUTE)
    assert 5 <= looks <= 20


def test_without_growing_delays_the_same_minute_has_many_more_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancer, "longer", lambda retry: rebalancer.FIRST_RETRY)
    assert attempts_in_a_minute(monkeypatch) > 90
