"""Gives topic ids their incarnations, and keeps them in the group (`topic_record`)."""

from __future__ import annotations

import msgspec

from kzconsumer.errors import BadVersionError, ConnectionLostError, NodeExistsError, NoNodeError, ZooKeeperError
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.registry.node_json import read_object
from kzconsumer.registry.nodes import TopicIdentity
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.topic_record import (
    TOPIC_RECORD_VERSION,
    TopicRecord,
    decode_topic_record,
    incarnation_of,
    last_incarnation,
)
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import Node, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches


class TopicIdentities:
    """Of one group, on one session."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, group: GroupPaths) -> None:
        self._session = session
        self._watches = watches
        self._group = group

    async def recorded(self) -> list[str]:
        """The names of the topics whose ids are recorded."""
        try:
            return await self._session.children(self._group.topics)
        except NoNodeError:
            return []

    async def knows(self, topic: str, topic_id: str) -> bool:
        """Whether the id is recorded, as the present or a former one. Raises as `incarnation`."""
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            return node is not None and topic_id in decode_topic_record(node.data).ids
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def incarnation(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic; None if the id is an earlier topic's, from a broker that lags behind.

        Raises ZooKeeperError if the record is unreadable.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            while True:
                if node is not None:
                    try:
                        return incarnation_of(node, topic_id)
                    except LookupError:
                        pass
                await self._record(topic, topic_id, node)
                node = await self._session.find(path)
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def known(self, topic: str, topic_id: str) -> int | None:
        """The incarnation of the topic if it is one that the group has consumed, or may have. Records nothing.

        None for an id that would get a new incarnation, and for a former one. An empty id is that of a topic without
        (`TopicMetadata`). Raises as `incarnation`.
        """
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            if node is not None:
                return incarnation_of(node, topic_id) if topic_id else last_incarnation(node)
            before = await self._known_before(topic, topic_id)
        except LookupError:
            return None
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error
        return int(before, 16) if before else None

    async def last(self, topic: str) -> TopicIdentity | None:
        """Of the topic that was seen last; None if there was none. Raises as `incarnation`."""
        path = self._group.topic(topic)
        node = await self._watches.data(path, f"topic {topic}")
        try:
            if node is None:
                return None
            return TopicIdentity(last_incarnation(node), decode_topic_record(node.data).ids[-1])
        except ValueError as error:
            raise ZooKeeperError(path, str(error)) from error

    async def _record(self, topic: str, topic_id: str, before: Node | None) -> None:
        """Write the id, unless another member has written meanwhile."""
        path = self._group.topic(topic)
        try:
            if before is not None:
                record = decode_topic_record(before.data).followed_by(topic_id)
                await self._session.set(path, msgspec.json.encode(record), before.stat.version)
            else:
                record = TopicRecord(TOPIC_RECORD_VERSION, (topic_id,), await self._known_before(topic, topic_id))
                await self._session.ensure(self._group.topics)
                await self._session.create(path, msgspec.json.encode(record))
        except (BadVersionError, NodeExistsError, NoNodeError, ConnectionLostError):
            await self._session.sync(path)

    async def _known_before(self, topic: str, topic_id: str) -> str:
        """The incarnation by which members know the topic that read its node, or did; empty if there are none."""
        await self._session.sync(paths.topic(topic))
        node = await self._session.find(paths.topic(topic))
        if node is not None:
            known = read_object(node.data).get("topic_id")
            return f"{node.stat.czxid:#x}" if known in (None, topic_id) else ""
        # The cluster's nodes are gone. Nothing says that this is another topic than the one that was consumed.
        # Partitions that no member has claimed since an earlier recreation have records of an earlier topic.
        _, offsets, claims = self._group.containers(topic)
        if incarnations := [int(decode_claim_record(node.data).incarnation, 16) for node in await self._in(claims)]:
            return f"{max(incarnations):#x}"
        # Nor of offsets that members of other kinds have stored.
        stored = [node.stat.mzxid for node in await self._in(offsets)]
        return f"{min(stored):#x}" if stored else ""

    async def _in(self, container: str) -> list[Node]:
        try:
            names = await self._session.children(container)
        except NoNodeError:
            return []
        nodes = await together([self._session.find(f"{container}/{name}") for name in names])
        return [node for node in nodes if node is not None]
