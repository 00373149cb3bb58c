"""One session for one errand: what the command line asks of ZooKeeper, ended after a time in which any server answers.

Owns the session, for as long as the block lasts. Whoever reads a group from outside calls it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from kzconsumer.errors import ZooKeeperUnreachable
from kzconsumer.settings.connections import ZooKeeperSettings
from kzconsumer.zookeeper.session import ZooKeeperSession

LIMIT = 15.0


@asynccontextmanager
async def errand(zookeeper: ZooKeeperSettings, more: float = 0.0) -> AsyncIterator[ZooKeeperSession]:
    """A session that has seen what the leader had.

    Raises ZooKeeperUnreachable when the block lasts for LIMIT seconds and `more`, which the errand itself may take;
    ConfigError when no server lets us in.
    """
    limit = LIMIT + more
    session = ZooKeeperSession.of(zookeeper, brief=True)
    try:
        with anyio.fail_after(limit):
            async with session:
                await session.sync()
                yield session
    except TimeoutError:
        why = f" ({'; '.join(session.refusals)})" if session.refusals else ""
        reason = f"{zookeeper.connect}: ZooKeeper did not answer within {limit:.0f} s{why}"
        raise ZooKeeperUnreachable(reason) from None
