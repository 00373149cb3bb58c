"""The identity of a cluster, which destinations keep to refuse another cluster's records."""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.security import load_security
from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, SessionExpiredError
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry.cluster_topics import ClusterTopics
from kzconsumer.registry.sessions import open_session
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer.zookeeper")

PAUSE: Final = 1.0
"""Seconds until brokers that did not answer are asked again."""


async def cluster_identity(settings: Settings) -> str:
    """The cluster's id; before Kafka 0.10.1, which has none, the connect string with sorted hosts.

    Waits until ZooKeeper answers and a broker is registered, since only then a missing id means an older
    cluster. Without the cluster's nodes in ZooKeeper it waits for a broker that answers. Raises ConfigError if all
    servers refuse the session.
    """
    security = partial(load_security, settings.brokers, settings.source)
    timeout = settings.fetch.request_timeout
    async with Brokers(client_id=settings.group.id, timeout=timeout, security=security) as brokers:
        while True:
            try:
                async with open_session(settings.zookeeper, brief=True) as session:
                    return await _identity(session, settings, brokers)
            except (ConnectionLostError, SessionExpiredError):
                continue
            except BrokersUnreachableError as error:
                log.warning("no broker answers", reason=str(error), again=True)
                await anyio.sleep(PAUSE)


async def _identity(session: ZooKeeperSession, settings: Settings, brokers: Brokers) -> str:
    connect = ConnectString.parse(settings.zookeeper.connect)
    changed = anyio.Event()

    def notify(reason: str) -> None:
        changed.set()

    registry = ClusterTopics(session, Watches(session, notify), settings, brokers)
    warned = False
    while True:
        found = await registry.cluster_id()
        if found:
            return found
        if await registry.broker_ids():
            hosts = ",".join(sorted(f"{host}:{port}" for host, port in connect.hosts))
            return f"{hosts}{connect.chroot}"
        if not warned:
            # A chroot that does not exist looks the same, and is the more likely of the two.
            hint = "waiting for one: do the brokers have this chroot in their zookeeper.connect?"
            log.warning("no broker registered", about=f"{connect.chroot}/brokers/ids", reason=hint)
            warned = True
        await changed.wait()
        changed = anyio.Event()
