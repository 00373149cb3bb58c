"""The cluster's topics: from its nodes, or from Metadata requests if it has left ZooKeeper. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from kzconsumer.brokers.protocol.metadata import TopicMetadata
from kzconsumer.errors import NoNodeError
from kzconsumer.registry import paths
from kzconsumer.registry.cluster_metadata import ClusterMetadata, existing
from kzconsumer.registry.topic_identity import TopicIdentities
from kzconsumer.zookeeper.operations import Node
from kzconsumer.zookeeper.round_trips import together
from kzconsumer_tools.groups.nodes import KnownTopic, topic_of_node


class NodeReads(Protocol):
    """What a session is needed for here; `children` may return none for a node that does not exist."""

    async def find(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]: ...


class Topics(Protocol):
    """For one reading of one group or several. `from_brokers`: they come from Metadata requests."""

    from_brokers: bool

    async def known(self) -> bool:
        """Whether anything says which topics there are."""
        ...

    async def names(self) -> list[str]:
        """All topics, sorted."""
        ...

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        """Those that exist, as the group knows them; None: those from brokers have no incarnations."""
        ...


class NodeTopics:
    from_brokers = False

    def __init__(self, reads: NodeReads) -> None:
        self._reads = reads

    async def known(self) -> bool:
        return bool(await self.names()) or await self._reads.find(paths.BROKER_TOPICS) is not None

    async def names(self) -> list[str]:
        try:
            return await self._reads.children(paths.BROKER_TOPICS)
        except NoNodeError:
            return []

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        nodes = await together([self._reads.find(paths.topic(name)) for name in names])
        return {name: topic_of_node(node) for name, node in zip(names, nodes, strict=True) if node is not None}


class BrokerTopics:
    from_brokers = True

    def __init__(
        self,
        metadata: ClusterMetadata,
        described: dict[str, TopicMetadata],
        identities: Callable[[str], TopicIdentities] | None,
    ) -> None:
        self._metadata = metadata
        self._described = described
        self._missing: set[str] = set()
        self._identities = identities

    async def known(self) -> bool:
        return True

    async def names(self) -> list[str]:
        return sorted(self._described)

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        """Topics that the first broker does not know are looked up with the others, once."""
        unknown = set(names).difference(self._described, self._missing)
        self._described |= await self._metadata.described(sorted(unknown))
        self._missing |= unknown.difference(self._described)
        there = [name for name in names if name in self._described]
        incarnations: list[int | None] = [None] * len(there)
        if self._identities is not None and group is not None:
            known = self._identities(group)
            incarnations = await together([known.known(name, self._described[name].id) for name in there])
        return {
            name: KnownTopic(tuple(sorted(self._described[name].partitions)), incarnation, id=self._described[name].id)
            for name, incarnation in zip(there, incarnations, strict=True)
        }


async def topics_now(
    reads: NodeReads, metadata: ClusterMetadata, identities: Callable[[str], TopicIdentities] | None = None
) -> Topics:
    """The topics as they are now. Without `identities` those from brokers have no incarnations.

    Raises BrokersUnreachableError if no broker answers.
    """
    if not await metadata.asks_brokers():
        return NodeTopics(reads)
    return BrokerTopics(metadata, existing(await metadata.ask(None)), identities)
