"""Moving a group from ZooKeeper to the brokers, or back: both sides are read, and one gets the offsets of the other.

Nothing is clamped: an offset that cannot be continued at blocks the move.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kzconsumer.display import plural
from kzconsumer.errors import NotDoneError, NotFoundError
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import Storage, WithBrokers
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_nodes import GroupNodes
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.offsets.move_rules import Block, MovedGroup, Side, block, in_use, known_blocks, moved, to_resolve
from kzconsumer_tools.offsets.offset_changes import CoordinatorChange, to_offset
from kzconsumer_tools.offsets.prepare import CoordinatorChanges, OffsetChanges, Scope, nodes_at, read_known_view, within
from kzconsumer_tools.offsets.stored_offsets import effective_offsets

_PLACES: Mapping[Storage, str] = {"zookeeper": "ZooKeeper", "kafka": "the brokers", "both": "ZooKeeper or the brokers"}


class MoveRequest(NamedTuple):
    """`storage`: where members of the ZooKeeper group store their offsets; None: the operator has not said."""

    group: str
    kafka_group: str
    to: Side
    storage: Storage | None
    scope: Scope | None

    @property
    def counts(self) -> Storage:
        """Where the offsets of the group in ZooKeeper are read; a move back writes them to ZooKeeper."""
        return (self.storage or "zookeeper") if self.to == "kafka" else "zookeeper"


class _Sides(NamedTuple):
    """What was read. `namesake`: the group in ZooKeeper with the Kafka group's name, whose members may store there.

    `members`: of the Kafka group, None with brokers of 0.8. `blocks` has all partitions of the scope, `logs` those that
    exist, `offsets` what can be moved, `epochs` the leader epochs of the last records before them. `later`: in how many
    the brokers have a later offset of the group in ZooKeeper.
    """

    nodes: GroupNodes
    namesake: GroupNodes
    members: tuple[str, ...] | None
    stored: Mapping[TopicPartition, int | None]
    kafka: Mapping[TopicPartition, WithBrokers]
    blocks: Mapping[TopicPartition, Block | None]
    logs: Mapping[TopicPartition, LogRange]
    offsets: Mapping[TopicPartition, int]
    epochs: Mapping[TopicPartition, int]
    later: int


class Move(NamedTuple):
    """`changes` are those of the group that is moved to, without blocked offsets."""

    shown: MovedGroup
    changes: OffsetChanges | CoordinatorChanges


async def prepare_move(access: ClusterAccess, asked: MoveRequest) -> Move:
    """Read both sides. Raises NotFoundError without an offset to move, NotDoneError, CoordinatorError, and as
    `ClusterAccess.logs`.

    Offsets in the brokers are taken as a newer consumer reads them: it knows no reset epoch.
    """
    sides = await _read(access, asked)
    offsets = sides.offsets
    changes: OffsetChanges | CoordinatorChanges
    if asked.to == "kafka":
        of_brokers = [
            _to_brokers(sides.namesake, each, at, sides.epochs.get(each, -1), sides.kafka.get(each))
            for each, at in offsets.items()
        ]
        changes = CoordinatorChanges(sides.namesake, of_brokers)
    else:
        of_nodes = [
            to_offset(nodes_at(sides.nodes, each), at, sides.logs[each], leader_epoch=sides.epochs.get(each, -1))
            for each, at in offsets.items()
        ]
        changes = OffsetChanges(sides.nodes, of_nodes)
    described = dict(zip(offsets, (change.described() for change in changes.changes), strict=True))
    partitions = tuple(
        moved(
            each,
            asked.to,
            sides.stored.get(each),
            at.offset if (at := sides.kafka.get(each)) is not None else None,
            sides.logs.get(each),
            blocked_by,
            described.get(each),
        )
        for each, blocked_by in sides.blocks.items()
    )
    blocked = [
        *in_use(sides.nodes, sides.namesake, sides.members or ()),
        *to_resolve(asked.group, asked.to, partitions),
    ]
    if sides.later:
        blocked.append(
            f"the brokers have later offsets of group {asked.group} than ZooKeeper, in "
            f"{plural(sides.later, 'partition')}: say with --storage which of them count for its members"
        )
    shown = MovedGroup(
        group=asked.group,
        kafka_group=asked.kafka_group,
        to=asked.to,
        executed=False,
        undo=None,
        same=all(each.stored == each.kafka for each in partitions),
        coordinated=sides.members is not None,
        blocked=tuple(blocked),
        partitions=partitions,
    )
    return Move(shown, changes)


async def apply_move(access: ClusterAccess, asked: MoveRequest, move: Move, progress: ChangeProgress) -> None:
    """Store what was prepared, and read both sides again.

    Raises NotDoneError, also if they differ afterwards: another client has stored offsets meanwhile.
    """
    await move.changes.apply(access, progress)
    after = (await prepare_move(access, asked)).shown
    if after.blocked:
        raise NotDoneError(f"the offsets are stored, but meanwhile {'; '.join(after.blocked)}")
    if any(each.changes for each in after.partitions):
        raise NotDoneError("the offsets are stored, but others were stored meanwhile: try again")


async def _read(access: ClusterAccess, asked: MoveRequest) -> _Sides:
    group, kafka_group = asked.group, asked.kafka_group
    members = await access.kafka_members(kafka_group)
    if members is None and kafka_group != group:
        raise NotDoneError(
            f"brokers of 0.8 store offsets but coordinate no groups: no consumer could continue as {kafka_group}; "
            "update the brokers to 0.9 or later first"
        )
    nodes = await access.nodes(group)
    namesake = nodes if kafka_group == group else await access.nodes(kafka_group)
    view = await read_known_view(access, nodes, asked.counts)
    stored = view.facts.offsets
    kafka = await access.coordinator_offsets(kafka_group, view.facts.existing.union(stored))
    in_kafka = {partition: each.offset for partition, each in kafka.items()}
    source: Mapping[TopicPartition, int | None] = stored if asked.to == "kafka" else in_kafka
    existing = await access.partitions(sorted({partition.topic for partition in source}))
    there = {TopicPartition(topic, number) for topic, numbers in existing.items() for number in numbers}
    chosen = sorted(each for each in there.union(source) if within(each, asked.scope))
    if all(source.get(each) is None for each in chosen):
        raise _nothing_to_move(asked)
    logs = await access.logs([each for each in chosen if each in there])
    known = known_blocks(view.facts, offsets=asked.counts != "kafka") if asked.to == "kafka" else {}
    later = 0
    if asked.to == "kafka" and asked.storage is None:
        own = effective_offsets(nodes, {}, await access.coordinator_offsets(group, chosen), "kafka")
        later = sum((own.get(each) or 0) > (stored.get(each) or 0) for each in chosen)
    blocks = {each: block(each, source.get(each), logs.get(each), known) for each in chosen}
    offsets = {each: at for each in chosen if (at := source.get(each)) is not None and blocks[each] is None}
    with_brokers = view.brokers if asked.to == "kafka" else kafka
    epochs = {each: _epoch_before(nodes, with_brokers.get(each), each, at) for each, at in offsets.items()}
    return _Sides(nodes, namesake, members, stored, kafka, blocks, logs, offsets, epochs, later)


def _epoch_before(nodes: GroupNodes, brokers: WithBrokers | Why | None, partition: TopicPartition, offset: int) -> int:
    """The leader epoch of the last record before the offset, which is stored with the brokers or in ZooKeeper."""
    if isinstance(brokers, WithBrokers) and brokers.offset == offset and brokers.leader_epoch >= 0:
        return brokers.leader_epoch
    record = nodes_at(nodes, partition).claim
    return record.leader_epoch_before(offset) if record is not None else -1


def _nothing_to_move(asked: MoveRequest) -> NotFoundError:
    where = " of a chosen partition" if asked.scope else ""
    if asked.to == "zookeeper":
        return NotFoundError(f"group {asked.kafka_group} has no offset in the brokers{where}")
    more = "; --storage says where else its members store them" if asked.storage is None else ""
    return NotFoundError(f"group {asked.group} has no offset in {_PLACES[asked.counts]}{where}{more}")


def _to_brokers(
    namesake: GroupNodes, partition: TopicPartition, offset: int, leader_epoch: int, before: WithBrokers | None
) -> CoordinatorChange:
    """The offset with the reset epoch of the group of that name in ZooKeeper, whose members may read it, too."""
    claim = nodes_at(namesake, partition).claim
    epoch = claim.epoch if claim else None
    after = WithBrokers(offset, epoch, leader_epoch=leader_epoch)
    if before is not None and before.offset == offset and not before.before(epoch or 0):
        after = before  # the effective offset is the same, whatever stands beside it
    return CoordinatorChange(partition, before, after)
