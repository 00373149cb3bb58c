"""Topics and brokers as brokers register them. Reads only.

Owns only which brokers it cannot use. Called by group/rebalancer (topics, brokers) and fetcher/leader_finder (broker
addresses).
"""

from __future__ import annotations

import structlog

from kzconsumer.errors import NoNode, ZooKeeperError
from kzconsumer.model import Broker
from kzconsumer.registry import paths
from kzconsumer.registry.listeners import choose
from kzconsumer.registry.nodes import Topic, decode_cluster_id, decode_listeners, decode_topic
from kzconsumer.settings.connections import BrokersSettings
from kzconsumer.zookeeper.round_trips import together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import Watches

log = structlog.get_logger("kzconsumer.zookeeper")

_PLAINTEXT = BrokersSettings()


class TopicRegistry:
    """Reads of `/brokers` on one session."""

    def __init__(self, session: ZooKeeperSession, watches: Watches, settings: BrokersSettings = _PLAINTEXT) -> None:
        self._session = session
        self._watches = watches
        self._settings = settings
        self.unusable: dict[int, str] = {}
        """Why brokers that are up were left out, when they were looked at last."""

    async def topics(self, names: list[str]) -> dict[str, Topic]:
        """The named topics that exist; any write to one, its creation and its deletion notify as `topic <name>`."""
        nodes = await together([self._watches.data(paths.topic(name), f"topic {name}") for name in names])
        found = {}
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                try:
                    found[name] = Topic(decode_topic(node.data), node.stat.czxid)
                except ValueError as error:
                    log.error("topic node unreadable", path=paths.topic(name), reason=str(error))
        return found

    async def all_topics(self) -> list[str]:
        """Every topic's name; a new or deleted one notifies as `topics`."""
        return await self._watches.children(paths.BROKER_TOPICS, "topics")

    async def broker_ids(self) -> list[int]:
        """The ids of the brokers that are up; a change notifies as `brokers`."""
        return _numbers(await self._watches.children(paths.BROKER_IDS, "brokers"))

    async def brokers(self) -> list[Broker]:
        """The brokers that are up, each at the listener the settings say. One without it is told of, and left out."""
        try:
            ids = _numbers(await self._session.children(paths.BROKER_IDS))
        except NoNode:
            return []
        nodes = await together([self._session.find(paths.broker(number)) for number in ids])
        found = []
        told, self.unusable = self.unusable, {}
        for number, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                found.append(self._broker(number, node.data))
            except ValueError as error:
                reason = self.unusable[number] = str(error)
                if told.get(number) != reason:
                    log.error("broker cannot be used", broker=number, path=paths.broker(number), reason=reason)
        return found

    def _broker(self, number: int, data: bytes) -> Broker:
        listeners = decode_listeners(data)
        listener = choose(listeners, self._settings.listener, self._settings.security_protocol)
        return Broker(number, listener.host, listener.port)

    async def cluster_id(self) -> str:
        """The cluster's own id; empty before 0.10.1, which wrote none. Raises ZooKeeperError for one that is no id."""
        node = await self._session.find(paths.CLUSTER_ID)
        if node is None:
            return ""
        try:
            return decode_cluster_id(node.data)
        except ValueError as error:
            raise ZooKeeperError(paths.CLUSTER_ID, str(error)) from error


def _numbers(names: list[str]) -> list[int]:
    numbers = []
    for name in names:
        if paths.is_number(name):
            numbers.append(int(name))
        else:
            log.error("not a broker id", path=f"{paths.BROKER_IDS}/{name}")
    return numbers
