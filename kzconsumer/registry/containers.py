"""The parents of a topic's owner, offset and claim nodes. The first member of a new group creates them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress

import anyio

from kzconsumer.errors import MultiFailedError, NoNodeError
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import Create, ZooKeeperSession

# Topics in one transaction, which has to fit into a request.
MOST_AT_ONCE = 256


class Containers:
    """Those of one group, on one session."""

    def __init__(self, session: ZooKeeperSession, paths: GroupPaths) -> None:
        self._session = session
        self._paths = paths
        self._prepared: set[str] = set()
        self._made: Counter[str] = Counter()
        self._making: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def prepare(self, topics: Iterable[str]) -> None:
        """Create those of topics that have none, once for each topic, with few requests.

        If that is refused, another member has begun to; what is still missing then is left to `make`.
        """
        new = set(topics) - self._prepared
        if not new:
            return
        try:
            existing = await self._session.children(self._paths.claims)
        except NoNodeError:
            existing = []
            above = self._paths.owners, self._paths.offsets, self._paths.claims
            await together([self._session.ensure(path) for path in above])
        if missing := sorted(new.difference(existing))[:MOST_AT_ONCE]:
            creates = [Create(path, b"") for each in missing for path in self._paths.containers(each)]
            with suppress(MultiFailedError):
                await self._session.multi(creates)
        self._prepared |= new

    def made(self, topic: str) -> int:
        """How often those of the topic were created."""
        return self._made[topic]

    async def make(self, topic: str, made: int) -> None:
        """Create those of the topic, unless another task has since `made` was read."""
        async with self._making[topic]:
            if self._made[topic] == made:
                await together([self._session.ensure(path) for path in self._paths.containers(topic)])
                self._made[topic] += 1
