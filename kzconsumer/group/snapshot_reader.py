"""Reads the group as it is: members, subscribed topics, partitions. What was read is watched."""

from __future__ import annotations

from collections.abc import Mapping

from kzconsumer.errors import GroupUnreadableError
from kzconsumer.group.snapshot import GroupSnapshot
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry import paths
from kzconsumer.registry.members import ConsumerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import (
    Registration,
    decode_registration,
    needs_all_topics,
    streams_by_topic,
    subscribed_topics,
)
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.zookeeper.session import Node
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer.group")


class SnapshotReader:
    """`ignore_unreadable`: leave out members whose registration is unreadable, instead of raising."""

    def __init__(
        self,
        consumers: ConsumerRegistry,
        topics: TopicRegistry,
        watches: Watches,
        group: GroupPaths,
        *,
        ignore_unreadable: bool,
    ) -> None:
        self._consumers = consumers
        self._topics = topics
        self._watches = watches
        self._group = group
        self._ignore_unreadable = ignore_unreadable
        self._ignored: set[str] = set()
        self._read: dict[str, tuple[bytes, Registration]] = {}  # decoded before, by consumer id
        self._watched: set[str] = set()

    async def members(self) -> dict[str, Registration]:
        """Every member's registration, by consumer id. Raises GroupUnreadableError."""
        return self._decoded(await self._consumers.members())

    async def read(self, members: Mapping[str, Registration]) -> GroupSnapshot:
        """The group of these members, with the topics that exist."""
        all_topics = tuple(await self._topics.all_topics()) if needs_all_topics(members) else ()
        names = subscribed_topics(members, all_topics)
        for name in self._watched.difference(names):
            self._watches.forget(paths.topic(name))  # no longer subscribed to
        self._watched = set(names)
        return GroupSnapshot(members, all_topics, await self._topics.topics(names))

    def _decoded(self, nodes: Mapping[str, Node]) -> dict[str, Registration]:
        before, self._read = self._read, {}
        for consumer, node in nodes.items():
            path = self._group.member(consumer)
            try:
                known = before.get(consumer)
                if known is None or known[0] != node.data:
                    registration = decode_registration(node.data)
                    streams_by_topic(registration, ())  # an invalid pattern counts as unreadable
                    known = node.data, registration
                self._read[consumer] = known
            except ValueError as error:
                if not self._ignore_unreadable:
                    raise GroupUnreadableError(
                        "member registration unreadable, waiting until it leaves", path, str(error)
                    ) from error
                if path not in self._ignored:
                    self._ignored.add(path)
                    log.warning("member registration unreadable, ignored", about=path, reason=str(error))
        return {consumer: registration for consumer, (_, registration) in self._read.items()}
