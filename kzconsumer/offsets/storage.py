"""Where offsets are stored: the interface to the committer, and both storages, ZooKeeper and the brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import msgspec

from kzconsumer.counters import CommitStorage
from kzconsumer.errors import (
    BadVersionError,
    ConnectionLostError,
    CoordinatorError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotPermittedError,
    ZooKeeperError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.registry.claim_record import (
    ClaimRecord,
    Fence,
    Plan,
    decode_claim_record,
    encode_claim_record,
    is_of_earlier_topic,
)
from kzconsumer.registry.nodes import decode_offset, encode_offset
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Check, Create, Node, Operation, SetData, transactions
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import repeated, together


class CommitRefused(msgspec.Struct, frozen=True):
    """The partition is ours, and its offset was not stored. `error`: that of ZooKeeper, if it has refused it."""

    reason: str
    error: ZooKeeperError | None = None


class OffsetStorage(Protocol):
    """Stores offsets of claims that hold, and of no others."""

    @property
    def name(self) -> CommitStorage: ...

    @property
    def forgets(self) -> bool:
        """Whether an offset expires unless it is stored again."""
        ...

    async def write(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored | Lost | CommitRefused]:
        """The outcome of each; one that is lost or refused does not affect the others.

        Raises SessionExpiredError, ZooKeeperError, CoordinatorError: then it is unknown what was stored.
        """
        ...

    async def executed(self, writes: Sequence[OffsetWrite]) -> Mapping[TopicPartition, Stored]:
        """Those of these writes, whose replies were lost, that were executed; the others may be repeated."""
        ...


class OffsetWrite(msgspec.Struct, frozen=True):
    """One offset to be stored, with the plan that is stored beside it (None: no range is in flight).

    `fence`, `record` and `version` are as the claim's last write left them; `version` is the offset node's, -1 without
    one. `epoch` is the record's, or the one that begins with this write; `written` is the last range that this claim
    wrote to a replayable sink's destination. `leader_epoch` is that of the last record before `offset`, -1 if unknown.
    """

    topic_partition: TopicPartition
    fence: Fence
    record: ClaimRecord
    version: int
    offset: int
    plan: Plan | None
    epoch: int
    written: tuple[int, int] | None = None
    leader_epoch: int = -1

    @property
    def leaves(self) -> Stored:
        """The state of the claim after this write."""
        version = self.version + 1
        plan = self.plan and msgspec.structs.replace(self.plan, offset_version=version)
        record = self.record.after(self.offset, plan, self.epoch, self.written, self.leader_epoch)
        if record == self.record:
            return Stored(self.fence, self.record, version)
        fence = msgspec.structs.replace(self.fence, record_version=self.fence.record_version + 1)
        return Stored(fence, record, version)


class Stored(msgspec.Struct, frozen=True):
    """The claim after the write; `version` is the offset node's."""

    fence: Fence
    record: ClaimRecord
    version: int


class Lost(msgspec.Struct, frozen=True):
    """The partition is no longer ours: nothing was written."""

    reason: str


class CommittedPosition(msgspec.Struct, frozen=True):
    """A claim as its last write left it.

    `offset` is the stored one (None: nothing yet), `version` the offset node's (-1: there is none), `copied` the
    coordinator's copy (-1: none that counts, None: unknown), `leader_epoch` that of the last record before `offset`.
    """

    fence: Fence
    record: ClaimRecord
    offset: int | None
    version: int
    copied: int | None = -1
    leader_epoch: int = -1


def raise_refused(refused: Mapping[TopicPartition, str]) -> None:
    """Raises CoordinatorError if there is any, with the reasons."""
    if refused:
        raise CoordinatorError("; ".join(f"{partition}: {reason}" for partition, reason in refused.items()))


# `/consumers/<group>/offsets/<topic>/<partition>` is written only through a fence: the versions of owner node and claim
# record are checked in the transaction that sets the offset, so a member that lost a partition cannot move its offset.
# Plans of a replayable sink are written and emptied in that transaction, too.

log = get_logger("kzconsumer.offsets")

# At most; so many as fit into a request are in one transaction. If one is refused, its others are written once more.
PARTITIONS_PER_TRANSACTION = 64
OPERATIONS_PER_PARTITION = 3
TRANSACTIONS_AT_ONCE = 4
"""With all of them in flight, records would wait behind a thousand offsets: for the event loop and the server."""


