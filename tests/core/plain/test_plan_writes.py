"""Plans and commits through lost replies, cancellations and foreign writes: the committer's state matches the nodes.

The product's session, owner registry and committer run on an ensemble in memory. A plan that the committer considers
stored is stored; its transaction sets the offset to its first; none of our writes counts as foreign, and no foreign one
as ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kzconsumer.errors import KzConsumerError
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import CommittedPosition, ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import (
    LONGEST,
    Claimed,
    ClaimRecord,
    Fence,
    OwnerNode,
    Plan,
    Spans,
    decode_claim_record,
)
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.paths import CONSUMERS, GroupPaths
from kzconsumer.zookeeper.operations import ConnectString, Create, Delete, Operation, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.plans import plan_of
from tests.support.simulated.ensemble import OPERATOR, Ensemble
from tests.support.simulated.lost_replies import Loss
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.virtual_time import World, clock_of

PATHS = GroupPaths("g")
PARTITIONS = [TopicPartition("orders", number) for number in range(3)]


class Step(NamedTuple):
    """`who` are partitions; `patience` in seconds cancels the call, however far it has come by then."""

    what: str
    who: frozenset[int]
    patience: float | None
    fault: str | None


STEPS = st.builds(
    Step,
    st.sampled_from(["plan", "plan", "record", "reject", "read", "work", "hole", "commit"]),
    st.frozensets(st.integers(0, 2), min_size=1),
    st.none() | st.floats(0.0, 0.02),
    st.sampled_from([None, None, "reply lost", "request lost", "offset moved", "taken over", "taken over meanwhile"]),
)


class Writer:
    """One member's committer, and what it must never do or assume."""

    def __init__(self, world: World, ensemble: Ensemble, network: SimulatedNetwork) -> None:
        self.world = world
        self.ensemble = ensemble
        self.network = network
        self.process = world.process("writer")
        self.owned: dict[TopicPartition, Progress] = {}
        self.in_flight: dict[TopicPartition, Plan] = {}
        self.rejected: dict[TopicPartition, set[int]] = {}
        self.taken: set[TopicPartition] = set()
        self.moved: set[TopicPartition] = set()
        self.planned = 0
        self.believed: set[str] = set()
        self.standing: dict[TopicPartition, Plan | None] = {}
        ensemble.committed.append(self._look)

    async def run(self, script: Sequence[Step]) -> None:
        async with ZooKeeperSession(ConnectString.parse("zk0:2181,zk1:2181"), 6.0) as session:
            await session.ensure(CONSUMERS)
            owners = OwnerRegistry(session, PATHS, "range", "f", "read_committed")
            self.committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)
            for partition in PARTITIONS:
                claimed = await owners.claim(partition, ConsumerThreadId("g_a", 0), 0x2A)
                assert isinstance(claimed, Claimed)
                progress = self.owned[partition] = Progress(partition, 0, incarnation=0x2A)
                self.committer.open(progress, CommittedPosition(claimed.fence, claimed.record, None, -1))
                assert await self.committer.store_start(progress, 0)
            for step in script:
                await self._do(step)
                await self._compare_with_the_nodes(session)
            await self._do(Step("commit", frozenset(), None, None))
            for partition in set(PARTITIONS) - self.taken - self.in_flight.keys():
                assert self._record(partition).plan is None, (
                    f"a plan of {partition} that was not reported to any caller is left"
                )

    async def _do(self, step: Step) -> None:
        for number in sorted(step.who):
            self._fault(step.fault, PARTITIONS[number])
        open_ones = [self.owned[PARTITIONS[n]] for n in sorted(step.who) if self.owned[PARTITIONS[n]].open]
        with anyio.move_on_after(step.patience):
            if step.what == "plan":
                await self._plan([t for t in open_ones if t.topic_partition not in self.in_flight])
            elif step.what == "record":
                await self._record_step([t for t in open_ones if t.topic_partition in self.in_flight])
            elif step.what == "reject":
                await self._reject([t for t in open_ones if t.topic_partition in self.in_flight])
            elif step.what == "read":
                await self._read([t for t in open_ones if t.topic_partition in self.in_flight])
            elif step.what == "hole":  # offsets without records are not planned; their commit moves the mark alone
                for progress in (t for t in open_ones if t.topic_partition not in self.in_flight):
                    progress.hand_over(progress.processed + 3)
                    progress.mark(progress.processed, progress.consumed)
                await self.committer.commit()
            elif step.what == "work":
                for progress in open_ones:
                    if (plan := self.in_flight.pop(progress.topic_partition, None)) is not None:
                        progress.hand_over(plan.until)
                        progress.mark(plan.first, plan.until)
            else:
                await self.committer.commit()

    async def _plan(self, owned: Sequence[Progress]) -> None:
        plans = {}
        for progress in owned:
            self.planned += 1
            first = progress.processed
            plans[progress] = plan_of(first, first + 5, id=f"{self.planned:x}", offset_version=-1)
        for progress in await self.committer.plan(plans):
            partition, plan = progress.topic_partition, plans[progress]
            self.in_flight[partition] = plan
            self.rejected[partition] = set()
            self.believed.add(plan.id)
            record = self._record(partition)
            assert record.plan is not None, f"{partition} is believed to be planned"
            assert record.plan.id == plan.id

    async def _record_step(self, owned: Sequence[Progress]) -> None:
        self.planned += 1
        step = f"{self.planned:x}"
        for progress in await self.committer.record_step(owned, step):
            plan = self._record(progress.topic_partition).plan
            assert plan is not None
            assert plan.id == self.in_flight[progress.topic_partition].id
            assert plan.done[-1] == step, f"step {step} of {progress.topic_partition} is believed to be recorded"

    async def _reject(self, owned: Sequence[Progress]) -> None:
        """One more record of each range."""
        offsets = {}
        for progress in owned:
            known, first = self.rejected[progress.topic_partition], self.in_flight[progress.topic_partition].first
            at = first + len(known) % 5
            offsets[progress] = ((at, at + 1),)
        for progress in await self.committer.record_rejected(offsets):
            known = self.rejected[progress.topic_partition]
            known.add(offsets[progress][0][0])
            plan = self._record(progress.topic_partition).plan
            assert plan is not None
            assert plan.id == self.in_flight[progress.topic_partition].id
            found = {offset for first, until in plan.left_out for offset in range(first, until)}
            assert known <= found, f"{known - found} of {progress.topic_partition} are believed to be recorded"

    async def _read(self, owned: Sequence[Progress]) -> None:
        """Of ranges that the sink fetches, what it has read."""
        self.planned += 1
        figures = self.planned, f"{self.planned:x}"
        for progress in await self.committer.record_contents(dict.fromkeys(owned, figures)):
            plan = self._record(progress.topic_partition).plan
            assert plan is not None
            assert plan.id == self.in_flight[progress.topic_partition].id
            assert (plan.records, plan.checksum) == figures, f"{progress.topic_partition} is believed to be recorded"

    def _fault(self, fault: str | None, partition: TopicPartition) -> None:
        if fault in ("reply lost", "request lost"):
            self.network.losing[self.process] = Loss(executed=fault == "reply lost")
        elif fault == "offset moved":
            self.moved.add(partition)
            self.ensemble.operate(SetData(PATHS.offset(partition), b"3", -1))
        elif fault in ("taken over", "taken over meanwhile") and partition not in self.taken:
            # Another member of ours claims the partition, which changes the record, and keeps the record's content.
            self.taken.add(partition)
            record, owner = PATHS.claim_record(partition), PATHS.owner(partition)
            data = self.ensemble.tree.node(record).data
            self.ensemble.operate(
                Delete(owner, -1), Create(owner, b"g_b-0"), SetData(owner, b"g_b-0", 0), SetData(record, data, -1)
            )
            if fault == "taken over meanwhile":
                self.network.losing[self.process] = Loss(executed=False)

    async def _compare_with_the_nodes(self, session: ZooKeeperSession) -> None:
        self.network.losing.clear()
        # A write that was cancelled in flight may still be executed: before the next sync, or never.
        while True:
            try:
                await session.sync()
                break
            except KzConsumerError:
                continue
        for partition, progress in self.owned.items():
            assert progress.open or partition in self.taken, f"{partition} was given up for nothing"
            position = self.committer._positions.get(progress)
            if position is None or position.in_doubt is not None or partition in self.taken:
                continue
            believed, tree = position.committed, self.ensemble.tree
            assert tree.node(PATHS.claim_record(partition)).stat().version == believed.fence.record_version
            assert self._record(partition) == believed.record
            assert believed.record.committed_until == believed.offset, "a commit without its mark"
            if partition not in self.moved:
                node = tree.node(PATHS.offset(partition))
                assert (node.data, node.stat().version) == (b"%d" % (believed.offset or 0), believed.version)

    def _record(self, partition: TopicPartition) -> ClaimRecord:
        return decode_claim_record(self.ensemble.tree.node(PATHS.claim_record(partition)).data)

    def _look(self, session: int, operations: Sequence[Operation]) -> None:
        """At every transaction: a plan never exists without its offset, and a member that lost the partition never
        writes one.
        """
        if session == OPERATOR:
            return
        written = {operation.path: operation for operation in operations if isinstance(operation, SetData)}
        for partition in PARTITIONS:
            if PATHS.claim_record(partition) not in written or partition not in self.owned:
                continue
            assert partition not in self.taken, f"{partition} is written by a member that lost it"
            plan, node = self._record(partition).plan, self.ensemble.tree.node(PATHS.offset(partition))
            if plan is not None:
                assert (node.data, node.stat().version) == (b"%d" % plan.first, plan.offset_version)
                self.moved.discard(partition)
            elif (before := self.standing.get(partition)) is not None and node.data == b"%d" % before.first:
                assert before.id not in self.believed, "a plan is emptied by the commit of its range"
            self.standing[partition] = plan


