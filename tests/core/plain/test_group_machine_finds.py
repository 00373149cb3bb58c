"""The machine fails if the product is wrong: each of these planted bugs is found within a bounded number of examples.

Bugs that may take a minute to find are planted by `make nightly` only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kzconsumer.group.claims import Claims
from kzconsumer.group.rebalancer import Rebalancer
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.storage import OffsetWrite
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.registry.owners import OwnerRegistry
from kzconsumer.registry.ownership import Blocked, Claimed, Refused
from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.zookeeper.heartbeat import Heartbeat, Instant
from kzconsumer.zookeeper.operations import Check, Create, SetData
from kzconsumer.zookeeper.round_trips import outcomes
from tests.core.plain.test_group_machine import GroupMachine
from tests.core.plain.test_group_schedules import violations_of_a_release_in_the_middle_of_a_lot
from tests.support.extent import NIGHTLY

EXAMPLES = 1500
SEARCH = settings(
    max_examples=EXAMPLES,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)

pytestmark = pytest.mark.long
RARE = pytest.mark.skipif(
    NIGHTLY is None and os.environ.get("HYPOTHESIS_PROFILE") != "thorough", reason="takes long to find: make nightly"
)


class Seeded(GroupMachine):
    """The same machine, which accepts a seed."""


def find(expected: str, start: int | None = None) -> None:
    """`start` is the seed of a search that finds it soon; another machine may need another."""
    machine: type[GroupMachine] = GroupMachine
    search = SEARCH
    if start is not None:
        machine = seed(start)(Seeded)
        search = settings(SEARCH, derandomize=False)
    with pytest.raises(AssertionError, match=expected):
        run_state_machine_as_test(machine, settings=search)


def test_finds_commits_that_check_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = ZooKeeperOffsetStorage._operations

    def unfenced(self: ZooKeeperOffsetStorage, write: OffsetWrite) -> tuple[Check, Check | SetData, SetData | Create]:
        *_, store = operations(self, write)
        return Check("/", -1), Check("/", -1), store

    monkeypatch.setattr(ZooKeeperOffsetStorage, "_operations", unfenced)
    find("without owning it", start=8)


@RARE
def test_finds_offsets_read_before_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = OwnerRegistry.claim

    async def read_first(
        self: OwnerRegistry, partition: TopicPartition, thread: ConsumerThreadId, incarnation: int
    ) -> Claimed | Blocked | Refused:
        stored, version = await self._stored(partition)
        claimed = await claim(self, partition, thread, incarnation)
        if not isinstance(claimed, Claimed):
            return claimed
        return Claimed(claimed.fence, claimed.record, stored, version)

    monkeypatch.setattr(OwnerRegistry, "claim", read_first)
    find(r"which \w+ had at")


def test_finds_releases_before_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Claims.release

    async def nodes_first(self: Claims, partitions: Sequence[TopicPartition]) -> None:
        leaving = [claim for partition in partitions if (claim := self._owned.claims.get(partition)) is not None]
        for claim in leaving:
            self._watches.unguard(claim.owner.path)
        fences = [self._committer._positions[claim.tracker].committed.fence for claim in leaving]
        await outcomes([self._owners.release(fence) for fence in fences])
        await release(self, partitions)

    monkeypatch.setattr(Claims, "release", nodes_first)
    find(r"which belongs to|which \w+ had at", start=1)


@RARE
def test_finds_a_release_that_does_not_wait_for_work_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Rebalancer.__init__

    def impatient(self: Rebalancer, **given: Any) -> None:
        made(self, **given | {"revoke_deadline": 0.0})

    monkeypatch.setattr(Rebalancer, "__init__", impatient)
    find(r"which \w+ had at")


@RARE
def test_finds_a_lease_of_two_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    safe_until = Heartbeat.safe_until

    def longer(self: Heartbeat, now: Instant) -> float:
        until = safe_until(self, now)
        return until and until + 1.5 * self._timeout

    monkeypatch.setattr(Heartbeat, "safe_until", longer)
    find("which belongs to|could hand out too")


def test_finds_a_release_that_refuses_work_done_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    close = OffsetTracker.close

    def drops_first(self: OffsetTracker, on_settled: Callable[[], None] | None = None) -> None:
        if self.open:
            self.open = False
            drop, self._on_close = self._on_close, None
            if drop is not None:
                drop()
        close(self, on_settled)

    monkeypatch.setattr(OffsetTracker, "close", drops_first)
    # The machine finds it as well, in some hundred examples, which takes a minute.
    found = violations_of_a_release_in_the_middle_of_a_lot()
    assert any("for work that had ended" in violation for violation in found)
    assert any("which a had at" in violation for violation in found)


def test_finds_records_that_count_as_processed_when_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: StreamCursor) -> None:
        if (message := self._in_hand()) is not None:
            self._mark(message.offset + 1)

    monkeypatch.setattr(StreamCursor, "checkpoint", at_once)
    find("was not worked on")


@RARE
def test_finds_a_blocked_claim_that_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Claims.open

    async def silent(self: Claims, wanted: Any, topics: Any) -> Any:
        failed = await opened(self, wanted, topics)
        return {} if any(isinstance(why, Blocked) for why in failed.values()) else failed

    monkeypatch.setattr(Claims, "open", silent)
    find("no rest within")


def test_finds_a_pause_that_still_delivers_fetched_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamCursor, "pause", lambda self, tracker: None)
    find("which it has paused", start=8)


def test_finds_a_seek_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(self: Committer, tracker: OffsetTracker, offset: int, **more: Any) -> bool:
        if self.committed(tracker) is None:
            return await store_start(self, tracker, offset, **more)
        return tracker.open

    store_start = Committer.store_start
    monkeypatch.setattr(Committer, "store_start", forgetful)
    find(r"was not worked on|which \w+ had at")


@RARE
def test_finds_a_member_that_leaves_without_reporting_revocations(monkeypatch: pytest.MonkeyPatch) -> None:
    async def only_of_the_open(self: Claims) -> None:
        await self._listener.revoked(list(self._owned.held))

    monkeypatch.setattr(Claims, "report_leaving", only_of_the_open)
    find("without a notification that")
