"""A cluster for commands: topics are nodes of a simulated ZooKeeper, logs and coordinators are in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, cast

from kzconsumer.brokers.protocol.cluster_state import TopicMetadata
from kzconsumer.lag.partition import Why
from kzconsumer.model import TopicPartition
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.registry.broker_topics import ClusterMetadata
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.group_lag import LogRange
from kzconsumer_tools.groups.group_reader import NodeTopicsRead, Topics
from kzconsumer_tools.offsets.offset_changes import NO_OFFSET


class Cluster(ClusterAccess):
    """The logs have the offsets 0 to 9. `meanwhile` is done before the coordinator stores."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self.has: dict[str, dict[TopicPartition, WithBrokers]] = {}
        self.members: tuple[str, ...] = ()
        self.keeps_epochs = True
        """As brokers from 2.1 on."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.reported: dict[str, str] = {}
        """The ids of topics, empty where brokers disagree; none if members recognize topics by their nodes."""
        self._metadata = cast("ClusterMetadata", Metadata(self.reported))

    async def topics(self) -> Topics:
        return NodeTopicsRead(self.session)

    async def logs(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange]:
        return {each: LogRange(0, 10) for each in partitions}

    async def kafka_members(self, group: str) -> tuple[str, ...]:
        return self.members

    async def known_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, WithBrokers | Why]:
        return dict(self.has.get(group, {}))

    def coordinator(self, group: str) -> Any:
        return Coordinator(self, self.has.setdefault(group, {}))


class Metadata:
    def __init__(self, reported: Mapping[str, str]) -> None:
        self._reported = reported

    async def asks_brokers(self) -> bool:
        return bool(self._reported)

    async def described(self, names: Collection[str]) -> dict[str, TopicMetadata]:
        return {name: TopicMetadata(0, {}, "of one broker") for name in names}

    async def agreed(self, names: Collection[str]) -> dict[str, str]:
        return {name: self._reported[name] for name in names}


class Coordinator:
    def __init__(self, cluster: Cluster, has: dict[TopicPartition, WithBrokers]) -> None:
        self._cluster, self._has = cluster, has

    async def stored(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, WithBrokers]:
        return {each: self._has[each] for each in partitions if each in self._has}

    async def store(self, offsets: Mapping[TopicPartition, WithBrokers]) -> dict[TopicPartition, str]:
        if self._cluster.meanwhile is not None:
            await self._cluster.meanwhile()
        keeps = self._cluster.keeps_epochs
        self._has.update({where: at if keeps else at._replace(leader_epoch=-1) for where, at in offsets.items()})
        for each in [each for each, at in self._has.items() if at == NO_OFFSET]:
            del self._has[each]
        return {}
