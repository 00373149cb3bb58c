"""What a claim makes of a plan that it finds: which nodes it leaves, where it begins, what it reports as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import OffsetLostError
from kzconsumer.model import ConsumerThreadId, RangeIdentity, TopicPartition
from kzconsumer.offsets.claim_start import AT_ONCE, Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import (
    Claimed,
    ClaimRecord,
    CommitMark,
    Plan,
    decode_claim_record,
    encode_claim_record,
)
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.owned_ranges import Nothing
from tests.support.plans import plan_of
from tests.support.simulated.clients import Clients

PATHS = GroupPaths("g")
PARTITION = TopicPartition("orders", 0)
OFFSET, RECORD = PATHS.offset(PARTITION), PATHS.claim_record(PARTITION)
INCARNATION = 0x2A
OF_AN_EARLIER_EPOCH = plan_of(5, 9, epoch=0)
OF_AN_EARLIER_TOPIC = plan_of(5, 9, epoch=1, incarnation="0x29")
PLAN = plan_of(5, 9, epoch=1)
MARK = CommitMark(until=50, incarnation="0x2a", epoch=1, fingerprint="f", written=(40, 50))
LOST = "records lost with their topic, which was recreated"


class Everything(Nothing):
    """A destination that has every range."""

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return ranges


class Remembering(Nothing):
    """A destination that can be asked, and has nothing."""

    remembers = True


class Holding(Everything):
    """A destination that can be asked, and has every range."""

    remembers = True


class Claim(NamedTuple):
    """Where a claim begins, what it replays, and the nodes that it leaves."""

    begins: int | None
    replays: Plan | None
    stored: bytes | None
    plan: Plan | None
    refusal: str = ""
    written: tuple[int, int] | None = None


def claim(
    plan: Plan | None,
    stored: int,
    destination: Nothing,
    *,
    mark: CommitMark | None = None,
    refuses_loss: bool = False,
    times: int = 1,
) -> Claim:
    """By a member of reset epoch 1, so many times."""
    clients = Clients()
    record = ClaimRecord(1, "range", "0x2a", 1, "f", plan, mark or msgspec.UNSET)
    clients.ensemble.make(RECORD, encode_claim_record(record))
    clients.ensemble.make(OFFSET, b"%d" % stored)

    async def script(session: ZooKeeperSession) -> Claim:
        owners = OwnerRegistry(session, PATHS, "range", "f", "read_committed")
        claimed = await owners.claim(PARTITION, ConsumerThreadId("g_a", 0), INCARNATION)
        assert isinstance(claimed, Claimed)
        committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)
        adopter = Adopter(committer, destination, refuses_loss=refuses_loss)
        for _ in range(times):
            (adopted,) = await adopter.adopt([(PARTITION, INCARNATION, claimed)])
        known = committer.stored(adopted.progress)
        assert known is None or known.leader_epoch == -1, "no record has one"
        tree = clients.ensemble.tree
        left = decode_claim_record(tree.nodes[RECORD].data).plan
        begins, replays, written = adopted.position, adopted.progress.replay, adopted.progress.written
        return Claim(begins, replays, tree.data(OFFSET), left, adopted.refusal, written)

    return clients.play(script)


@pytest.mark.parametrize("stored", [5, 7])
def test_a_range_in_flight_is_replayed(stored: int) -> None:
    with capture_logs() as logs:
        found = claim(PLAN, stored, Nothing())
    assert found == Claim(5, PLAN, b"%d" % stored, PLAN)
    warned = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert warned == ["offset changed without regard to the plan, replaying the planned range"] * (stored != 5)


@pytest.mark.parametrize("stored", [5, 7])
def test_a_range_that_the_destination_has_is_only_committed(stored: int) -> None:
    assert claim(PLAN, stored, Everything()) == Claim(9, None, b"9", None, written=(5, 9))


@pytest.mark.parametrize(
    ("plan", "stored"),
    [(OF_AN_EARLIER_EPOCH, 5), (OF_AN_EARLIER_EPOCH, 12), (OF_AN_EARLIER_TOPIC, 3), (PLAN, 9), (PLAN, 20)],
    ids=["reset to where it begins", "reset", "earlier topic", "stored at its end", "stored elsewhere"],
)
@pytest.mark.parametrize("destination", [Nothing(), Everything()], ids=["lacks it", "has it"])
def test_a_plan_that_no_longer_applies_is_emptied_at_once(plan: Plan, stored: int, destination: Nothing) -> None:
    """Though nothing may be processed for a long time: a tool or another member would take it for one in flight."""
    assert claim(plan, stored, destination) == Claim(stored, None, b"%d" % stored, None)


def test_a_range_that_was_lost_with_its_topic_is_reported() -> None:
    with capture_logs() as logs:
        claim(OF_AN_EARLIER_TOPIC, 3, Nothing())
    (entry,) = [each for each in logs if each["event"] == LOST]
    assert (entry["log_level"], entry["first"], entry["until"]) == ("error", 5, 9)
    with pytest.raises(OffsetLostError, match="offsets 5 to 9 were planned and not committed, and are lost"):
        claim(OF_AN_EARLIER_TOPIC, 3, Nothing(), refuses_loss=True)


@pytest.mark.parametrize(
    ("plan", "destination"),
    [(OF_AN_EARLIER_EPOCH, Nothing()), (OF_AN_EARLIER_TOPIC, Everything()), (PLAN, Nothing())],
    ids=["reset", "published before the topic went", "stored elsewhere"],
)
def test_nothing_is_reported_as_lost_that_a_tool_or_the_destination_has_settled(
    plan: Plan, destination: Nothing
) -> None:
    with capture_logs() as logs:
        claim(plan, 12, destination, refuses_loss=True)
    assert LOST not in [each["event"] for each in logs]


@pytest.mark.parametrize("stored", [0, 30, 49])
def test_an_offset_that_another_program_moved_back_is_corrected(stored: int) -> None:
    """The destination has the records up to the mark: they would be written twice."""
    with capture_logs() as logs:
        found = claim(None, stored, Everything(), mark=MARK)
    assert found == Claim(50, None, b"50", None, written=(40, 50))
    (entry,) = [each for each in logs if each["event"] == "stored offset moved back by another program"]
    assert (entry["log_level"], entry["stored"], entry["continues_at"]) == ("error", stored, 50)


@pytest.mark.parametrize(
    "other", [{"epoch": 0}, {"incarnation": "0x29"}, {"fingerprint": "g"}], ids=["epoch", "topic", "destination"]
)
def test_a_mark_of_something_else_does_not_count(other: dict[str, object]) -> None:
    mark = msgspec.structs.replace(MARK, **other)
    assert claim(None, 30, Everything(), mark=mark) == Claim(30, None, b"30", None)


def test_a_claim_knows_the_last_range_that_was_written() -> None:
    """What is written next follows it; nothing, if the mark is of another destination, or of an earlier version."""
    plan = plan_of(50, 60, epoch=1)
    for replayed in (None, plan):
        assert claim(replayed, 50, Nothing(), mark=MARK).written == (40, 50)
        assert claim(replayed, 50, Nothing(), mark=msgspec.structs.replace(MARK, fingerprint="g")).written is None
        assert claim(replayed, 50, Nothing(), mark=msgspec.structs.replace(MARK, epoch=0)).written is None
        assert claim(replayed, 50, Nothing(), mark=msgspec.structs.replace(MARK, written=msgspec.UNSET)).written is None


def test_a_destination_without_the_last_committed_range_went_back() -> None:
    """It was restored from an older copy: what follows would be written behind a gap."""
    found = claim(None, 50, Remembering(), mark=MARK)
    assert "offsets 40 to 50 were written and committed, and are missing now" in found.refusal
    assert claim(None, 50, Nothing(), mark=MARK).refusal == "", "a destination that cannot be asked"


@pytest.mark.parametrize(
    ("destination", "mark", "warned"),
    [
        (Holding(), msgspec.structs.replace(MARK, fingerprint="g"), True),
        (Holding(), msgspec.structs.replace(MARK, fingerprint="g", epoch=0), False),
        (Holding(), MARK, False),
        (Holding(), None, False),
        (Everything(), msgspec.structs.replace(MARK, fingerprint="g"), False),
    ],
    ids=["another", "before a reset", "the same", "none yet", "one without ledger, such as a query"],
)
def test_a_destination_that_lacks_what_another_one_has_is_reported(
    destination: Nothing, mark: CommitMark | None, warned: bool
) -> None:
    """Members whose `path` is relative, or on a disk of their own, would write a part of the records each.

    Not again with every claim: it is the same until records come.
    """
    with capture_logs() as logs:
        assert claim(None, 50, destination, mark=mark, times=2).begins == 50
    found = [each["partitions"] for each in logs if each["event"] == "destination changed"]
    assert found == [str(PARTITION)] * warned


def test_other_tasks_run_while_thousands_of_claims_begin() -> None:
    """The session's among them: to begin 10,000 took seconds on a busy machine."""
    clients = Clients()
    clients.ensemble.make(RECORD, encode_claim_record(ClaimRecord(1, "range", "0x2a", 1, "f", None, msgspec.UNSET)))
    clients.ensemble.make(OFFSET, b"5")

    async def script(session: ZooKeeperSession) -> int:
        owners = OwnerRegistry(session, PATHS, "range", "f", "read_committed")
        claimed = await owners.claim(PARTITION, ConsumerThreadId("g_a", 0), INCARNATION)
        assert isinstance(claimed, Claimed)
        adopter = Adopter(Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None), Nothing())
        many = [(TopicPartition("orders", number), INCARNATION, claimed) for number in range(4 * AT_ONCE)]
        adopting = asyncio.ensure_future(adopter.adopt(many))
        turns = 0
        while not adopting.done() and turns < 100:
            await asyncio.sleep(0)
            turns += 1
        assert [each.position for each in await adopting] == [5] * 4 * AT_ONCE
        return turns

    assert 4 < clients.play(script) < 100
