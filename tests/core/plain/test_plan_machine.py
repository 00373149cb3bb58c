"""Exactly once into the destination: two members plan, publish and commit under random faults.

The model's invariants: published ranges of one epoch do not overlap, nothing below the stored offset is missing, and a
member of ours moves an offset back only with a new epoch. If the destination is restored from a copy, nothing is
published behind what it has lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kzconsumer.model import RangeIdentity
from kzconsumer.offsets import claim_start
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.start_rules import Adoption, Clear, Replay, compare
from kzconsumer.offsets.storage import OffsetWrite, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import ClaimRecord, Plan
from kzconsumer.sinks import range_plans
from kzconsumer.zookeeper.operations import Check, Operation, SetData
from tests.support.extent import only_nightly
from tests.support.simulated.plan_world import PARTITIONS, PlanWorld, plan_world

NAMES = ("a", "b")
STEPS = 40


def play(seed: int, *, planning: bool = True, restores: bool = True) -> PlanWorld:
    """One random schedule with an undisturbed end."""
    with plan_world(seed) as scene:
        scene.planning, scene.restores = planning, restores
        _play(scene, Random(seed + 1))
    return scene


def _play(scene: PlanWorld, chance: Random) -> None:
    for name in NAMES:
        scene.start(name)
    faults: list[Callable[[str], None]] = [
        scene.kill,
        scene.kill,
        lambda name: scene.freeze(name, chance.uniform(0.5, 15)),
        scene.cut,
        scene.lose_a_reply,
        lambda name: scene.lose_a_reply(name, "plan"),
        lambda name: scene.lose_a_reply(name, "published plan"),
        scene.expire,
        lambda name: scene.delete_owner(),
        lambda name: scene.consume_elsewhere(chance.choice(PARTITIONS), chance.randrange(1, 12)),
        lambda name: scene.visit(chance.uniform(0.1, 8.0), chance.randrange(1, 12)),
        lambda name: scene.move_back(chance.choice(PARTITIONS), chance.randrange(1, 30)),
        lambda name: scene.reset(chance.randrange(0, 30)),
        lambda name: scene.copy(),
        lambda name: scene.restore() if scene.restores else None,
        lambda name: None,
    ]
    for _ in range(STEPS):
        name = chance.choice(NAMES)
        fault = chance.choice(faults)
        fault(name)
        scene.world.pass_time(chance.choice([0.01, 0.3, 1.0, 8.0]))
        if fault == scene.kill:
            scene.start(name)
        scene.check()
    scene.network.losing.clear()
    scene.repair()
    before = len(scene.published)
    scene.world.pass_time(90)
    scene.check()
    assert len(scene.published) > before, "no member continues"


@only_nightly  # some of its schedules: test_schedules_include_replays_and_rewinds
@settings(suppress_health_check=list(HealthCheck), max_examples=500)
@given(st.integers(0, 10**9))
def test_ranges_are_published_exactly_once(seed: int) -> None:
    play(seed)


def broken(runs: int = 40, *, planning: bool = True) -> str:
    """What the first schedule with the fault reports; empty if none does."""
    for seed in range(runs):
        try:
            play(seed, planning=planning)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.long
def test_schedules_include_replays_and_rewinds() -> None:
    scenes = [play(seed) for seed in range(4)]
    assert sum(scene.replays for scene in scenes) > 1
    assert sum(scene.moved_back for scene in scenes) > 5
    assert sum(scene.streamed for scene in scenes) > 5
    assert sum(scene.restored for scene in scenes) > 5
    assert sum(scene.refused for scene in scenes) > 5
    assert sum(play(seed, restores=False).refused for seed in range(2)) == 0, "refused without a restore"


@pytest.mark.long
def test_finds_a_range_that_does_not_say_what_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim alone looks at the destination."""
    monkeypatch.setattr(range_plans, "follows", lambda owned: ())
    assert "is behind a gap" in broken()