def play(seed: int, script: Sequence[Step]) -> Writer:
    world = World(seed)
    ensemble = Ensemble(world, lag=(0.0005, 0.01))
    writer = Writer(world, ensemble, SimulatedNetwork(ensemble))
    with clock_of(world):
        task = writer.process.create_task(writer.run(script))
        assert world.pass_time(120, task.done, every=0.5)
    assert not writer.process.errors
    world.end(writer.process)
    task.result()
    return writer


@settings(suppress_health_check=list(HealthCheck), max_examples=min(settings().max_examples, 1000))
@example(0, [Step(what, frozenset({0}), None, None) for what in ("plan", "reject", "reject", "work", "commit")])
@given(st.integers(0, 1000), st.lists(STEPS, min_size=5, max_size=25))
def test_the_state_of_the_committer_matches_the_nodes(seed: int, script: list[Step]) -> None:
    play(seed, script)


def test_a_plan_has_room_for_as_many_rejected_records_as_can_be_recorded() -> None:
    """Beside those that it has. A claim that is lost has no plan."""

    def scattered(many: int) -> Spans:
        return tuple((at, at + 1) for at in range(12, 12 + 2 * many, 2))

    session = ZooKeeperSession(ConnectString.parse("zk0:2181"), 6.0)
    committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)
    progress, lost = (Progress(partition, 10) for partition in PARTITIONS[:2])
    record = ClaimRecord(1, "range", "0x2a", plan=plan_of(10, 20_010, rejected="0"))
    committer.open(progress, CommittedPosition(Fence(OwnerNode("", 0), "", 0), record, 10, 0))
    most = sum(size <= LONGEST + 1 for size in accumulate(len(f"{2 * n} ") for n in range(4000)))
    committer.require_room({progress: scattered(most - 1), lost: scattered(4000)})
    with pytest.raises(ValueError, match=f"{most + 1} records, too many for one range"):
        committer.require_room({progress: scattered(most)})


def test_abandoned_plans_are_emptied() -> None:
    """Short scripts of calls that are cancelled early, which hypothesis seldom generates."""
    for seed in range(60):
        chance = Random(seed)
        script = [
            Step(
                chance.choice(["plan", "plan", "work", "commit"]),
                frozenset(chance.sample(range(3), chance.randrange(1, 4))),
                chance.choice([None, 0.0, chance.uniform(0.0, 0.02)]),
                chance.choice([None, None, "reply lost", "request lost"]),
            )
            for _ in range(chance.randrange(3, 8))
        ]
        play(seed, script)
