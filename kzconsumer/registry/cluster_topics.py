"""Topics and brokers of a member's cluster: from its znodes, or from Metadata requests where it has no ZooKeeper.

Once a migration to KRaft is announced, every member asks brokers, and keeps their addresses for members that start when
the cluster's nodes are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol

import anyio
import msgspec

from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import (
    KzConsumerError,
    NodeExistsError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.registry.broker_topics import BrokerTopics, ClusterMetadata, TopicIdentities, groups_for_guests
from kzconsumer.registry.node_topics import NodeTopics
from kzconsumer.registry.nodes import (
    Topic,
    TopicIdentity,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.settings import Settings
from kzconsumer.settings.table_reader import nearest
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer.zookeeper")


class TopicSource(Protocol):
    """Where topics and brokers are known from: znodes, Metadata requests, or whichever of the two counts.

    A topic that was deleted and created again has another incarnation. All raise ZooKeeperError for an unreadable node
    and ConnectionLostError; those that ask brokers raise BrokersUnreachableError if none answers.
    """

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        """Those of the named topics that exist. A change is notified as `topic <name>`."""
        ...

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        """The partition numbers of those topics that exist, ascending. Records nothing."""
        ...

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        """Raises NotFoundError if one does not exist. A topic whose node is unreadable may have it."""
        ...

    async def all_topics(self) -> list[str]:
        """The names of all topics. A change is notified as `topics`."""
        ...

    async def broker_ids(self) -> list[int]:
        """The ids of the brokers that are up. None is no error, since brokers may be starting."""
        ...

    async def has_cluster(self) -> bool:
        """Whether a topic that is not known does not exist. A ZooKeeper that has lost its nodes names none either."""
        ...

    async def brokers(self) -> list[Broker]:
        """The brokers to connect to, each at the configured listener."""
        ...

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        """The incarnations of those topics that exist, readable or not."""
        ...

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        """Of those topics that the group has consumed, or may have. Records nothing, unlike `incarnations`."""
        ...

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        """Of those topics that exist, readable or not; both parts are of the same topic."""
        ...

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Of those topics that have one, in base64. Records nothing, unlike `identities`."""
        ...

    async def deleted(self) -> set[str]:
        """Topics that the last call of `identities` or `incarnations` has returned although they are deleted."""
        ...

    async def cluster_id(self) -> str:
        """The cluster's id; empty before 0.10.1."""
        ...


def other_topics(name: str, there: Collection[str]) -> str:
    """A hint for the error about a topic `name` that is not `there`."""
    if not there:
        return "the cluster has no topics: check the chroot of [zookeeper] connect"
    close = nearest(name, there)
    return f"did you mean {close}?" if close else f"there are {', '.join(sorted(there)[:5])}"


class ClusterTopics:
    """The source that counts: znodes, until the group knows addresses of brokers to ask instead.

    `notify` is called when `poll` finds that topics have changed since they were read. A reader that is no member
    (`guest`) keeps no addresses, and uses those of any group if no broker is registered.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        watches: Watches,
        settings: Settings,
        brokers: Brokers,
        notify: Callable[[str], None] = lambda reason: None,
        *,
        guest: bool = False,
    ) -> None:
        async def own_group() -> Iterable[str]:
            return (settings.group.id,)

        self._session = session
        self._nodes = nodes = NodeTopics(session, watches, settings.brokers)
        groups = groups_for_guests(nodes, watches, settings.group.id) if guest else own_group
        timeout = settings.fetch.request_timeout
        self._metadata = ClusterMetadata(nodes, watches, settings.brokers, brokers, timeout, groups)
        self._group = GroupPaths(settings.group.id)
        self._identities = TopicIdentities(session, watches, self._group)
        self._reported = BrokerTopics(self._metadata, self._identities, nodes)
        self._interval = settings.brokers.metadata_interval
        self._notify = notify
        self._guest = guest
        self._configured = bool(settings.brokers.bootstrap)  # the group's node need not have them

    async def _source(self) -> TopicSource:
        return self._reported if await self.asks_brokers() else self._nodes

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        return await (await self._source()).topics(names)

    async def partitions(self, names: list[str]) -> dict[str, tuple[int, ...]]:
        return await (await self._source()).partitions(names)

    async def require(self, partitions: Collection[TopicPartition]) -> None:
        await (await self._source()).require(partitions)

    async def all_topics(self) -> list[str]:
        return await (await self._source()).all_topics()

    async def broker_ids(self) -> list[int]:
        return await (await self._source()).broker_ids()

    async def has_cluster(self) -> bool:
        return await (await self._source()).has_cluster()

    async def brokers(self) -> list[Broker]:
        return await (await self._source()).brokers()

    async def incarnations(self, topics: Iterable[str]) -> dict[str, int]:
        return await (await self._source()).incarnations(topics)

    async def known_incarnations(self, names: Collection[str]) -> dict[str, int]:
        return await (await self._source()).known_incarnations(names)

    async def identities(self, topics: Iterable[str]) -> dict[str, TopicIdentity]:
        return await (await self._source()).identities(topics)

    async def ids(self, topics: Iterable[str]) -> dict[str, str]:
        return await (await self._source()).ids(topics)

    async def deleted(self) -> set[str]:
        return await self._reported.deleted()  # znodes say so by themselves

    async def cluster_id(self) -> str:
        return await (await self._source()).cluster_id()

    @property
    def unusable(self) -> Mapping[int, str]:
        """Why registered brokers were left out of the last `brokers()`, by id."""
        return self._nodes.unusable

    async def are_of_the_group(self) -> bool:
        """Whether one of them is a topic that the group has consumed: the brokers are not those of another cluster."""
        return bool(await self.known_incarnations(await self._identities.recorded()))

    async def poll(self) -> None:
        """Ask for the topics that were read, again and again, and notify if they have changed.

        Until brokers are asked, watches notify.
        """
        while True:
            await anyio.sleep(self._interval)
            try:
                if self._metadata.addresses:
                    await self._compare()
            except KzConsumerError as error:
                log.info("metadata unavailable", reason=str(error), again=True)

    async def asks_brokers(self) -> bool:
        """Whether topics come from brokers: once they do, they always do."""
        asks = await self._metadata.asks_brokers()
        if self._metadata.announced and not self._guest:
            found = self._metadata.addresses
            await self._keep(found)
            if self._metadata.announcement_kept():
                log.info(
                    "migration to KRaft: topics and brokers come from Metadata requests from now on", brokers=found
                )
        return asks

    async def _keep(self, addresses: tuple[str, ...]) -> None:
        """For members that start when the cluster's nodes are gone."""
        data = msgspec.json.encode(addresses)
        await self._session.ensure(self._group.root)
        try:
            await self._session.create(self._group.brokers, data)
        except NodeExistsError:
            await self._session.set(self._group.brokers, data, -1)

    async def _compare(self) -> None:
        for reason in await self._reported.changes():
            self._notify(reason)
        known = tuple(f"{broker.host}:{broker.port}" for broker in self._metadata.known.values())
        if not self._configured and set(known) != set(self._metadata.addresses):
            await self._keep(known)
            self._metadata.begin_at(known)
