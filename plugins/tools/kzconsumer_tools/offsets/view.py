"""A group as read from outside, with its effective offsets: ZooKeeper's, the brokers', or the larger of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.offsets.authority import Storage, WithBrokers
from kzconsumer_tools.groups.nodes import GroupFacts, GroupNodes, facts
from kzconsumer_tools.offsets.stored import effective_offsets

if TYPE_CHECKING:
    from kzconsumer_tools.groups.cluster_access import ClusterAccess


class GroupView(msgspec.Struct, frozen=True):
    """`facts.offsets` are those that a member starts at; `brokers` are the brokers' (empty if they were not asked)."""

    nodes: GroupNodes
    facts: GroupFacts
    brokers: Mapping[TopicPartition, WithBrokers]


def view_of(nodes: GroupNodes) -> GroupView:
    """The view of a group that stores its offsets in ZooKeeper only."""
    return GroupView(nodes, facts(nodes), {})


async def read_view(access: ClusterAccess, nodes: GroupNodes, storage: Storage) -> GroupView:
    """Ask the brokers too if they store offsets of the group. Raises CoordinatorError."""
    view = view_of(nodes)
    if storage == "zookeeper":
        return view
    zookeeper = view.facts.offsets
    brokers = await access.coordinator_offsets(nodes.group, view.facts.existing.union(zookeeper))
    more = sorted({partition.topic for partition in brokers}.difference(nodes.topics))
    if more:
        found = await (await access.topics()).found(more, nodes.group)
        nodes = msgspec.structs.replace(nodes, topics={**nodes.topics, **found})
    offsets = effective_offsets(nodes, zookeeper, brokers, storage)
    return GroupView(nodes, msgspec.structs.replace(facts(nodes), offsets=offsets), brokers)
