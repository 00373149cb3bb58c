"""Members that plan, publish and commit ranges of two partitions in a simulated world, and the checks of exactly once.

`PlanWorld` owns the destination and all writes to the offsets; its members run the product's session, owner registry,
committer and adopter. Faults come from its caller. Logs never end; the records of a truncation are replaced by others,
in an epoch of their own. The destination may be restored from a copy of it while members write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

import anyio

from kzconsumer.errors import DestinationWentBackError, KzConsumerError
from kzconsumer.model import ConsumerThreadId, RangeIdentity, TopicPartition
from kzconsumer.offsets.claim_start import Adopter
from kzconsumer.offsets.committer import Committer
from kzconsumer.offsets.progress import Progress
from kzconsumer.offsets.storage import ZooKeeperOffsetStorage
from kzconsumer.registry.claim_record import (
    Blocked,
    Claimed,
    ClaimRecord,
    CommitMark,
    Plan,
    decode_claim_record,
    encode_claim_record,
)
from kzconsumer.registry.claim_transactions import OwnerRegistry
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import CONSUMERS, GroupPaths
from kzconsumer.sinks import range_plans
from kzconsumer.zookeeper.operations import ConnectString, Create, Delete, Operation, SetData
from kzconsumer.zookeeper.session import ZooKeeperSession
from tests.support.plans import plan_of
from tests.support.simulated.ensemble import OPERATOR, Ensemble
from tests.support.simulated.lost_replies import Kind, Loss
from tests.support.simulated.network import SimulatedNetwork
from tests.support.simulated.virtual_time import Process, World, clock_of

PARTITIONS = (TopicPartition("orders", 0), TopicPartition("orders", 1))
PATHS = GroupPaths("g")
INCARNATION = 0x2A
FINGERPRINT, ISOLATION = "9f3c", "read_committed"
SESSION_TIMEOUT = 6.0
ORIGINAL = b"g_original-0"


class PlanWorld:
    """See the module. It is also the destination: an identity that is there is never written again."""

    fingerprint = FINGERPRINT
    remembers = True

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.ensemble = Ensemble(self.world)
        self.network = SimulatedNetwork(self.ensemble)
        self.random = Random(seed)
        self.published: dict[RangeIdentity, str] = {}
        self.replays = 0
        self.moved_back = 0
        self.streamed = 0
        self.restored = 0
        self.refused = 0
        self._copy: dict[RangeIdentity, str] = {}
        self._gone: set[RangeIdentity] = set()  # was committed, and in the destination before it was restored
        self.planning = True
        self.restores = True
        self._elsewhere: set[tuple[TopicPartition, int, int]] = set()  # and epoch, offset: consumed by other programs
        self._begins = {(partition, 0): 0 for partition in PARTITIONS}  # and epoch -> where it began
        self._stored_last: dict[tuple[TopicPartition, int], int] = {}
        self._violations: list[str] = []
        self._members: dict[str, Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False
        self._plans = 0
        self._lives = 0
        self.ensemble.committed.append(self._look)

    # -- the destination

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        await anyio.sleep(self.random.uniform(0, 0.5))
        return [each for each in ranges if each in self.published]

    def publish(self, who: str, identity: RangeIdentity, follows: Collection[RangeIdentity] = ()) -> None:
        """Raises DestinationWentBackError."""
        for before in follows:
            if before not in self.published and before[:4] == identity[:4]:
                self.refused += 1
                raise DestinationWentBackError(before)
        if identity in self.published or self._over:
            return
        for lost in self._gone:
            if lost[:4] == identity[:4] and lost.until <= identity.first:
                raise AssertionError(f"{identity} by {who} is behind a gap: {lost} was there before the restore")
        self._gone.discard(identity)
        for other in self.published:
            same = (other.partition, other.epoch) == (identity.partition, identity.epoch)
            if same and other.first < identity.until and identity.first < other.until:
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

    def lose_a_reply(self, name: str, kind: Kind | None = None) -> None:
        if name in self._members:
            self.network.losing[self._members[name]] = Loss(self.random.random() < 0.7, kind)

    def expire(self, name: str) -> None:
        for session in self.ensemble.sessions.values():
            if session.alive and self.network.processes.get(session.id) is self._members.get(name):
                self.ensemble.close(session)

    def copy(self) -> None:
        self._copy = dict(self.published)

    def restore(self) -> None:
        """The destination is what it was when it was copied, while members write to it.

        A range that was published and not committed is written again, or a tool has moved the offset past it.
        """
        for lost in self.published.keys() - self._copy.keys():
            del self.published[lost]
            partition = lost.topic_partition
            mark = self._record(partition).mark
            known = (isinstance(mark, CommitMark) and mark.epoch == lost.epoch and mark.written) or (0, 0)
            if lost.until <= known[1]:
                self._gone.add(lost)
            self._elsewhere |= {(partition, lost.epoch, offset) for offset in range(lost.first, lost.until)}
            self.restored += 1

    def repair(self) -> None:
        """An operator resets each partition that members refuse, once none owns it, also one without offset."""
        for partition in PARTITIONS:
            if PATHS.claim_record(partition) in self.ensemble.tree.nodes:
                self.world.pass_time(60, partial(self._is_free, partition))
                if self._stored(partition) is None and self._is_free(partition):
                    self.ensemble.operate(Create(PATHS.offset(partition), b"0"))
                self._reset(partition, self._stored(partition) or 0)

    def _is_free(self, partition: TopicPartition) -> bool:
        return self.ensemble.tree.data(PATHS.owner(partition)) is None

    def delete_owner(self) -> None:
        """A foreign unconditional delete hits an owner node of ours."""
        path = PATHS.owner(self.random.choice(PARTITIONS))
        if self.ensemble.tree.data(path) not in (None, ORIGINAL):
            self.ensemble.operate(Delete(path, -1))

    def consume_elsewhere(self, partition: TopicPartition, records: int) -> None:
        """A tool moves the offset forwards, or an original member commits."""
        stored = self._stored(partition)
        if stored is not None:
            epoch = self._record(partition).epoch
            self._elsewhere |= {(partition, epoch, offset) for offset in range(stored, stored + records)}
            self.ensemble.operate(SetData(PATHS.offset(partition), b"%d" % (stored + records), -1))

    def move_back(self, partition: TopicPartition, records: int) -> None:
        """A program that does not know claim records sets the offset back, or deletes it: a late commit of an original
        member, a tool of Kafka's. It was consumed nevertheless.
        """
        path = PATHS.offset(partition)
        stored = self._stored(partition)
        if stored is None:
            return
        moved = None if self.random.random() < 0.2 else max(0, stored - records)
        self.ensemble.operate(Delete(path, -1) if moved is None else SetData(path, b"%d" % moved, -1))
        at = partition, self._record(partition).epoch
        self._stored_last[at] = min(self._stored_last.get(at, 0), moved or 0)  # not set back by our members
        self.moved_back += 1

    def visit(self, seconds: float, records: int) -> None:
        """An original member owns a partition for a while, if no other does, and commits as it leaves."""
        partition = self.random.choice(PARTITIONS)
        path = PATHS.owner(partition)
        if self._stored(partition) is None or self.ensemble.tree.data(path) is not None:
            return
        self.ensemble.operate(Create(path, ORIGINAL))

        def leave() -> None:
            self.consume_elsewhere(partition, records)
            self.ensemble.operate(Delete(path, -1))

        self.world.after(seconds, leave)

    def reset(self, offset: int) -> None:
        """Like the tool for stopped groups: plan cleared, epoch raised, in one transaction."""
        self._reset(self.random.choice(PARTITIONS), offset)

    def _reset(self, partition: TopicPartition, offset: int) -> None:
        if self._is_free(partition) and self._stored(partition) is not None:
            record = ClaimRecord(1, "range", "0x2a", self._record(partition).epoch + 1, FINGERPRINT)
            self.ensemble.operate(
                SetData(PATHS.claim_record(partition), encode_claim_record(record), -1),
                SetData(PATHS.offset(partition), b"%d" % offset, -1),
            )

    def check(self) -> None:
        """Everything below the stored offset is in the destination, or was consumed by another program."""
        assert not self._violations, self._violations[0]
        for process in self.world.processes:
            assert not process.errors, process.errors
        for task in self._tasks:
            if task.done():
                task.result()
        for partition in PARTITIONS:
            if (stored := self._stored(partition)) is None:
                continue
            epoch = self._record(partition).epoch
            ranges = [r for r in self.published if (r.partition, r.epoch) == (partition.partition, epoch)]
            there = {offset for each in ranges for offset in range(each.first, each.until)}
            lost = [
                offset
                for offset in range(self._begins[partition, epoch], stored)
                if offset not in there and (partition, epoch, offset) not in self._elsewhere
            ]
            assert not lost, f"of epoch {epoch}, stored at {stored}, these are nowhere: {lost[:5]}"

    def _look(self, session: int, operations: Sequence[Operation]) -> None:
        """At every transaction: where an epoch begins, and that a member sets offsets back only in a new one.

        What another program writes under a live owner is corrected, in either direction.
        """
        for partition in PARTITIONS:
            if (stored := self._stored(partition)) is None:
                continue
            epoch = self._record(partition).epoch
            self._begins.setdefault((partition, epoch), stored)
            last = self._stored_last.get((partition, epoch), stored)
            if session != OPERATOR:
                if stored < last:
                    self._violations.append(f"{partition} went back from {last} to {stored} in epoch {epoch}")
                if any(operation.path == PATHS.offset(partition) for operation in operations):
                    self._stored_last[partition, epoch] = stored
            elif self.ensemble.tree.data(PATHS.owner(partition)) in (None, ORIGINAL):
                self._stored_last[partition, epoch] = stored

    def end(self) -> None:
        """End all processes."""
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

    def _lost(self, session: ZooKeeperSession, reason: str) -> None:
        """A claim ends by another program, or with its session: not by a lost reply."""
        for partition in PARTITIONS:
            node = self.ensemble.tree.nodes.get(PATHS.owner(partition))
            if reason == f"lost {partition}" and node is not None and node.owner == session.id:
                self._violations.append(f"{partition} was given up, although its owner node is there")

    async def _live(self, process: Process) -> None:
        while True:
            try:
                async with ZooKeeperSession(ConnectString.parse("zk0:1,zk1:1,zk2:1"), SESSION_TIMEOUT) as session:
                    await session.ensure(CONSUMERS)
                    while True:
                        await (self._own(process, session) if self.random.random() < 0.9 else self._stream(session))
            except KzConsumerError:
                await anyio.sleep(0.2)

    async def _own(self, process: Process, session: ZooKeeperSession) -> None:
        """From claims to their release."""
        owners = OwnerRegistry(session, PATHS, "range", FINGERPRINT, ISOLATION)
        committer = Committer(ZooKeeperOffsetStorage(session, PATHS), partial(self._lost, session))
        claims = []
        for partition in self.random.sample(PARTITIONS, self.random.randrange(1, len(PARTITIONS) + 1)):
            claimed = await owners.claim(partition, ConsumerThreadId("g_a", 0), INCARNATION)
            if not isinstance(claimed, Blocked):
                assert isinstance(claimed, Claimed), claimed
                claims.append((partition, INCARNATION, claimed))
        if not claims:
            await anyio.sleep(self.random.uniform(0.1, 1.0))
            return
        owned = []
        for claimed, progress, position, refusal, *_ in await Adopter(committer, self).adopt(claims):
            if refusal:
                self.refused += 1
                await owners.release(claimed.fence)
                continue
            if position is None:
                await committer.store_start(progress, 0)
                progress.restart(0)
            owned.append(progress)
        for _ in range(self.random.randrange(1, 8)):
            owned = await self._write_one(process, committer, owned)
        for progress, closed in (await committer.close(owned)).items():
            progress.close()
            await owners.release(closed.fence)
        await anyio.sleep(self.random.uniform(0.0, 2.0))

    async def _stream(self, session: ZooKeeperSession) -> None:
        """A member without a destination owns a partition for a while: it begins at the stored offset."""
        partition = self.random.choice(PARTITIONS)
        owners = OwnerRegistry(session, PATHS, "range")
        committer = Committer(ZooKeeperOffsetStorage(session, PATHS), lambda reason: None)
        claimed = await owners.claim(partition, ConsumerThreadId("g_s", 0), INCARNATION)
        if not isinstance(claimed, Claimed):  # blocked, or there is a plan that only a destination can finish
            await anyio.sleep(self.random.uniform(0.1, 1.0))
            return
        ((_, progress, position, *_),) = await Adopter(committer, None).adopt([(partition, INCARNATION, claimed)])
        assert position == claimed.stored, f"a stream begins at {position}, stored is {claimed.stored}"
        self.streamed += 1
        if position is None:
            await committer.store_start(progress, 0)
            progress.restart(0)
        until = progress.processed + self.random.randrange(1, 10)
        await anyio.sleep(self.random.choice([0.05, 0.5, 3.0]))
        self._elsewhere |= {(partition, progress.epoch, offset) for offset in range(progress.processed, until)}
        progress.hand_over(until)
        progress.mark(progress.processed, until)
        for closing, closed in (await committer.close([progress])).items():
            closing.close()
            await owners.release(closed.fence)

    async def _write_one(self, process: Process, committer: Committer, owned: list[Progress]) -> list[Progress]:
        """Plan, publish, commit one batch; returns the claims that are still ours."""
        owned = [progress for progress in owned if progress.open]
        if not owned:
            return []
        if (replay := next((progress for progress in owned if progress.replay is not None), None)) is not None:
            assert replay.replay is not None
            await self._publish(process, committer, {replay: replay.replay.until})
            self.replays += 1
            if not replay.open:
                return owned
            behind = Progress(replay.topic_partition, replay.processed, incarnation=INCARNATION, epoch=replay.epoch)
            behind.written = replay.written
            replay.close()
            committer.replace(replay, behind)
            return [behind if progress is replay else progress for progress in owned]
        chosen = self.random.sample(owned, self.random.randrange(1, len(owned) + 1))
        if self.random.random() < 0.05:
            at = max(0, chosen[0].processed - self.random.randrange(0, 8))
            if await committer.store_start(chosen[0], at, new_epoch=True):  # its log was truncated
                chosen[0].restart(at)
            return owned
        ends = {progress: progress.processed + self.random.randrange(1, 10) for progress in chosen}
        if self.planning:
            ours = None
            with anyio.move_on_after(self.random.choice([None, None, None, 0.01])):
                plans = {t: self._plan(t.processed, until, t.epoch) for t, until in ends.items()}
                ours = await committer.plan(plans)
            if ours is None:  # cancelled: none of it is written
                await committer.commit()
                return owned
            ends = {progress: until for progress, until in ends.items() if progress in ours}
        await self._publish(process, committer, ends)
        return owned

    async def _publish(self, process: Process, committer: Committer, ends: dict[Progress, int]) -> None:
        for progress, until in ends.items():
            progress.hand_over(until)
        for progress, until in ends.items():
            await anyio.sleep(self.random.choice([0.0, 0.05, 0.5, 3.0]))
            identity = RangeIdentity(*progress.topic_partition, INCARNATION, progress.epoch, progress.processed, until)
            self.publish(process.name, identity, range_plans.follows([progress]))
        await anyio.sleep(self.random.choice([0.0, 0.05, 0.5]))
        for progress, until in ends.items():
            progress.wrote(progress.processed, until)
        if self.random.random() < 0.9:  # a commit may fail; its offset is then stored with the next plan
            await committer.commit()

    def _plan(self, first: int, until: int, epoch: int) -> Plan:
        self._plans += 1
        others = {"incarnation": f"{INCARNATION:#x}", "isolation": ISOLATION, "fingerprint": FINGERPRINT}
        return plan_of(first, until, id=f"{self._plans:x}", offset_version=-1, epoch=epoch, **others)

    def _thaw(self, process: Process) -> None:
        if process in self._members.values():
            process.frozen = False

    def _record(self, partition: TopicPartition) -> ClaimRecord:
        return decode_claim_record(self.ensemble.tree.node(PATHS.claim_record(partition)).data)

    def _stored(self, partition: TopicPartition) -> int | None:
        data = self.ensemble.tree.data(PATHS.offset(partition))
        return None if data is None else decode_offset(data)


@contextmanager
def plan_world(seed: int) -> Iterator[PlanWorld]:
    """Without members; everything that runs in it ends with it."""
    scene = PlanWorld(seed)
    with clock_of(scene.world):
        try:
            yield scene
        finally:
            scene.end()
