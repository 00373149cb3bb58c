"""The cluster as the settings describe it: a session with its ZooKeeper, its identity, brokers that can be reached."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import KnownBrokers, Leaders, LogOffsets
from kzconsumer.brokers.pool import Brokers, first_answer
from kzconsumer.brokers.transport import load_security
from kzconsumer.errors import (
    BrokersUnreachableError,
    ConnectionLostError,
    KzConsumerError,
    SessionExpiredError,
    UnsupportedVersionError,
    ZooKeeperUnreachableError,
)
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry import paths
from kzconsumer.registry.cluster_topics import ClusterTopics
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.credentials import load_access, needs_access
from kzconsumer.zookeeper.operations import ConnectString
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches, repeated

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
    than LIMIT and `more` seconds, or for a TimeoutError of the block: BrokersUnreachableError if ZooKeeper owes no
    answer then. Raises ConfigError if all servers refuse the session.
    """
    session = open_session(zookeeper, brief=True)
    synced = owing = False
    try:
        with anyio.fail_after(LIMIT) as scope:
            async with session:
                await session.sync()
                synced = True
                # If the limit has passed in this turn of the loop, the scope is cancelled at the next wait. If its
                # deadline were moved now, anyio would raise no TimeoutError then: the block would end half done.
                if not scope.cancel_called:
                    scope.deadline += more
                try:
                    yield session
                finally:
                    owing = session.unanswered
    except TimeoutError:
        raise (_slow(zookeeper, owing) if synced else unreachable(session, zookeeper, LIMIT)) from None


def _slow(zookeeper: ZooKeeperSettings, owing: bool) -> KzConsumerError:
    """`owing`: whether it is ZooKeeper that was waited for; all else that a block waits for are brokers."""
    if not owing:
        return BrokersUnreachableError(
            f"{zookeeper.connect}: ZooKeeper has answered, but brokers have not answered all requests "
            f"within {LIMIT:.0f} s: they are slow, or nothing reaches them"
        )
    return slow_zookeeper(zookeeper.connect)


def slow_zookeeper(connect: str) -> ZooKeeperUnreachableError:
    """The error for reads from ZooKeeper that took longer than LIMIT seconds together."""
    return ZooKeeperUnreachableError(
        f"{connect}: ZooKeeper answers, but not to all requests within {LIMIT:.0f} s: "
        "it is slow, or there is much to read"
    )


def unreachable(session: ZooKeeperSession, zookeeper: ZooKeeperSettings, limit: float) -> ZooKeeperUnreachableError:
    """The error for a session that was not established within `limit` seconds, with what each server said."""
    why = f" ({session.why_refused})" if session.refusals else ""
    reason = f"{zookeeper.connect}: ZooKeeper did not answer within {limit:.0f} s{why}"
    advice = "; check that host and port are ZooKeeper's (usually 2181), not a broker's"
    is_one = any(each.is_zookeeper for each in session.refusals)
    return ZooKeeperUnreachableError(reason if is_one else f"{reason}{advice}")


def broker_pool(settings: Settings) -> Brokers:
    """Connections to the settings' brokers, to be entered once. Keys and passwords are read for each connection."""
    security = partial(load_security, settings.brokers, settings.source)
    return Brokers(client_id=settings.group.id, timeout=settings.fetch.request_timeout, security=security)


