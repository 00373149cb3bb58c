"""Sessions as the settings describe them: a member's, and short ones that answer a single question."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from kzconsumer.errors import ZooKeeperUnreachable
from kzconsumer.registry import paths
from kzconsumer.settings.connections import ZooKeeperSettings
from kzconsumer.zookeeper.access import load_access, needs_access
from kzconsumer.zookeeper.connect_string import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession

LIMIT = 15.0


def open_session(settings: ZooKeeperSettings, *, brief: bool = False, insist: bool = False) -> ZooKeeperSession:
    """The session of these settings, to be entered once; nodes below `/consumers` get the ACL that they name."""
    return ZooKeeperSession(
        ConnectString.parse(settings.connect),
        settings.session_timeout,
        brief=brief,
        access=partial(load_access, settings) if needs_access(settings) else None,
        acl=settings.acl,
        acl_below=paths.CONSUMERS,
        insist=insist,
    )


@asynccontextmanager
async def short_session(zookeeper: ZooKeeperSettings, more: float = 0.0) -> AsyncIterator[ZooKeeperSession]:
    """A session that has seen what the leader had when it began.

    Raises ZooKeeperUnreachable when the block lasts longer than LIMIT and `more` seconds, ConfigError when no server
    lets us in.
    """
    limit = LIMIT + more
    session = open_session(zookeeper, brief=True)
    try:
        with anyio.fail_after(limit):
            async with session:
                await session.sync()
                yield session
    except TimeoutError:
        why = f" ({'; '.join(session.refusals)})" if session.refusals else ""
        reason = f"{zookeeper.connect}: ZooKeeper did not answer within {limit:.0f} s{why}"
        raise ZooKeeperUnreachable(reason) from None
