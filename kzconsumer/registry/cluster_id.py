"""The identity of a cluster, which destinations keep to refuse another cluster's records."""

from __future__ import annotations

import anyio

from kzconsumer.errors import ConnectionLostError, SessionExpiredError
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry.sessions import open_session
from kzconsumer.registry.topics import TopicRegistry
from kzconsumer.settings.sections import ZooKeeperSettings
from kzconsumer.zookeeper.session import ConnectString, ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = get_logger("kzconsumer.zookeeper")


async def cluster_identity(zookeeper: ZooKeeperSettings) -> str:
    """The cluster's id; before Kafka 0.10.1, which has none, the connect string with sorted hosts.

    Waits until ZooKeeper answers and a broker is registered, since only then a missing id means an older
    cluster. Raises ConfigError if all servers refuse the session.
    """
    connect_string = ConnectString.parse(zookeeper.connect)
    while True:
        try:
            async with open_session(zookeeper, brief=True) as session:
                return await _identity(session, connect_string)
        except (ConnectionLostError, SessionExpiredError):
            continue


async def _identity(session: ZooKeeperSession, connect: ConnectString) -> str:
    changed = anyio.Event()

    def notify(reason: str) -> None:
        changed.set()

    registry = TopicRegistry(session, Watches(session, notify))
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
