"""The members of a group: `/consumers/<group>/ids`."""

from __future__ import annotations

import time

from kzconsumer.errors import NodeExistsError
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import Registration, encode_registration
from kzconsumer.version import __version__
from kzconsumer.zookeeper.session import Create, Delete, Node, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches


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
        except NodeExistsError:
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
