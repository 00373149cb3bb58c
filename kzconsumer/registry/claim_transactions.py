"""Owner nodes and claim records: claim, change of thread and release, each one fenced transaction.

The rules of ownership: docs/internals/ownership.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import anyio
import msgspec

from kzconsumer.errors import (
    BadVersionError,
    ConnectionLostError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    TopicChangedError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry.claim_record import (
    CLAIM_RECORD_VERSION,
    Blocked,
    Claimed,
    ClaimRecord,
    ClaimRefused,
    Fence,
    OwnerNode,
    decode_claim_record,
    encode_claim_record,
    is_of_earlier_topic,
    refusal,
)
from kzconsumer.registry.cluster_topics import TopicSource
from kzconsumer.registry.node_topics import incarnations
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import GroupPaths, is_number
from kzconsumer.zookeeper.operations import Check, Create, Delete, Node, SetData, Stat, transactions
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, repeated, together

# Parents of a topic's owner, offset and claim nodes: the first member of a new group creates them.

# Topics whose containers are made before the first claims.
MOST_AT_ONCE = 256


class Containers:
    """Those of one group, on one session."""

    def __init__(self, session: ZooKeeperSession, paths: GroupPaths) -> None:
        self._session = session
        self._paths = paths
        self._prepared: set[str] = set()
        self._made: Counter[str] = Counter()
        self._making: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def prepare(self, topics: Iterable[str]) -> None:
        """Create those of topics that have none, once for each topic, with few requests.

        If that is refused, another member has begun to; what is still missing then is left to `make`.
        """
        new = set(topics) - self._prepared
        if not new:
            return
        try:
            existing = await self._session.children(self._paths.claims)
        except NoNodeError:
            existing = []
            above = self._paths.owners, self._paths.offsets, self._paths.claims
            await together([self._session.ensure(path) for path in above])
        missing = sorted(new.difference(existing))[:MOST_AT_ONCE]
        creates = [(each, [Create(path, b"") for path in self._paths.containers(each)]) for each in missing]
        for part in transactions(creates, MOST_AT_ONCE):
            with suppress(MultiFailedError):
                await self._session.multi([create for _, made in part for create in made])
        self._prepared |= new

    def made(self, topic: str) -> int:
        """How often those of the topic were created."""
        return self._made[topic]

    async def make(self, topic: str, made: int) -> None:
        """Create those of the topic, unless another task has since `made` was read."""
        async with self._making[topic]:
            if self._made[topic] == made:
                await together([self._session.ensure(path) for path in self._paths.containers(topic)])
                self._made[topic] += 1


log = get_logger("kzconsumer.group")


class OwnerCounts(NamedTuple):
    """They are equal only if no owner node of a topic was made or deleted meanwhile."""

    connection: int
    """The number of the one on which they were read."""
    czxid: int
    """Of the container."""
    changes: int
    """How often one was made or deleted in it."""


class OwnerRegistry:
    """Reads and writes of `owners`, `claims` and (reads only) `offsets` on one session."""

    def __init__(
        self,
        session: ZooKeeperSession,
        paths: GroupPaths,
        assignor: str,
        fingerprint: str = "",
        isolation: str = "",
        *,
        topics: TopicSource | None = None,
        watches: Watches | None = None,
    ) -> None:
        """`fingerprint`: of a replayable sink's destination; `isolation`: with which its ranges are read.

        `topics` says which topics exist; None: the cluster's nodes. Owner nodes that block a claim are watched by
        `watches`.
        """
        self._topics = topics
        self._watches = watches or Watches(session)
        self._session = session
        self._paths = paths
        self._assignor = assignor
        self._fingerprint = fingerprint
        self._isolation = isolation
        self._containers = Containers(session, paths)

    async def prepare(self, topics: Iterable[str]) -> None:
        """See `Containers.prepare`; before the first claims of these topics."""
        await self._containers.prepare(topics)

    async def claim(
        self, partition: TopicPartition, thread: ConsumerThreadId, incarnation: int
    ) -> Claimed | Blocked | ClaimRefused:
        """Create the owner node and write the claim record in one transaction; then read the stored offset.

        Raises TopicChangedError rather than replace the record of another incarnation that may be a later one.
        """
        path = self._paths.owner(partition)
        record_path = self._paths.claim_record(partition)
        text = str(thread).encode()
        # One transaction makes the partition ours, and leaves a fence that nobody else has:
        # 1. The owner node is created. It fails if anybody owns the partition.
        # 2. It is set once, to the same text. No operation can check who made a node (czxid, ephemeralOwner), and
        #    check(owner, 0) holds for any new node. So ours is at version 1, an original owner's is always at 0.
        # 3. The claim record is set, at the version that was read, or created. Its new version is the other half of the
        #    fence: it changes with every claim of ours, and members never delete the record.
        # 4. A stored offset that is of an earlier topic of that name is deleted.
        # The offset is read afterwards, on the same session: read before, it could be one that the former owner still
        # raises.
        while True:
            made = self._containers.made(partition.topic)
            found = await repeated(partial(self._session.find, record_path))
            try:
                record = self._next_record(found, incarnation)
            except ValueError as error:
                return ClaimRefused(record_path, str(error))
            data = encode_claim_record(record)
            old = await self._of_earlier_topic(partition, found, incarnation)
            withdrawn = [Delete(self._paths.offset(partition), old.stat.version)] if old is not None else []
            try:
                stats = await self._session.multi(
                    [
                        Create(path, text, ephemeral=True),
                        SetData(path, text, 0),
                        SetData(record_path, data, found.stat.version) if found else Create(record_path, data),
                        *withdrawn,
                    ]
                )
            except ConnectionLostError:
                # The node shows whether it was executed: ours, still free, or another member's.
                fence = await self._fence_for(partition, thread, data)
            except MultiFailedError as refused:
                outcome = await self._after_refusal(refused, partition, thread, data, made)
                if isinstance(outcome, Blocked):
                    return outcome
                fence = outcome
            else:
                moved = stats[2]
                fence = Fence(OwnerNode(path, 1), record_path, moved.version if isinstance(moved, Stat) else 0)
            if fence is None:
                continue
            stored, version = await repeated(partial(self._stored, partition))
            self._log_recreated(partition, found, record, old, stored)
            return Claimed(fence, record, stored, version)

    async def _after_refusal(
        self, refused: MultiFailedError, partition: TopicPartition, thread: ConsumerThreadId, record: bytes, made: int
    ) -> Fence | Blocked | None:
        """Our fence if the owner node is ours already, or who blocks the claim; None if it is to be tried again."""
        if refused.index == 0 and isinstance(refused.error, NodeExistsError):
            path = self._paths.owner(partition)
            owner = await repeated(partial(self._watches.blocking, path, f"owner of {partition}"))
            if owner is not None and owner.stat.ephemeral_owner != self._session.id:
                return _blocked(path, owner)
            self._watches.forget(path)
            if owner is None:
                return None  # deleted between the two requests
            return await self._fence_for(partition, thread, record)
        if refused.index > 2 and isinstance(refused.error, (BadVersionError, NoNodeError)):
            return None  # the offset was stored again, or deleted, since it was read
        if isinstance(refused.error, NoNodeError):
            await self._containers.make(partition.topic, made)
            return None
        if isinstance(refused.error, (BadVersionError, NodeExistsError)):
            return None  # the record has changed since it was read
        raise refused.error from refused

    async def _fence_for(self, partition: TopicPartition, thread: ConsumerThreadId, record: bytes) -> Fence | None:
        """That of the owner node that a claim of ours with this record has made, which names this thread afterwards.

        None if there is none.
        """
        found = await repeated(partial(self._ours, partition))
        if found is None:
            return None
        owner, present = found
        # Our node may be left of an earlier claim, which was lost since the last sweep: because its record was deleted,
        # for example. If the topic was created again in between, that claim's record and the stored offset are of the
        # former one: no transaction of this claim has replaced them. So that node is deleted, and the partition
        # claimed.
        if present is None or present.data != record:
            await self.abandon(partition)
            return None
        return await self.change_thread(self._fence(partition, owner, present), thread)

    async def change_thread(self, fence: Fence, thread: ConsumerThreadId) -> Fence:
        """Make another thread of this member the owner, without releasing.

        Raises MultiFailedError if the claim is lost.
        """
        data = str(thread).encode()
        try:
            stats = await self._session.multi(
                [
                    Check(fence.record_path, fence.record_version),
                    SetData(fence.owner.path, data, fence.owner.version),
                ]
            )
        except ConnectionLostError:
            node = await repeated(partial(self._synced, fence.owner.path))
            if node is None or node.data != data or node.stat.version != fence.owner.version + 1:
                return await self.change_thread(fence, thread)  # not executed, or refused now if the claim is lost
            return msgspec.structs.replace(fence, owner=OwnerNode(fence.owner.path, node.stat.version))
        moved = stats[1]
        assert moved is not None
        return msgspec.structs.replace(fence, owner=OwnerNode(fence.owner.path, moved.version))

    async def release(self, fence: Fence, withdrawn: Delete | None = None) -> bool:
        """Delete our owner node; False if the fence does not hold: it was no longer ours, or its record was deleted.

        The same transaction deletes the stored offset if `withdrawn` is given and it was not changed since.
        """
        # The record is checked, and the owner node deleted at its version: a node that another member has made since
        # stays. A stop needs neither: closing the session removes all owner nodes and the registration in one
        # transaction.
        more = [withdrawn] if withdrawn is not None else []
        try:
            await self._session.multi(
                [Check(fence.record_path, fence.record_version), Delete(fence.owner.path, fence.owner.version), *more]
            )
        except ConnectionLostError:
            node = await repeated(partial(self._synced, fence.owner.path))
            if node is not None and node.stat.ephemeral_owner == self._session.id:
                return await self.release(fence, withdrawn)
        except MultiFailedError as refused:
            if not isinstance(refused.error, (BadVersionError, NoNodeError)):
                raise refused.error from refused
            return refused.index > 1 and await self.release(fence)
        return True

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        """The incarnations of those topics that exist, readable or not."""
        return await (self._topics.incarnations(topics) if self._topics else incarnations(self._session, topics))

    async def present(self, topics: Iterable[str]) -> dict[str, int]:
        """As `incarnations`, of topics as they are now or later, however far this server lags behind."""
        await self._session.sync()
        return await self.incarnations(topics)

    async def _synced(self, path: str) -> Node | None:
        await self._session.sync(path)
        return await self._session.find(path)

    def _next_record(self, found: Node | None, incarnation: int) -> ClaimRecord:
        """The record as this claim writes it. Raises ValueError if this member cannot honour the existing one."""
        if found is None:
            return ClaimRecord(CLAIM_RECORD_VERSION, self._assignor, f"{incarnation:#x}", fingerprint=self._fingerprint)
        record = decode_claim_record(found.data)
        if (plan := record.plan) is not None:
            if (reason := refusal(plan, self._fingerprint)) is not None:
                raise ValueError(reason)
            if plan.isolation != self._isolation:
                planned = f"offsets {plan.first} to {plan.until} are planned as read with {plan.isolation}"
                raise ValueError(f'{planned}: set [fetch] isolation = "{plan.isolation}" until they are written')
        # For a recreated topic a new epoch begins, in which the brokers' copies of its offsets do not count.
        recreated = record.incarnation != f"{incarnation:#x}"
        return msgspec.structs.replace(
            record,
            assignor=self._assignor,
            incarnation=f"{incarnation:#x}",
            epoch=record.epoch + recreated,
            fingerprint=self._fingerprint,
            position=msgspec.UNSET if recreated else record.position,
        )

    async def _of_earlier_topic(self, partition: TopicPartition, found: Node | None, incarnation: int) -> Node | None:
        """The stored offset if it is of an earlier topic of that name.

        Without a claim record it was stored by a member of another kind, or by a tool. Raises TopicChangedError if the
        topic is not of that incarnation any more. It is read after the record, whose version the claim checks: so the
        claim never replaces the record of a later incarnation.
        """
        record = decode_claim_record(found.data) if found is not None else None
        if record is not None:
            if record.incarnation == f"{incarnation:#x}":
                return None
            present = await repeated(partial(self.incarnations, [partition.topic]))
            if present.get(partition.topic) != incarnation:
                raise TopicChangedError(partition.topic)
        offset = await repeated(partial(self._session.find, self._paths.offset(partition)))
        return offset if offset is not None and is_of_earlier_topic(offset, record, incarnation) else None

    async def abandon(self, partition: TopicPartition) -> None:
        """Delete an owner node of this session without a claim; another session's stays."""
        while True:
            made = self._containers.made(partition.topic)
            found = await repeated(partial(self._ours, partition))
            if found is None:
                return
            owner, record = found
            if record is None:
                released = await self._release_without_record(partition, owner, made)
            else:
                released = await self.release(self._fence(partition, owner, record))
            if released:
                return
            # It has changed since it was read.

    async def _release_without_record(self, partition: TopicPartition, owner: OwnerNode, made: int) -> bool:
        """Delete our owner node, whose claim record somebody has deleted; False if that is to be tried again."""
        # A version of the owner node is no fence by itself: another member's claim leaves it at the same one. But that
        # claim has made a record. So a record is created here, which is refused if there is one, and nothing is left
        # of it.
        path = self._paths.claim_record(partition)
        try:
            await self._session.multi([Create(path, b""), Delete(path, 0), Delete(owner.path, owner.version)])
        except ConnectionLostError:
            return False
        except MultiFailedError as refused:
            if not isinstance(refused.error, (BadVersionError, NodeExistsError, NoNodeError)):
                raise refused.error from refused
            if refused.index == 0 and isinstance(refused.error, NoNodeError):
                await self._containers.make(partition.topic, made)
            return False
        return True

    async def owned(self, topics: Iterable[str]) -> set[TopicPartition]:
        """Partitions of these topics that have an owner node; one request per topic."""
        names = list(topics)
        found = await together([self._owned(name) for name in names])
        return {TopicPartition(topic, int(n)) for topic, numbers in zip(names, found, strict=True) for n in numbers}

    async def _owned(self, topic: str) -> list[str]:
        try:
            children = await self._session.children(self._paths.containers(topic)[0])
        except NoNodeError:
            return []
        return [name for name in children if is_number(name)]

    async def standing(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Blocked]:
        """Partitions with an owner node, as they would block a claim."""
        paths = [self._paths.owner(partition) for partition in partitions]
        nodes = await together([self._session.find(path) for path in paths])
        return {
            partition: _blocked(path, node)
            for partition, path, node in zip(partitions, paths, nodes, strict=True)
            if node is not None
        }

    async def stat(self, owner: OwnerNode) -> Stat | None:
        """The stat of the owner node, or None."""
        return await self._session.exists(owner.path)

    async def counts(self, topic: str) -> OwnerCounts | None:
        """Those of the topic's owner nodes; None if they have no container, or another connection is made meanwhile."""
        connection = self._session.connections
        stat = await self._session.exists(self._paths.containers(topic)[0])
        if stat is None or connection != self._session.connections:
            return None
        return OwnerCounts(connection, stat.czxid, stat.cversion)

    def is_ours(self, stat: Stat | None, owner: OwnerNode) -> bool:
        """Whether the owner node is unchanged and of this session."""
        return stat is not None and stat.version == owner.version and stat.ephemeral_owner == self._session.id

    async def _ours(self, partition: TopicPartition) -> tuple[OwnerNode, Node | None] | None:
        """The owner node, if it is of this session, and the claim record."""
        path = self._paths.owner(partition)
        # The record first: if another member claims between the two reads, it changes, and the fence does not hold.
        await self._session.sync(path)
        record = await self._session.find(self._paths.claim_record(partition))
        owner = await self._session.find(path)
        if owner is None or owner.stat.ephemeral_owner != self._session.id:
            return None
        return OwnerNode(path, owner.stat.version), record

    def _fence(self, partition: TopicPartition, owner: OwnerNode, record: Node) -> Fence:
        return Fence(owner, self._paths.claim_record(partition), record.stat.version)

    async def _stored(self, partition: TopicPartition) -> tuple[int | None, int]:
        path = self._paths.offset(partition)
        node = await self._session.find(path)
        if node is None:
            return None, -1
        try:
            return decode_offset(node.data), node.stat.version
        except ValueError:
            log.error("stored offset is unreadable, treating it as missing", path=path, content=node.data[:40])
            return None, node.stat.version

    @staticmethod
    def _log_recreated(
        partition: TopicPartition, before: Node | None, now: ClaimRecord, old: Node | None, stored: int | None
    ) -> None:
        was = decode_claim_record(before.data).incarnation if before is not None else None
        if was == now.incarnation or (was is None and old is None):
            return
        where = {"topic": partition.topic, "partition": partition.partition, "was": was, "now": now.incarnation}
        if old is not None:
            text = old.data[:40].decode("utf-8", "replace")
            reason = "the stored offset is of the earlier topic: [offsets] reset decides where to begin"
            log.error("topic recreated", **where, stored=int(text) if text.isdecimal() else text, reason=reason)
        else:
            log.warning("topic recreated", **where, stored=stored)


def _blocked(path: str, owner: Node) -> Blocked:
    return Blocked(path, owner.data.decode("utf-8", "replace"), owner.stat.ephemeral_owner)