class ZooKeeperOffsetStorage:
    """Fenced writes of offsets on one session."""

    name: Final = "zookeeper"
    forgets: Final = False

    def __init__(self, session: ZooKeeperSession, paths: GroupPaths) -> None:
        self._session = session
        self._paths = paths

    async def write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost | CommitRefused]:
        """Store all offsets, in transactions of up to 64 partitions; each partition has an outcome of its own."""
        results: dict[TopicPartition, Stored | Lost | CommitRefused] = {}
        parts = [self._write(part) for part in by_transaction(writes)]
        for part in await together(parts, TRANSACTIONS_AT_ONCE):
            results.update(part)
        return results

    async def executed(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored]:
        """Those of these writes that were executed, by their nodes."""
        return await repeated(partial(self._executed, writes))

    async def last_writes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The transaction id (mzxid) of the last write of each partition's offset, for those that have one."""
        asked = list(partitions)
        stats = await together([self._session.exists(self._paths.offset(partition)) for partition in asked])
        return {partition: stat.mzxid for partition, stat in zip(asked, stats, strict=True) if stat is not None}

    async def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The stored offsets of those that have a readable one, also those that other members stored."""
        asked = list(partitions)
        nodes = await together([self._session.find(self._paths.offset(partition)) for partition in asked])
        found = {}
        for partition, node in zip(asked, nodes, strict=True):
            with suppress(ValueError):
                if node is not None and (offset := decode_offset(node.data)) is not None:
                    found[partition] = offset
        return found

    async def stored_for(self, incarnations: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """As `stored`, without offsets of earlier topics; each partition is given with its topic's incarnation."""
        # The records first: a claim of a new topic writes its record and removes the earlier topic's offset at once. An
        # offset read before that claim would count, by a record read after it.
        records = await self._claim_records(incarnations)
        nodes = await together([self._session.find(self._paths.offset(partition)) for partition in incarnations])
        found = {}
        for (partition, incarnation), node in zip(incarnations.items(), nodes, strict=True):
            if node is None or is_of_earlier_topic(node, records[partition], incarnation):
                continue
            with suppress(ValueError):
                if (offset := decode_offset(node.data)) is not None:
                    found[partition] = offset
        return found

    async def removed(self, incarnations: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offsets that claims stored last of these topics, of those whose records have them: also removed ones."""
        return {
            partition: record.position.offset
            for partition, record in (await self._claim_records(incarnations)).items()
            if record is not None and record.incarnation == f"{incarnations[partition]:#x}"
            if record.position is not msgspec.UNSET
        }

    async def leader_epochs(self, stored: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Those of the last records before stored offsets, -1 if unknown."""
        records = await self._claim_records(stored)
        return {partition: _leader_epoch(records[partition], at) for partition, at in stored.items()}

    async def _claim_records(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, ClaimRecord | None]:
        found = await together([self._session.find(self._paths.claim_record(partition)) for partition in partitions])
        return {partition: _record(node) for partition, node in zip(partitions, found, strict=True)}

    async def _write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost | CommitRefused]:
        results: dict[TopicPartition, Stored | Lost | CommitRefused] = {}
        # They are prepared here, and not all of a commit at once, for which records would wait.
        for part in transactions([(write, self._operations(write)) for write in writes], len(writes)):
            results.update(await self._write_at_once(part))
        return results

    async def _write_at_once(
        self, pending: list[tuple[OffsetWrite, Sequence[Operation]]]
    ) -> dict[TopicPartition, Stored | Lost | CommitRefused]:
        results: dict[TopicPartition, Stored | Lost | CommitRefused] = {}
        while pending:
            try:
                await self._session.multi([operation for _, operations in pending for operation in operations])
            except MultiFailedError as refused:
                index, role = divmod(refused.index, OPERATIONS_PER_PARTITION)
                write, _ = pending.pop(index)
                if role < 2:
                    results[write.topic_partition] = Lost(str(refused.error))
                elif isinstance(refused.error, (BadVersionError, NodeExistsError, NoNodeError)):
                    again = await repeated(partial(self._reread, write))
                    pending.append((again, self._operations(again)))
                elif isinstance(refused.error, NotPermittedError):
                    results[write.topic_partition] = CommitRefused(str(refused.error), refused.error)
                else:
                    raise refused.error from refused
            except ConnectionLostError:
                made = await self.executed([write for write, _ in pending])
                results.update(made)
                pending = [each for each in pending if each[0].topic_partition not in made]
            else:
                results.update({write.topic_partition: write.leaves for write, _ in pending})
                break
        return results

    def _operations(self, write: OffsetWrite) -> tuple[Check, Check | SetData, SetData | Create]:
        path = self._paths.offset(write.topic_partition)
        data = encode_offset(write.offset)
        store = Create(path, data) if write.version < 0 else SetData(path, data, write.version)
        owner, record = write.fence.checks()
        leaves = write.leaves
        if leaves.record is write.record:
            return owner, record, store
        return owner, SetData(record.path, encode_claim_record(leaves.record), record.version), store

    async def _reread(self, write: OffsetWrite) -> OffsetWrite:
        """The offset was changed although the partition is ours: log it, and write over the new version."""
        path = self._paths.offset(write.topic_partition)
        node = await self._session.find(path)
        if node is None:
            await self._session.ensure(path.rpartition("/")[0])
        log.error(
            "offset changed by a client that does not own the partition, restored",
            path=path,
            found=node.data[:40].decode("utf-8", "replace") if node else None,
            ours=write.offset,
        )
        return msgspec.structs.replace(write, version=node.stat.version if node else -1)

    async def _executed(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored]:
        await self._session.sync()
        offsets = await together([self._session.find(self._paths.offset(write.topic_partition)) for write in writes])
        # The offset alone could be another program's write, which matters only if the record changes, too.
        planning = [write for write in writes if write.leaves.record is not write.record]
        found = await together([self._session.find(write.fence.record_path) for write in planning])
        records = {write.topic_partition: node for write, node in zip(planning, found, strict=True)}
        made: dict[TopicPartition, Stored] = {}
        for write, offset in zip(writes, offsets, strict=True):
            leaves = _left(write, offset, records.get(write.topic_partition))
            if leaves is not None:
                made[write.topic_partition] = leaves
        return made


