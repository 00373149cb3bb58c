"""The machine fails if the product is wrong: each of these planted bugs is found in a few hundred examples.

Each stands beside the same schedules of unchanged code, which find nothing; in `make thorough` beside the whole search,
with those that take longest to be found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kzconsumer.fetcher import broker_fetcher
from kzconsumer.fetcher.fetch_state import FetchState
from kzconsumer.group.claim_and_release import Claimer
from kzconsumer.group.rebalancer import Rebalancer
from kzconsumer.member import Member
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.registry.claim_record import Blocked, Claimed, ClaimRecord, ClaimRefused
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.streams.cursor import StreamCursor
from kzconsumer.zookeeper.heartbeat_and_lease import Heartbeat, Instant
from kzconsumer.zookeeper.server_choice import ServerChoice
from kzconsumer.zookeeper.watches import outcomes
from tests.core.plain.test_group_schedules import violations_of_a_release_in_the_middle_of_a_lot
from tests.support.extent import NIGHTLY, only_nightly
from tests.support.simulated.broker_machine import LogsCutOffMachine, ZooKeeperRestoredMachine
from tests.support.simulated.machine import GroupMachine

SEARCH = settings(
    max_examples=100,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    stateful_step_count=20,
    suppress_health_check=list(HealthCheck),
)

# What a seed gives changes with every constant in the source code, from which Hypothesis takes values.
SEARCHES = 12

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # a whole search takes minutes beside other tests


class Enough(Exception):
    """As many schedules were run as asked for. `max_examples` would change what they are."""


def search(start: int, most: float = inf, machine: type[GroupMachine] = GroupMachine) -> int:
    """How many schedules the search has run; raises what is found. The seed belongs to the class: each has its own."""
    ran = 0

    class Seeded(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            nonlocal ran
            ran += 1
            super().__init__()

        def teardown(self) -> None:
            super().teardown()
            if ran >= most:
                raise Enough

    try:
        run_state_machine_as_test(seed(start)(Seeded), settings=SEARCH)
    except Enough:
        pass
    except AssertionError as violations:
        raise Found(ran, str(violations)) from violations
    return ran


class Found(AssertionError):
    """After so many schedules."""

    def __init__(self, after: int, violations: str) -> None:
        super().__init__(violations)
        self.after = after


def find(
    where: object, name: str, bug: object, expected: str, *, start: int, machine: type[GroupMachine] = GroupMachine
) -> None:
    """One of a few searches, from this seed on, finds the bug; the same schedules of unchanged code find nothing."""
    for number in range(start, start + SEARCHES):
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(where, name, bug)
            found = finds(number, machine)
        if found is not None:
            assert re.search(expected, str(found)), found
            search(number, inf if NIGHTLY is not None else found.after, machine)
            return
    pytest.fail(f"not found in {SEARCHES} searches")


def finds(start: int, machine: type[GroupMachine]) -> Found | None:
    try:
        search(start, machine=machine)
    except Found as found:
        return found
    return None


@only_nightly
def test_finds_logs_that_are_not_compared_with_positions() -> None:
    """Those that were cut off by an unclean election and have grown past the position again."""

    def nothing_found(*_: object) -> list[FetchState]:
        return []

    find(broker_fetcher, "find_divergence", nothing_found, "is not read at", start=0, machine=LogsCutOffMachine)


@only_nightly
def test_finds_a_session_that_waits_for_an_ensemble_that_went_back() -> None:
    """No server lets it in that has not seen what the session has."""

    async def believes(*_: object) -> None:
        pass

    bug = "no rest within|is not read at|has had a claim without an owner node"
    find(ServerChoice, "_raise_if_restored", believes, bug, start=0, machine=ZooKeeperRestoredMachine)


@only_nightly
def test_finds_a_member_that_forgets_what_it_had_stored_of_lost_nodes() -> None:
    def forgets(*_: object) -> None:
        pass

    find(Committer, "lost", forgets, "is not read at", start=0, machine=ZooKeeperRestoredMachine)


@only_nightly
def test_finds_offsets_that_are_stored_without_their_epoch() -> None:
    def unknown(self: ClaimRecord, offset: int | None) -> int:
        return -1

    bug = "is not read at"
    find(ClaimRecord, "leader_epoch_before", unknown, bug, start=10, machine=LogsCutOffMachine)


@only_nightly
def test_finds_offsets_read_before_the_claim() -> None:
    claim = OwnerRegistry.claim

    async def read_first(
        self: OwnerRegistry, partition: TopicPartition, thread: ConsumerThreadId, incarnation: int
    ) -> Claimed | Blocked | ClaimRefused:
        stored, version = await self._stored(partition)
        claimed = await claim(self, partition, thread, incarnation)
        if not isinstance(claimed, Claimed):
            return claimed
        return Claimed(claimed.fence, claimed.record, stored, version)

    find(OwnerRegistry, "claim", read_first, r"which \w+ had at|was not worked on", start=4)


@only_nightly
def test_finds_releases_before_the_last_commit() -> None:
    release = Claimer.release

    async def nodes_first(self: Claimer, partitions: Sequence[TopicPartition]) -> None:
        leaving = [claim for partition in partitions if (claim := self._owned.claims.get(partition)) is not None]
        for claim in leaving:
            self._watches.unguard(claim.owner.path)
        fences = [stored.fence for claim in leaving if (stored := self._committer.stored(claim.progress)) is not None]
        await outcomes([self._owners.release(fence) for fence in fences])
        await release(self, partitions)

    find(Claimer, "release", nodes_first, r"which belongs to|which \w+ had at", start=1)


@only_nightly
def test_finds_a_release_that_does_not_wait_for_work_in_hand() -> None:
    made = Rebalancer.__init__

    def impatient(self: Rebalancer, **given: Any) -> None:
        made(self, **given | {"revoke_deadline": 0.0})

    find(Rebalancer, "__init__", impatient, r"which \w+ had at|for work that had ended before", start=2)


@only_nightly
def test_finds_a_lease_of_two_timeouts() -> None:
    safe_until = Heartbeat.safe_until

    def longer(self: Heartbeat, now: Instant) -> float:
        until = safe_until(self, now)
        return until and until + 1.5 * self._timeout

    bug = "which belongs to|could hand out too|trusts its session until"
    find(Heartbeat, "safe_until", longer, bug, start=14)


def test_finds_a_release_that_refuses_work_done_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    close = Progress.close

    def drops_first(self: Progress, on_settled: Callable[[], None] | None = None) -> None:
        if self.open:
            self.open = False
            drop, self._on_close = self._on_close, None
            if drop is not None:
                drop(self)
        close(self, on_settled)

    monkeypatch.setattr(Progress, "close", drops_first)
    # The machine finds it as well, in some hundred examples, which takes a minute.
    sought = {"for work that had ended", "which a had at"}
    for violation in violations_of_a_release_in_the_middle_of_a_lot():
        sought -= {each for each in sought if each in violation}
        if not sought:
            break
    assert not sought


@only_nightly
def test_finds_records_that_count_as_processed_when_handed_out() -> None:
    def at_once(self: StreamCursor) -> None:
        if (message := self._in_hand()) is not None:
            self._mark(message.until)

    find(StreamCursor, "checkpoint", at_once, "was not worked on", start=0)


@only_nightly
def test_finds_a_stop_without_the_final_commit() -> None:
    """Though the member reports that it failed: ZooKeeper would have answered."""

    async def gives_up(self: Member, patience: float) -> None:
        self._log_uncommitted("no answer from ZooKeeper")

    find(Member, "_commit_within", gives_up, r"which \w+ had at", start=0)


@only_nightly
def test_finds_a_blocked_claim_that_is_not_retried() -> None:
    opened = Claimer.open

    async def silent(self: Claimer, wanted: Any, topics: Any) -> Any:
        failed = await opened(self, wanted, topics)
        blocked = [why for why in failed.values() if isinstance(why, Blocked)]
        for why in blocked:
            self._watches.forget(why.path)
        return {} if blocked else failed

    find(Claimer, "open", silent, "no rest within", start=10)


@only_nightly
def test_finds_a_pause_that_still_delivers_fetched_records() -> None:
    find(StreamCursor, "pause", lambda self, progress: None, "which it has paused", start=8)


@only_nightly
def test_finds_a_seek_that_is_not_stored() -> None:
    async def forgetful(self: Committer, progress: Progress, offset: int, **more: Any) -> bool:
        if self.committed(progress) is None:
            return await store_start(self, progress, offset, **more)
        return progress.open

    store_start = Committer.store_start
    find(Committer, "store_start", forgetful, r"was not worked on|which \w+ had at", start=1)


@only_nightly
def test_finds_a_member_that_leaves_without_reporting_revocations() -> None:
    async def only_of_the_open(self: Claimer) -> None:
        await self._listener.revoked(list(self._owned.held))

    find(Claimer, "report_leaving", only_of_the_open, "without a notification that", start=0)
