"""Members that plan, publish and commit one partition's ranges in a simulated world, and what must never come of it.

`PlanWorld` owns the destination and who did what to the offset; its members run the product's session, owner registry,
committer and adopter. Faults come from its caller. The log never ends and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import anyio

from kzconsumer.errors import KzConsumerError
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.offsets.adopter import Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.offsets.tracker import OffsetTracker
from kzconsumer.offsets.zookeeper_storage import ZooKeeperOffsetStorage
from kzconsumer.zookeeper import znodes
from kzconsumer.zookeeper.operations import Delete, SetData
from kzconsumer.zookeeper.owner_registry import OwnerRegistry
from kzconsumer.zookeeper.ownership import Blocked, Claimed
from kzconsumer.zookeeper.paths import CONSUMERS, GroupPaths
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer.zookeeper.znodes import Plan
from tests.support.simulated.ensemble import Ensemble
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.virtual_time import Process, World

PARTITION = TopicPartition("orders", 0)
PATHS = GroupPaths("g")
INCARNATION = 0x2A
FINGERPRINT, ISOLATION = "9f3c", "read_committed"
SESSION_TIMEOUT = 6.0


class PlanWorld:
    """See the module. It is the destination, too: an identity that is there is never written again."""

    fingerprint = FINGERPRINT

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.ensemble = Ensemble(self.world)
        self.network = SimulatedNetwork(self.ensemble)
        self.random = Random(seed)
        self.published: dict[RangeIdentity, str] = {}
        self.replays = 0
        self.planning = True
        self._elsewhere: set[tuple[int, int]] = set()  # (epoch, offset) that somebody else has consumed
        self._begins = {0: 0}  # epoch -> where it began
        self._members: dict[str, Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self._plans = 0
        self._lives = 0

    # -- the destination

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        await anyio.sleep(self.random.uniform(0, 0.5))
        return [each for each in ranges if each in self.published]

    def publish(self, who: str, identity: RangeIdentity) -> None:
        if identity in self.published or self._over:
            return
        for other in self.published:
            if other.epoch == identity.epoch and other.first < identity.until and identity.first < other.until:
                raise AssertionError(f"{identity} by {who} doubles what {self.published[other]} put in {other}")
        self.published[identity] = who

    # -- faults

    def start(self, name: str) -> None:
        self._lives += 1
        process = self._members[name] = self.world.process(f"{name}/{self._lives}")
        self._tasks.append(process.create_task(self._live(process)))

    def kill(self, name: str) -> None:
        process = self._members.pop(name, None)
        if process is not None:
            process.frozen = True
            self.network.cut(process, arrives=self.random.random() < 0.5)

    def freeze(self, name: str, seconds: float) -> None:
        process = self._members.get(name)
        if process is not None and not process.frozen:
            process.frozen = True
            self.world.after(seconds, lambda: self._thaw(process))

    def cut(self, name: str) -> None:
        if name in self._members:
            self.network.cut(self._members[name], arrives=self.random.random() < 0.5)

    def lose_a_reply(self, name: str) -> None:
        if name in self._members:
            self.network.losing[self._members[name]] = self.random.random() < 0.7

    def expire(self, name: str) -> None:
        for session in self.ensemble.sessions.values():
            if session.alive and self.network.processes.get(session.id) is self._members.get(name):
                self.ensemble.close(session)

    def delete_owner(self) -> None:
        self.ensemble.operate(Delete(PATHS.owner(PARTITION), -1))

    def consume_elsewhere(self, records: int) -> None:
        """An original member has had the partition for a moment, or a tool moved the offset forwards."""
        stored = self._stored()
        if stored is not None:
            self._elsewhere |= {(self._record().epoch, offset) for offset in range(stored, stored + records)}
            self.ensemble.operate(SetData(PATHS.offset(PARTITION), b"%d" % (stored + records), -1))

    def reset(self, offset: int) -> None:
        """As the tool for stopped groups: plan cleared, epoch raised, all in one transaction."""
        if self.ensemble.tree.data(PATHS.owner(PARTITION)) is None and self._stored() is not None:
            record = znodes.ClaimRecord(1, "range", "0x2a", self._record().epoch + 1, FINGERPRINT)
            self._begins[record.epoch] = offset
            self.ensemble.operate(
                SetData(PATHS.claim_record(PARTITION), znodes.encode_claim_record(record), -1),
                SetData(PATHS.offset(PARTITION), b"%d" % offset, -1),
            )

    def check(self) -> None:
        """Everything below the stored offset is in the destination, or somebody else has it."""
        for process in self.world.processes:
            assert not process.errors, process.errors
        for task in self._tasks:
            if task.done():
                task.result()
        if (stored := self._stored()) is None:
            return
        epoch = self._record().epoch
        there = {offset for each in self.published if each.epoch == epoch for offset in range(each.first, each.until)}
        lost = [
            offset
            for offset in range(self._begins[epoch], stored)
            if offset not in there and (epoch, offset) not in self._elsewhere
        ]
        assert not lost, f"of epoch {epoch}, stored at {stored}, these are nowhere: {lost[:5]}"

    def end(self) -> None:
        """End all processes, whatever they do."""
        self._over = True
        self.network.losing.clear()
        for process in self.world.processes:
            process.frozen = False
        for task in self._tasks:
            task.cancel()
        self.world.pass_time(60.0, lambda: all(task.done() for task in self._tasks))
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()
        for process in list(self.world.processes):
            self.world.end(process)

    # -- members

    async def _live(self, process: Process) -> None:
        while True:
            try:
                async with ZooKeeperSession(ConnectString.parse("zk0:1,zk1:1,zk2:1"), SESSION_TIMEOUT) as session:
                    await session.ensure(CONSUMERS)
                    while True:
                        await self._own(process, session)
            except KzConsumerError:
                await anyio.sleep(0.2)

    async def _own(self, process: Process, session: ZooKeeperSession) -> None:
        """From one claim to its release."""
        owners = OwnerRegistry(session, PATHS, "range", FINGERPRINT, ISOLATION)
        committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)
        claimed = await owners.claim(PARTITION, ConsumerThreadId("g_a", 0), INCARNATION)
        if isinstance(claimed, Blocked):
            await anyio.sleep(self.random.uniform(0.1, 1.0))
            return
        assert isinstance(claimed, Claimed), claimed
        ((_, tracker, position),) = await Adopter(committer, self).adopt([(PARTITION, INCARNATION, claimed)])
        if position is None:
            await committer.store_start(tracker, self._begins[0])
            tracker.restart(self._begins[0])
        for _ in range(self.random.randrange(1, 8)):
            if not await self._write_one(process, committer, tracker):
                break
            if tracker.replay is not None:
                self.replays += 1
                behind = OffsetTracker(PARTITION, tracker.processed, incarnation=INCARNATION, epoch=tracker.epoch)
                committer.replace(tracker, behind)
                tracker = behind
        closed = await committer.close([tracker])
        if tracker in closed:
            await owners.release(closed[tracker].fence)
        await anyio.sleep(self.random.uniform(0.0, 2.0))

    async def _write_one(self, process: Process, committer: Committer, tracker: OffsetTracker) -> bool:
        """Plan, publish, commit; False when the partition is lost."""
        first, until = tracker.processed, tracker.processed + self.random.randrange(1, 10)
        if tracker.replay is not None:
            first, until = tracker.replay.first, tracker.replay.until
        elif self.planning and tracker not in await committer.plan({tracker: self._plan(first, until, tracker.epoch)}):
            return False
        tracker.hand_over(until)
        await anyio.sleep(self.random.choice([0.0, 0.05, 0.5, 3.0]))
        self.publish(process.name, RangeIdentity(*PARTITION, tracker.incarnation, tracker.epoch, first, until))
        await anyio.sleep(self.random.choice([0.0, 0.05, 0.5]))
        tracker.mark(first, until)
        await committer.commit()
        return committer.committed(tracker) == until

    def _plan(self, first: int, until: int, epoch: int) -> Plan:
        self._plans += 1
        return Plan(
            id=f"{self._plans:x}",
            first=first,
            until=until,
            offset_version=-1,
            records=until - first,
            checksum="0",
            incarnation=f"{INCARNATION:#x}",
            epoch=epoch,
            isolation=ISOLATION,
            fingerprint=FINGERPRINT,
        )

    def _thaw(self, process: Process) -> None:
        if process in self._members.values():
            process.frozen = False

    def _record(self) -> znodes.ClaimRecord:
        return znodes.decode_claim_record(self.ensemble.tree.node(PATHS.claim_record(PARTITION)).data)

    def _stored(self) -> int | None:
        data = self.ensemble.tree.data(PATHS.offset(PARTITION))
        return None if data is None else znodes.decode_offset(data)


@contextmanager
def plan_world(seed: int) -> Iterator[PlanWorld]:
    """Without members; whatever runs in it is ended with it."""
    scene = PlanWorld(seed)
    try:
        yield scene
    finally:
        scene.end()