@pytest.mark.long
def test_finds_a_claim_that_does_not_know_what_was_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimRecord, "last_written", None)
    assert re.search("is behind a gap|are nowhere", broken())


@pytest.mark.long
def test_finds_duplicates_without_plans() -> None:
    """The negative control: written, not committed, and cut differently by the next owner."""
    assert "doubles what" in broken(planning=False)


@pytest.mark.long
def test_finds_a_plan_that_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*found: Any) -> Adoption:
        answer = compare(*found)
        return Clear(answer.first, "forgotten") if isinstance(answer, Replay) else answer

    monkeypatch.setattr(claim_start, "compare", forgetful)
    assert re.search("doubles what|went back", broken())  # a foreign program had set the offset within the range


@pytest.mark.long
def test_finds_writes_without_fence_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = ZooKeeperOffsetStorage._operations

    def unfenced(self: ZooKeeperOffsetStorage, write: OffsetWrite) -> tuple[Operation, Operation, Operation]:
        _, record, store = operations(self, write)
        free = SetData(record.path, record.data, -1) if isinstance(record, SetData) else Check("/", -1)
        return Check("/", -1), free, SetData(store.path, store.data, -1) if isinstance(store, SetData) else store

    monkeypatch.setattr(ZooKeeperOffsetStorage, "_operations", unfenced)
    assert re.search("doubles what|are nowhere|went back", broken())


@pytest.mark.long
def test_finds_a_mark_that_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_start, "resume", lambda stored, committed_until: stored)
    assert "doubles what" in broken()


@pytest.mark.long
@only_nightly
def test_finds_a_plan_that_does_not_store_its_first_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier commit failed to store the offset: the next owner would take the plan for a misplaced one."""
    write = Committer._write

    async def careless(self: Committer, due: Mapping[Progress, int], plans: Any = None, **more: Any) -> Any:
        if plans:
            due = {progress: self.committed(progress) or 0 for progress in due}
        return await write(self, due, plans, **more)

    monkeypatch.setattr(Committer, "_write", careless)
    assert re.search("doubles what|are nowhere|went back", broken())


@pytest.mark.long
@only_nightly
def test_finds_a_plan_that_is_replayed_at_any_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    def stubborn(plan: Plan | None, stored: int | None, *rest: Any) -> Adoption:
        answer = compare(plan, stored, *rest)
        moved = isinstance(answer, Clear) and "was moved" in answer.reason
        return Replay(plan.first, plan.until, stored) if moved and plan is not None else answer

    monkeypatch.setattr(claim_start, "compare", stubborn)
    assert re.search("doubles what|went back", broken())


@pytest.mark.long
@pytest.mark.parametrize("emptied", [False, True], ids=["plan", "published plan"])
def test_finds_a_lost_reply_that_is_taken_for_a_failure(emptied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write is repeated with versions that it has changed, so the claim counts as lost."""
    executed = ZooKeeperOffsetStorage.executed

    async def unless_planned(self: ZooKeeperOffsetStorage, writes: Sequence[OffsetWrite]) -> Any:
        return await executed(self, [write for write in writes if (write.plan is None) != emptied])

    monkeypatch.setattr(ZooKeeperOffsetStorage, "executed", unless_planned)
    assert "was given up, although its owner node is there" in broken()


@pytest.mark.long
def test_finds_a_truncated_log_without_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    store_start = Committer.store_start

    async def same(self: Committer, progress: Progress, offset: int, *, new_epoch: bool = False) -> bool:
        return await store_start(self, progress, offset)

    monkeypatch.setattr(Committer, "store_start", same)
    assert re.search("doubles what|went back", broken())


@pytest.mark.long
def test_finds_a_destination_that_is_not_queried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def everything(self: PlanWorld, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return ranges

    monkeypatch.setattr(PlanWorld, "has", everything)
    assert "are nowhere" in broken()
