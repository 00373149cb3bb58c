"""Stops of members in a simulated group: what was not committed is reported, and redelivered."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from kzconsumer.member import Member as Membership
from kzconsumer.model import TopicPartition
from tests.support.members import sessions_of
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.member import Member
from tests.support.simulated.scene import SESSION_TIMEOUT


def stops_with_records_to_commit(group: SimulatedGroup) -> None:
    """A member that has processed records since its last commit leaves; another one takes over."""
    group.logs.grow("t", 2)
    member = group.join("a", {"t": 1}, 0.0, in_batches=False)
    group.world.pass_time(3.5)
    group.logs.burst(10)
    group.world.pass_time(0.1)
    group.leave(member)
    group.world.pass_time(5.0)
    assert [each for each in group.events if each["event"].startswith("final commit failed")]
    group.join("b", {"t": 1}, 0.0, in_batches=False)
    group.world.pass_time(10.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_stop_that_loses_its_partitions_first_reports_what_was_not_committed(seed: int) -> None:
    """Servers announce the end of a session by its owner nodes: nothing is left to commit, and no commit fails."""
    with simulated_group(seed) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3.5)
        group.logs.burst(10)
        group.world.pass_time(0.1)
        group.freeze(member, 2 * SESSION_TIMEOUT)
        group.world.pass_time(2 * SESSION_TIMEOUT - 0.001)
        group.leave(member)
        group.world.pass_time(1.0)
        lost = [event["event"] for event in group.events].index("partition lost")
        (failed,) = (event for event in group.events[lost:] if event["event"].startswith("final commit failed"))
        assert failed["reason"] == "partitions were lost"


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("to_commit", [True, False])
def test_a_final_commit_that_is_given_up_is_a_failure_only_if_something_was_to_commit(
    to_commit: bool, begun: bool
) -> None:
    """The stop's time is over while the application's listener is called, or before the member leaves."""
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3.5)
        group.logs.stop()
        group.world.pass_time(3.0)
        if to_commit:
            group.logs.burst(10)
            group.world.pass_time(0.1)
        assert member.connector is not None
        sessions = sessions_of(member.connector)
        called = asyncio.Event()

        async def revoked(generation: int, partitions: frozenset[TopicPartition]) -> None:
            called.set()
            await anyio.sleep(3.0)

        member.on_revoked = revoked  # type: ignore[method-assign]
        group.leave(member)
        assert not begun or group.world.pass_time(1.0, called.is_set)
        member.process.call_soon(sessions.leave_within, 0.0)
        group.world.pass_time(1.0)
        assert called.is_set() is begun
        failed = [each["reason"] for each in group.events if each["event"].startswith("final commit failed")]
        assert failed == (["no time left"] if to_commit else [])
        assert sessions.left_uncommitted is to_commit


@pytest.mark.parametrize(("stopped", "reported"), [(True, True), (False, False)])
def test_what_is_lost_between_the_signal_and_the_stop_of_the_member_is_reported(stopped: bool, reported: bool) -> None:
    """A daemon that is suspended in between learns of its losses first. Without a signal it is a loss as any other."""
    with simulated_group(1) as group:
        group.logs.grow("t", 2)
        member = group.join("a", {"t": 1}, 0.0, in_batches=False)
        group.world.pass_time(3.5)
        group.logs.burst(10)
        group.world.pass_time(0.1)
        signalled = group.world.now
        group.freeze(member, 2 * SESSION_TIMEOUT)
        assert group.world.pass_time(
            15, lambda: "partition lost" in {each["event"] for each in group.events}, every=1e-4
        )
        assert member.connector is not None
        sessions = sessions_of(member.connector)
        member.process.call_soon(sessions.stop_fetching, *([signalled] if stopped else []))
        group.leave(member)
        group.world.pass_time(1.0)
        failed = [each for each in group.events if each["event"].startswith("final commit failed")]
        assert bool(failed) is reported


def test_a_stop_without_zookeeper_redelivers_what_was_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_group(1) as group:

        def cut_off(cut_off: bool) -> None:
            for server in group.ensemble.servers:
                server.set_cut_off(cut_off)

        def leave(member: Member) -> None:
            cut_off(True)
            group.network.cut(member.process, arrives=False)
            SimulatedGroup.leave(group, member)
            group.world.after(4.0, lambda: cut_off(False))

        monkeypatch.setattr(group, "leave", leave)
        stops_with_records_to_commit(group)
        group.come_to_rest(20, 3)


def test_a_final_commit_that_fails_without_a_reason_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gives_up(self: Membership, patience: float) -> None:
        self._log_uncommitted("no answer from ZooKeeper")

    monkeypatch.setattr(Membership, "_commit_within", gives_up)
    with simulated_group(1) as group:
        stops_with_records_to_commit(group)
        assert any("which a had at" in violation for violation in group.promises.violations)
