"""Owner nodes and claim records: claim, change of thread, release, each one fenced transaction.

Owns no state: versions come back as a `Fence` that the claim keeps. Called by group/claims. The rules and the runs that
taught them: kzconsumer/README.md, "Claims".
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

import anyio
import msgspec
import structlog

from kzconsumer.errors import BadVersion, ConnectionLost, MultiFailed, NodeExists, NoNode
from kzconsumer.model import ConsumerThreadId, TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import CLAIM_RECORD_VERSION, ClaimRecord, decode_claim_record, encode_claim_record
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.ownership import Blocked, Claimed, Fence, OwnerNode, Refused, refusal
from kzconsumer.registry.paths import GroupPaths, is_number
from kzconsumer.zookeeper.round_trips import repeated, together
from kzconsumer.zookeeper.session import Check, Create, Delete, Node, SetData, Stat, ZooKeeperSession

log = structlog.get_logger("kzconsumer.group")


class OwnerRegistry:
    """Reads and writes of `owners`, `claims` and (reads only) `offsets` on one session."""

    def __init__(
        self, session: ZooKeeperSession, paths: GroupPaths, assignor: str, fingerprint: str = "", isolation: str = ""
    ) -> None:
        """`fingerprint` is the destination's of a replayable sink, `isolation` how its ranges are read."""
        self._session = session
        self._paths = paths
        self._assignor = assignor
        self._fingerprint = fingerprint
        self._isolation = isolation
        # By topic: how often its containers were made, and who is making them now.
        self._made: Counter[str] = Counter()
        self._making: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def claim(
        self, partition: TopicPartition, thread: ConsumerThreadId, incarnation: int
    ) -> Claimed | Blocked | Refused:
        """Create the owner node and move the claim record, as one transaction; then read the stored offset."""
        path = self._paths.owner(partition)
        record_path = self._paths.claim_record(partition)
        text = str(thread).encode()
        while True:
            made = self._made[partition.topic]
            found = await repeated(partial(self._session.find, record_path))
            try:
                record = self._next_record(found, incarnation)
            except ValueError as error:
                return Refused(record_path, str(error))
            data = encode_claim_record(record)
            old = await self._of_earlier_topic(partition, found, incarnation)
            withdrawn = [Delete(self._paths.offset(partition), old.stat.version)] if old is not None else []
            try:
                stats = await self._session.multi(
                    [
                        Create(path, text, ephemeral=True),
                        # Ours is at version 1, an original owner's always at 0.
                        SetData(path, text, 0),
                        SetData(record_path, data, found.stat.version) if found else Create(record_path, data),
                        *withdrawn,
                    ]
                )
            except ConnectionLost:
                # Executed or not: the node tells. Ours by a lost reply, or still free, or somebody's.
                fence = await repeated(partial(self._fence_of_ours, path, record_path))
                if fence is None:
                    continue
                fence = await self.change_thread(fence, thread)
            except MultiFailed as refused:
                if refused.index == 0 and isinstance(refused.error, NodeExists):
                    owner = await repeated(partial(self._session.find, path))
                    if owner is None:
                        continue  # gone again between the two requests
                    if owner.stat.ephemeral_owner != self._session.id:
                        return _blocked(path, owner)
                    fence = await repeated(partial(self._fence_of_ours, path, record_path))
                    if fence is None:
                        continue
                    fence = await self.change_thread(fence, thread)
                elif refused.index > 2 and isinstance(refused.error, (BadVersion, NoNode)):
                    continue  # the offset was stored again, or deleted, since it was read
                elif isinstance(refused.error, NoNode):
                    await self._make_containers(partition.topic, made)
                    continue
                elif isinstance(refused.error, (BadVersion, NodeExists)):
                    continue  # the record moved since it was read
                else:
                    raise refused.error from refused
            else:
                moved = stats[2]
                fence = Fence(OwnerNode(path, 1), record_path, moved.version if isinstance(moved, Stat) else 0)
            stored, version = await repeated(partial(self._stored, partition))
            self._tell_recreated(partition, found, record, old, stored)
            return Claimed(fence, record, stored, version)

    async def change_thread(self, fence: Fence, thread: ConsumerThreadId) -> Fence:
        """Name another of our own threads as the owner, without giving the partition up. Raises MultiFailed if lost."""
        data = str(thread).encode()
        try:
            stats = await self._session.multi(
                [
                    Check(fence.record_path, fence.record_version),
                    SetData(fence.owner.path, data, fence.owner.version),
                ]
            )
        except ConnectionLost:
            node = await repeated(partial(self._synced, fence.owner.path))
            if node is None or node.data != data or node.stat.version != fence.owner.version + 1:
                return await self.change_thread(fence, thread)  # not executed, or refused now if the claim is lost
            return msgspec.structs.replace(fence, owner=OwnerNode(fence.owner.path, node.stat.version))
        moved = stats[1]
        assert moved is not None
        return msgspec.structs.replace(fence, owner=OwnerNode(fence.owner.path, moved.version))

    async def release(self, fence: Fence, withdrawn: Delete | None = None) -> bool:
        """Delete our owner node; False when it was no longer ours, which leaves nothing to release.

        With it goes an offset of ours that is `withdrawn`, unless somebody else has written it since.
        """
        more = [withdrawn] if withdrawn is not None else []
        try:
            await self._session.multi(
                [Check(fence.record_path, fence.record_version), Delete(fence.owner.path, fence.owner.version), *more]
            )
        except ConnectionLost:
            node = await repeated(partial(self._synced, fence.owner.path))
            if node is not None and node.stat.ephemeral_owner == self._session.id:
                return await self.release(fence, withdrawn)
        except MultiFailed as refused:
            return refused.index > 1 and await self.release(fence)
        return True

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        """Of those topics that exist now, whether or not their nodes can be read."""
        names = list(topics)
        stats = await together([self._session.exists(paths.topic(name)) for name in names])
        return {name: stat.czxid for name, stat in zip(names, stats, strict=True) if stat is not None}

    async def _synced(self, path: str) -> Node | None:
        await self._session.sync(path)
        return await self._session.find(path)

    async def _make_containers(self, topic: str, made: int) -> None:
        """The topic's first claim, or one after somebody removed them; `made` is the count before they were missed."""
        async with self._making[topic]:
            if self._made[topic] == made:
                await together([self._session.ensure(path) for path in self._paths.containers(topic)])
                self._made[topic] += 1

    def _next_record(self, found: Node | None, incarnation: int) -> ClaimRecord:
        """The record as this claim leaves it. Raises ValueError where it holds what this version cannot honour."""
        if found is None:
            return ClaimRecord(CLAIM_RECORD_VERSION, self._assignor, f"{incarnation:#x}", fingerprint=self._fingerprint)
        record = decode_claim_record(found.data)
        if (plan := record.plan) is not None:
            if (reason := refusal(plan, self._fingerprint)) is not None:
                raise ValueError(reason)
            if plan.isolation != self._isolation:
                planned = f"offsets {plan.first} to {plan.until} are planned as read with {plan.isolation}"
                raise ValueError(f'{planned}: set [fetch] isolation = "{plan.isolation}" until they are written')
        # Offsets of another topic of that name are not these. In a new epoch the brokers' copies of them do not count.
        epoch = record.epoch + (record.incarnation != f"{incarnation:#x}")
        return msgspec.structs.replace(
            record,
            assignor=self._assignor,
            incarnation=f"{incarnation:#x}",
            epoch=epoch,
            fingerprint=self._fingerprint,
        )

    async def _of_earlier_topic(self, partition: TopicPartition, found: Node | None, incarnation: int) -> Node | None:
        """The stored offset, where the last claim was of another topic of that name and nobody has stored one since.

        `incarnation` is the transaction that made the topic: what was stored before that is not of it.
        """
        if found is None or decode_claim_record(found.data).incarnation == f"{incarnation:#x}":
            return None
        offset = await repeated(partial(self._session.find, self._paths.offset(partition)))
        return offset if offset is not None and offset.stat.mzxid < incarnation else None

    async def abandon(self, partition: TopicPartition) -> None:
        """Delete an owner node of this session that no claim stands for; anybody else's stays."""
        path, record_path = self._paths.owner(partition), self._paths.claim_record(partition)
        fence = await repeated(partial(self._fence_of_ours, path, record_path))
        if fence is not None and not await self.release(fence):
            await self.abandon(partition)  # it moved since it was read: whose is it now?

    async def owned(self, topics: Iterable[str]) -> set[TopicPartition]:
        """Partitions of these topics that have an owner node, whoever's: one request for each topic."""
        names = list(topics)
        found = await together([self._owned(name) for name in names])
        return {TopicPartition(topic, int(n)) for topic, numbers in zip(names, found, strict=True) for n in numbers}

    async def _owned(self, topic: str) -> list[str]:
        try:
            children = await self._session.children(self._paths.containers(topic)[0])
        except NoNode:
            return []
        return [name for name in children if is_number(name)]

    async def standing(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Blocked]:
        """Those that have an owner node, as a claim of ours would find them blocked."""
        paths = [self._paths.owner(partition) for partition in partitions]
        nodes = await together([self._session.find(path) for path in paths])
        return {
            partition: _blocked(path, node)
            for partition, path, node in zip(partitions, paths, nodes, strict=True)
            if node is not None
        }

    async def stat(self, owner: OwnerNode) -> Stat | None:
        """The owner node's, None when there is none."""
        return await self._session.exists(owner.path)

    def is_ours(self, stat: Stat | None, owner: OwnerNode) -> bool:
        """The owner node is the one we left."""
        return stat is not None and stat.version == owner.version and stat.ephemeral_owner == self._session.id

    async def _fence_of_ours(self, path: str, record_path: str) -> Fence | None:
        """The fence of an owner node this very session made, None for anybody else's or none."""
        # The record first: a claim by somebody else between the two reads moves it, and the fence does not hold.
        await self._session.sync(path)
        record = await self._session.find(record_path)
        owner = await self._session.find(path)
        if record is None or owner is None or owner.stat.ephemeral_owner != self._session.id:
            return None
        return Fence(OwnerNode(path, owner.stat.version), record_path, record.stat.version)

    async def _stored(self, partition: TopicPartition) -> tuple[int | None, int]:
        path = self._paths.offset(partition)
        node = await self._session.find(path)
        if node is None:
            return None, -1
        try:
            return decode_offset(node.data), node.stat.version
        except ValueError:
            log.error("stored offset unreadable, taken as none", path=path, content=node.data[:40])
            return None, node.stat.version

    @staticmethod
    def _tell_recreated(
        partition: TopicPartition, before: Node | None, now: ClaimRecord, old: Node | None, stored: int | None
    ) -> None:
        if before is None:
            return
        was = decode_claim_record(before.data).incarnation
        if was == now.incarnation:
            return
        where = {"topic": partition.topic, "partition": partition.partition, "was": was, "now": now.incarnation}
        if old is not None:
            text = old.data[:40].decode("utf-8", "replace")
            reason = "the stored offset is of the earlier topic: the partition begins by [offsets] reset"
            log.error("topic was recreated", **where, stored=int(text) if text.isdecimal() else text, reason=reason)
        else:
            log.warning("topic was recreated", **where, stored=stored)


def _blocked(path: str, owner: Node) -> Blocked:
    return Blocked(path, owner.data.decode("utf-8", "replace"), owner.stat.ephemeral_owner)