def _leader_epoch(record: ClaimRecord | None, stored: int) -> int:
    return record.leader_epoch_before(stored) if record is not None else -1


def _record(node: Node | None) -> ClaimRecord | None:
    """None also for one of an unknown format."""
    try:
        return decode_claim_record(node.data) if node is not None else None
    except ValueError:
        return None


def by_transaction(writes: Sequence[OffsetWrite]) -> list[Sequence[OffsetWrite]]:
    size = PARTITIONS_PER_TRANSACTION
    return [writes[first : first + size] for first in range(0, len(writes), size)]


def _left(write: OffsetWrite, offset: Node | None, record: Node | None) -> Stored | None:
    """The state of the claim by its nodes if this write was executed, else None."""
    leaves = write.leaves
    stands = offset is not None and offset.data == encode_offset(write.offset)
    version = offset.stat.version if stands and offset is not None else leaves.version
    if leaves.record is write.record:
        return leaves if stands and version == leaves.version else None
    if record is None or record.stat.version != leaves.fence.record_version:
        return None
    try:
        found = decode_claim_record(record.data)
    except ValueError:
        return None
    # The plan identifies our write, by its id and its content. Its offset version may differ from the one expected, if
    # the offset was reread before the write.
    written = leaves.record
    if _without_version(found.plan) != _without_version(written.plan):
        return None
    if msgspec.structs.replace(found, plan=None) != msgspec.structs.replace(written, plan=None):
        return None
    return Stored(leaves.fence, found, found.plan.offset_version if found.plan else version)


def _without_version(plan: Plan | None) -> Plan | None:
    return plan and msgspec.structs.replace(plan, offset_version=-1)


# With the brokers alone the fence is checked in ZooKeeper, then the coordinator stores. No transaction spans the two: a
# member that loses a partition in between can still move its offset, also back, so that records are redelivered. Plans
# are never stored this way.

CHECKS_PER_PARTITION = 2


class KafkaOffsetStorage:
    """Offsets of one group with its coordinator, of claims that held a moment before."""

    name: Final = "kafka"
    forgets: Final = True

    def __init__(self, session: ZooKeeperSession, coordinator: GroupCoordinator) -> None:
        self._session = session
        self._coordinator = coordinator

    async def write(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored | Lost | CommitRefused]:
        """Store all whose claim holds. Raises SessionExpiredError, ZooKeeperError, CoordinatorError."""
        results: dict[TopicPartition, Stored | Lost | CommitRefused] = {}
        for lost in await together([self._lost(part) for part in by_transaction(writes)]):
            results.update(lost)
        held = [write for write in writes if write.topic_partition not in results]
        refused = await self._coordinator.store(
            {
                write.topic_partition: WithBrokers(write.offset, write.epoch, leader_epoch=write.leader_epoch)
                for write in held
            }
        )
        for write in held:
            assert write.plan is None, f"{write.topic_partition}: a plan, and offsets only in Kafka"
            reason = refused.get(write.topic_partition)
            stored = Stored(write.fence, write.record, write.version)
            results[write.topic_partition] = stored if reason is None else CommitRefused(reason)
        return results

    async def executed(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Stored]:
        """None are known: offsets with the brokers have no versions. They may be written twice."""
        return {}

    async def _lost(self, writes: Sequence[OffsetWrite]) -> dict[TopicPartition, Lost]:
        lost: dict[TopicPartition, Lost] = {}
        for part in transactions([(write, write.fence.checks()) for write in writes], len(writes)):
            lost.update(await self._lost_of(part))
        return lost

    async def _lost_of(self, pending: list[tuple[OffsetWrite, Sequence[Operation]]]) -> dict[TopicPartition, Lost]:
        lost: dict[TopicPartition, Lost] = {}
        while pending:
            checks = [check for _, checks in pending for check in checks]
            try:
                await repeated(partial(self._session.multi, checks))
            except MultiFailedError as refused:
                write, _ = pending.pop(refused.index // CHECKS_PER_PARTITION)
                lost[write.topic_partition] = Lost(str(refused.error))
            else:
                break
        return lost
