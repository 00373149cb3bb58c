"""The groups that brokers coordinate, read from all brokers: one round of requests for each reading.

Groups of both protocols for consumers, and offsets of groups that never had members. Brokers do not say when an offset
was committed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import anyio
import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.cluster_state import MetadataResponse
from kzconsumer.brokers.protocol.error_codes import broker_error
from kzconsumer.brokers.protocol.groups import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    GroupState,
    ListGroupsRequest,
    OffsetFetchRequest,
    StoredOffsets,
)
from kzconsumer.brokers.protocol.versions import OFFSET_FETCH
from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, KzConsumerError, UnsupportedVersionError
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.offsets.coordinator import ALL_FROM
from kzconsumer.registry.broker_topics import ClusterMetadata
from kzconsumer.zookeeper.watches import outcomes, together
from kzconsumer_tools.exporter.seen_groups import ReadGroup, ReadPartition
from kzconsumer_tools.groups.cluster_access import OFFSETS_TOPIC
from kzconsumer_tools.groups.group_nodes import KnownTopic
from kzconsumer_tools.groups.group_reader import Topics

#: Requests in flight to one broker.
AT_ONCE = 100

#: The group's members know all that they are to read: else a partition without owner is one that is about to get one.
_SETTLED = "Stable"


class KafkaGroup(NamedTuple):
    """As read. `offsets`: those that are stored."""

    state: GroupState
    offsets: Mapping[TopicPartition, int]

    @property
    def topics(self) -> set[str]:
        subscribed = {topic for member in self.state.members for topic in member.topics}
        return subscribed.union(each.topic for each in self.offsets)

    def read(self, there: Mapping[str, KnownTopic]) -> ReadGroup:
        """`there`: those of its topics that the cluster has. Of one that cannot be described nothing is gone."""
        existing = {
            TopicPartition(name, number) for name in self.topics & there.keys() for number in there[name].partitions
        }
        existing |= {each for each in self.offsets if each.topic in there and not there[each.topic].described}
        owners = {each: member for member in self.state.members for each in member.partitions}
        subscribed = {topic for member in self.state.members for topic in member.topics}
        wanted = {each for each in existing if each.topic in subscribed}
        rows = []
        for each in sorted(wanted.union(owners, self.offsets)):
            owner = owners.get(each)
            rows.append(
                ReadPartition(
                    topic=each.topic,
                    partition=each.partition,
                    owner=owner.id if owner is not None else None,
                    client=owner.client if owner is not None else "",
                    unowned=owner is None and each in wanted and self.state.state == _SETTLED,
                    stored=self.offsets.get(each),
                    gone=each not in existing,
                )
            )
        return ReadGroup(len(self.state.members), tuple(rows), frozenset(existing))


class KafkaGroups(NamedTuple):
    """`failure`: why some are missing."""

    groups: Mapping[str, KafkaGroup]
    failure: KzConsumerError | None


def merged(zookeeper: Mapping[str, ReadGroup], kafka: Mapping[str, ReadGroup]) -> dict[str, ReadGroup]:
    """All groups. Of two with one name that in ZooKeeper, unless only the other one has members.

    It gets the brokers' offsets of partitions for which it has none: they are where it may store them.
    """
    found = {**kafka, **zookeeper}
    for name in zookeeper.keys() & kafka.keys():
        ours, other = zookeeper[name], kafka[name]
        if other.members and not ours.members:
            found[name] = other
            continue
        stored = {each.place: each for each in other.partitions if each.stored is not None}
        rows = {each.place: each for each in ours.partitions}
        for place, row in stored.items():
            mine = rows.setdefault(place, row)
            if mine.stored is None and mine.useless is None:
                rows[place] = msgspec.structs.replace(mine, stored=row.stored)
        found[name] = ReadGroup(
            ours.members, tuple(rows[each] for each in sorted(rows)), ours.existing | other.existing, ours.foreign
        )
    return found


def certain(groups: Mapping[str, ReadGroup], kafka: Collection[str], before: Collection[str]) -> dict[str, ReadGroup]:
    """Those of an incomplete reading whose offsets are known; `kafka`: which it found with the brokers, `before`: which
    earlier ones did since the last complete one. Others may have offsets with a coordinator that has not answered.
    """
    return {
        name: group
        for name, group in groups.items()
        if name in kafka
        or (name not in before and not any(each.owner and each.stored is None for each in group.partitions))
    }


async def read_kafka_groups(metadata: ClusterMetadata, topics: Topics, pool: Brokers, timeout: float) -> KafkaGroups:
    """`timeout`: seconds for each response."""
    exists = bool(await topics.found([OFFSETS_TOPIC], None))  # the request alone would create it
    try:
        answer = await metadata.ask((OFFSETS_TOPIC,) if exists else ())
    except BrokersUnreachableError as error:
        return KafkaGroups({}, error)
    groups: dict[str, KafkaGroup] = {}
    failure = _without_coordinator(answer)
    for each in await together([_coordinated_by(broker, pool, timeout) for broker in answer.brokers.values()]):
        groups |= each.groups
        failure = failure or each.failure
    return KafkaGroups(groups, failure)


def _without_coordinator(answer: MetadataResponse) -> KzConsumerError | None:
    """Groups are listed by the leaders of the offsets topic alone."""
    topic = answer.topics.get(OFFSETS_TOPIC)
    for number, partition in topic.partitions.items() if topic is not None else ():
        if partition.leader not in answer.brokers:
            return ConnectionLostError(f"{OFFSETS_TOPIC}-{number} has no leader: no broker knows the groups in it")
    return None


async def _coordinated_by(broker: Broker, pool: Brokers, timeout: float) -> KafkaGroups:
    limit = anyio.Semaphore(AT_ONCE)
    try:
        connection = await pool.connection(broker, "groups")

        async def offsets(group: str) -> StoredOffsets:
            async with limit:
                return await connection.call(OffsetFetchRequest(group, None), timeout=timeout)

        if connection.versions.choose(OFFSET_FETCH) < ALL_FROM:
            raise UnsupportedVersionError(f"{broker}: brokers before 0.10.2 do not list the offsets of a group")
        listing = await connection.call(ListGroupsRequest(), timeout=timeout)
        if listing.error:
            raise broker_error(listing.error, f"groups of {broker}")
        consumers = [each for each in listing.groups if each.protocol in ("consumer", "")]
        states: dict[str, GroupState] = {}
        if older := tuple(each.group for each in consumers if each.kind in ("classic", "")):
            states |= await connection.call(DescribeGroupsRequest(older), timeout=timeout)
        if newer := tuple(each.group for each in consumers if each.kind == "consumer"):
            states |= await connection.call(ConsumerGroupDescribeRequest(newer), timeout=timeout)
        fetched = await outcomes([offsets(group) for group in states])
    except KzConsumerError as error:
        return KafkaGroups({}, error)
    groups: dict[str, KafkaGroup] = {}
    failure: KzConsumerError | None = None
    for (group, state), answer in zip(states.items(), fetched, strict=True):
        if state.missing:  # it was deleted since it was listed
            continue
        if isinstance(answer, KzConsumerError):
            failure = failure or answer
            continue
        errors = (state.error, answer.error, *(each.error for each in answer.offsets.values()))
        if code := next(filter(None, errors), 0):  # it may have moved to another coordinator
            failure = failure or broker_error(code, f"group {group}, asked of {broker}")
            continue
        stored = {where: each.offset for where, each in answer.offsets.items() if each.offset >= 0}
        groups[group] = KafkaGroup(state, stored)
    return KafkaGroups(groups, failure)
