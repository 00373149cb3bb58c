"""A group from outside with the offsets that count: ZooKeeper's, the brokers', or the larger of both, by its storage.

Owns no state. `kzconsumer lag`, `groups describe` and `offsets show | copy` begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import Storage, WithBrokers
from kzconsumer.registry import paths
from kzconsumer.zookeeper.round_trips import together
from kzconsumer_tools.groups.nodes import GroupFacts, GroupNodes, facts
from kzconsumer_tools.offsets.stored import counting

if TYPE_CHECKING:
    from kzconsumer_tools.groups.cluster_access import Outside


class SeenGroup(msgspec.Struct, frozen=True):
    """`known.offsets` are those that a member begins at; `brokers` what is stored there (not asked: nothing)."""

    nodes: GroupNodes
    known: GroupFacts
    brokers: Mapping[TopicPartition, WithBrokers]


async def see(outside: Outside, nodes: GroupNodes, storage: Storage) -> SeenGroup:
    """Ask the brokers too where the group keeps offsets there. Raises CoordinatorFailed."""
    known = facts(nodes)
    if storage == "zookeeper":
        return SeenGroup(nodes, known, {})
    brokers = await outside.with_brokers(nodes.group, known.existing.union(known.offsets))
    more = sorted({partition.topic for partition in brokers}.difference(nodes.topics))
    found = await together([outside.session.find(paths.topic(topic)) for topic in more])
    there = {topic: node for topic, node in zip(more, found, strict=True) if node is not None}
    nodes = msgspec.structs.replace(nodes, topics={**nodes.topics, **there})
    known = msgspec.structs.replace(facts(nodes), offsets=counting(nodes, known.offsets, brokers, storage))
    return SeenGroup(nodes, known, brokers)
