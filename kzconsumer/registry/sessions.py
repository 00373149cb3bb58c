"""Sessions as the settings describe them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio

from kzconsumer.errors import ZooKeeperUnreachableError
from kzconsumer.registry import paths
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.access import load_access, needs_access
from kzconsumer.zookeeper.connect_string import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession

LIMIT = 15.0


def open_session(settings: ZooKeeperSettings, *, brief: bool = False, insist: bool = False) -> ZooKeeperSession:
    """A session with these settings, to be entered once; nodes created below `/consumers` get their ACL."""
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
    """A session for a few reads, synced with the leader.

    Raises ZooKeeperUnreachableError if it is not established within LIMIT seconds, or if that and the block last longer
    than LIMIT and `more` seconds, or for a TimeoutError of the block; ConfigError if all servers refuse the session.
    """
    session = open_session(zookeeper, brief=True)
    synced = False
    try:
        with anyio.fail_after(LIMIT) as scope:
            async with session:
                await session.sync()
                synced = True
                scope.deadline += more
                yield session
    except TimeoutError:
        raise (_slow(zookeeper) if synced else unreachable(session, zookeeper, LIMIT)) from None


def _slow(zookeeper: ZooKeeperSettings) -> ZooKeeperUnreachableError:
    return ZooKeeperUnreachableError(
        f"{zookeeper.connect}: ZooKeeper answers, but not to all requests within {LIMIT:.0f} s: "
        "it is slow, or there is much to read"
    )


def unreachable(session: ZooKeeperSession, zookeeper: ZooKeeperSettings, limit: float) -> ZooKeeperUnreachableError:
    """The error for a session that was not established within `limit` seconds, with what each server said."""
    why = f" ({'; '.join(session.refusals)})" if session.refusals else ""
    reason = f"{zookeeper.connect}: ZooKeeper did not answer within {limit:.0f} s{why}"
    advice = "check that host and port are ZooKeeper's (usually 2181), not a broker's"
    return ZooKeeperUnreachableError(f"{reason}; {advice}")