class ClusterView:
    """The cluster as one session and its brokers show it: topics, leaders, logs.

    `notify` gets the reasons of watches, and of topics that have changed (`ClusterTopics.poll`). A `guest` is no member
    of the settings' group.
    """

    def __init__(
        self,
        session: ZooKeeperSession,
        settings: Settings,
        brokers: Brokers,
        notify: Callable[[str], None] = lambda reason: None,
        *,
        guest: bool = False,
    ) -> None:
        self.session = session
        self.settings = settings
        self.brokers = brokers
        self.watches = Watches(session, notify)
        self.topics = ClusterTopics(session, self.watches, settings, brokers, notify, guest=guest)
        self.leaders = Leaders(self.topics, brokers, settings.fetch.request_timeout)

    def logs(self, isolation: int) -> LogOffsets:
        return LogOffsets(self.leaders, self.brokers, self.settings.fetch.request_timeout, isolation)

    async def unreachable(self) -> str | None:
        """Why no broker accepts a connection; None if one does. Raises SessionExpiredError."""
        try:
            found = await repeated(self.topics.brokers)
        except SessionExpiredError:
            raise
        except KzConsumerError as error:
            return str(error)
        reasons = ["; ".join(self.topics.unusable.values()) or "no broker is up"]

        async def accept(connection: BrokerConnection) -> bool:
            return True

        accepted = await first_answer(self.brokers, found, accept, lambda error: reasons.append(str(error)))
        return None if accepted else reasons[-1]


# Destinations keep the identity of a cluster, to refuse another cluster's records.

log = get_logger("kzconsumer.zookeeper")

PAUSE: Final = 1.0
"""Seconds until the next attempt."""
ASK_AGAIN: Final = 5.0
"""Seconds until ZooKeeper is asked for a broker again, though nothing was reported."""


async def cluster_identity(settings: Settings) -> str:
    """The cluster's id; before Kafka 0.10.1, which has none, the connect string with sorted hosts.

    Waits until ZooKeeper answers and a broker is registered, since only then a missing id means an older
    cluster. Without the cluster's nodes in ZooKeeper it waits for a broker that answers. Raises ConfigError if all
    servers refuse the session.
    """
    async with broker_pool(settings) as brokers:
        while True:
            try:
                async with open_session(settings.zookeeper, brief=True) as session:
                    return await _identity(session, settings, brokers)
            except (ConnectionLostError, SessionExpiredError):
                pass
            except BrokersUnreachableError as error:
                log.warning("no broker answers", reason=str(error), again=True)
            await anyio.sleep(PAUSE)  # each attempt begins a session, which is a transaction of all servers


def address_of(settings: Settings) -> str:
    """The name of a cluster that has no id."""
    connect = ConnectString.parse(settings.zookeeper.connect)
    return ",".join(sorted(f"{host}:{port}" for host, port in connect.hosts)) + connect.chroot


async def _identity(session: ZooKeeperSession, settings: Settings, brokers: Brokers) -> str:
    connect = ConnectString.parse(settings.zookeeper.connect)
    changed = anyio.Event()

    def notify(reason: str) -> None:
        changed.set()

    topics = ClusterView(session, settings, brokers, notify).topics
    warned = False
    while True:
        up = await topics.broker_ids()  # first: a broker writes the id, and then registers
        found = await topics.cluster_id()
        if found:
            return found
        if up:
            return address_of(settings)
        if not warned:
            # A chroot that does not exist looks the same, and is the more likely of the two.
            hint = "waiting for one: do the brokers have this chroot in their zookeeper.connect?"
            log.warning("no broker registered", about=f"{connect.chroot}/brokers/ids", reason=hint)
            warned = True
        # Nothing is reported by a session that has expired, nor of what a ZooKeeper has that was restored from a copy.
        with anyio.move_on_after(ASK_AGAIN):
            await changed.wait()
        changed = anyio.Event()


async def bootstrap(known: KnownBrokers, brokers: Brokers) -> str:
    """The brokers' addresses as librdkafka expects them. Raises KzConsumerError when none of them keeps headers."""
    found = await known.brokers()
    for broker in found:
        connection = await brokers.connection(broker)
        if not connection.versions.keep_headers:
            raise UnsupportedVersionError(
                f"{broker} stores no headers (before Kafka 0.11), which dead letters need: set [rejected] directory"
            )
        return ",".join(f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}" for at in found)
    raise BrokersUnreachableError("none is up")
