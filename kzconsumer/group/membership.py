"""The registration of a member, `ids/<consumer>`, for as long as one ZooKeeper session.

Closing the session removes it together with the owner nodes, in one transaction.
"""

from __future__ import annotations

import secrets
import socket
import time

from kzconsumer.errors import ConnectionLostError, NodeExistsError
from kzconsumer.logs.logger import get_logger
from kzconsumer.registry.members import ConsumerRegistry
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.registry.registration import Registration
from kzconsumer.zookeeper.round_trips import repeated
from kzconsumer.zookeeper.session import ZooKeeperSession

log = get_logger("kzconsumer.group")


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

    async def register(self) -> None:
        """Raises NodeExistsError while another session holds the id."""
        await self._consumers.register(self.consumer, self.registration)

    async def join(self) -> None:
        """Register, waiting for an earlier session that holds the id to end.

        Raises SessionExpiredError, ZooKeeperError.
        """
        path = self.paths.member(self.consumer)
        logged = False
        while True:
            try:
                await self.register()
            except NodeExistsError:
                if not logged:
                    event = "consumer id still registered by an earlier session, waiting for it to expire"
                    log.info(event, consumer=self.consumer)
                    logged = True
                stat, gone = await repeated(lambda: self._session.watch_exists(path))
                if stat is not None:
                    await gone.wait()
            except ConnectionLostError:
                continue  # the next attempt finds out whether this one was executed
            else:
                log.info(
                    "registered",
                    consumer=self.consumer,
                    pattern=self.registration.pattern,
                    subscription=self.registration.subscription,
                )
                return
