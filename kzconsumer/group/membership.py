"""The registration of a member, `ids/<consumer>`, for as long as one ZooKeeper session; the members of a group as read.

Closing the session removes the registration together with the owner nodes, in one transaction.
"""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections.abc import Mapping
from shlex import quote

import anyio

from kzconsumer.errors import ConnectionLostError, GroupUnreadableError, NodeExistsError, NoNodeError
from kzconsumer.group.assignment import GroupSnapshot
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry import paths
from kzconsumer.registry.cluster_topics import TopicSource
from kzconsumer.registry.group_records import (
    Registration,
    decode_registration,
    encode_registration,
    needs_all_topics,
    streams_by_topic,
    subscribed_topics,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.version import __version__
from kzconsumer.zookeeper.operations import Create, Delete, Node, Stat
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, repeated


class ConsumerRegistry:
    """Reads and writes of the `ids` nodes on one session."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, paths: GroupPaths) -> None:
        self._session = session
        self._watches = watches
        self._paths = paths

    async def register(self, consumer: str, registration: Registration) -> None:
        """Create our registration.

        Raises NodeExistsError if another session holds the id, also an earlier one of ours.
        """
        path = self._paths.member(consumer)
        await self._session.ensure(self._paths.ids)
        at = int(time.time() * 1000)
        data = encode_registration(
            registration.subscription, at, __version__, registration.pattern, registration.status
        )
        try:
            await self._session.create(path, data, ephemeral=True)
        except NoNodeError:  # somebody has deleted the group's nodes since they were made
            await self.register(consumer, registration)
        except NodeExistsError:
            # A create whose reply was lost is repeated by the caller (`Membership.join`), and then finds its own node.
            # An earlier session of ours with the same id may have left such a node as well, and its end has to be
            # waited for. Only `ephemeralOwner` differs.
            stat = await self._session.exists(path)
            if stat is None or stat.ephemeral_owner != self._session.id:
                raise

    async def nudge(self, consumer: str, number: int) -> None:
        """Create and delete a member node in one transaction: watches of the list fire, and no reader sees the node."""
        path = self._paths.member(f"{consumer}-poke-{number}")
        data = encode_registration({}, int(time.time() * 1000), __version__)
        await self._session.multi([Create(path, data, ephemeral=True), Delete(path, 0)])

    async def members(self) -> dict[str, Node]:
        """Every member's node by consumer id; changes notify as `members`."""
        names = await self._watches.children(self._paths.ids, "members")
        nodes = await self._watches.each_data({self._paths.member(name): "members" for name in names})
        members = {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                members[name] = node
            else:  # left between the two reads: the watch of the list fires
                self._watches.forget(self._paths.member(name))
        return members


log = get_logger("kzconsumer.group")

# Session timeouts of ours after which the session that has our id has not just ended: its own may be longer.
PATIENCE = 2


def new_consumer_id(group: str, fixed: str | None = None) -> str:
    """`<group>_<hostname>-<epoch ms>-<8 hex>`, as `ZookeeperConsumerConnector` (1.1.1) makes them."""
    if fixed is not None:
        return f"{group}_{fixed}"
    return f"{group}_{socket.gethostname()}-{int(time.time() * 1000)}-{secrets.token_hex(4)}"


class Membership:
    """One member of a group, on one session."""

    def __init__(
        self,
        session: ZooKeeperSession,
        consumers: ConsumerRegistry,
        paths: GroupPaths,
        consumer: str,
        registration: Registration,
    ) -> None:
        self._session = session
        self._consumers = consumers
        self.paths = paths
        self.consumer = consumer
        self.registration = registration
        self.waits_for = ""
        """What `join` waits for; empty if for nothing."""

    async def register(self) -> None:
        """Raises NodeExistsError while another session holds the id."""
        await self._consumers.register(self.consumer, self.registration)

    async def join(self) -> None:
        """Register, waiting for an earlier session that holds the id to end.

        Raises SessionExpiredError, ZooKeeperError.
        """
        path = self.paths.member(self.consumer)
        patience = PATIENCE * self._session.timeout
        while True:
            try:
                await self.register()
            except NodeExistsError:
                if not self.waits_for:
                    self.waits_for = "consumer id still registered by an earlier session, waiting for it to expire"
                    log.info(self.waits_for, consumer=self.consumer)
                stat, gone = await repeated(lambda: self._session.watch_exists(path))
                if stat is None:
                    continue
                with anyio.move_on_after(patience if stat.ephemeral_owner else 0.0) as waiting:
                    await gone.wait()
                if waiting.cancelled_caught:
                    self._log_taken(stat)
                    patience = math.inf
                    await gone.wait()
            except ConnectionLostError:
                continue  # the next attempt finds out whether this one was executed
            else:
                self.waits_for = ""
                log.info(
                    "registered",
                    consumer=self.consumer,
                    pattern=self.registration.pattern,
                    subscription=self.registration.subscription,
                )
                return

    def _log_taken(self, stat: Stat) -> None:
        """Another member has the id, or nobody: neither ends by itself."""
        holder, event = stat.ephemeral_owner, "consumer id is taken by another member"
        reason = f"session {holder % (1 << 64):#x} has it: [group] consumer_id must be unique, leave it out"
        if not holder:
            event = "consumer id is taken by a node that no session holds"
            reason = f"`kzconsumer groups clean {quote(self.paths.root.rpartition('/')[2])}` removes it"
        log.error(event, consumer=self.consumer, about=self.paths.member(self.consumer), reason=reason)
        self.waits_for = f"{event}: {reason}"


class SnapshotReader:
    """Reads the group as it is: members, subscribed topics, partitions. What was read is watched.

    `ignore_unreadable`: leave out members whose registration is unreadable, instead of raising.
    """

    def __init__(
        self,
        consumers: ConsumerRegistry,
        topics: TopicSource,
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
