"""A group's coordinator that nobody can connect to any more: the next commit looks for another one."""

from __future__ import annotations

from typing import cast

import anyio
import pytest

from kzconsumer.errors import CoordinatorFailed
from kzconsumer.model import Broker, TopicPartition
from kzconsumer.network.brokers import Brokers
from kzconsumer.offsets import coordinator as module
from kzconsumer.offsets.authority import WithBrokers
from kzconsumer.offsets.coordinator import GroupCoordinator
from kzconsumer.protocol import error_codes
from kzconsumer.protocol.find_coordinator import Coordinator, FindCoordinatorRequest
from kzconsumer.zookeeper.topic_registry import TopicRegistry

UP, AWAY = Broker(1, "up", 9092), Broker(2, "away", 9092)
OFFSETS = {TopicPartition("orders", 0): WithBrokers(7, 0)}


class Cluster:
    """Two brokers, of which only the first can be reached; `leads` is the coordinator. Stands for all that is asked."""

    def __init__(self) -> None:
        self.leads = AWAY
        self.broker = UP
        self.versions = self

    def choose(self, api_key: int) -> int:
        return 1

    async def brokers(self) -> list[Broker]:
        return [UP]

    async def connection(self, broker: Broker, purpose: str) -> Cluster:
        if broker == AWAY:
            await anyio.sleep_forever()
        return self

    async def call(self, request: object, *, timeout: float) -> Coordinator | dict[TopicPartition, int]:
        if isinstance(request, FindCoordinatorRequest):
            return Coordinator(error_codes.NONE, self.leads, None)
        return dict.fromkeys(OFFSETS, error_codes.NONE)


async def test_one_that_cannot_be_connected_to_is_looked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    group = GroupCoordinator("g", cast(TopicRegistry, cluster), cast(Brokers, cluster), 60.0)
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 0.1)
    with pytest.raises(CoordinatorFailed):
        await group.store(OFFSETS)
    cluster.leads = UP
    monkeypatch.setattr(module, "COMMIT_PATIENCE", 10.0)
    assert await group.store(OFFSETS) == {}
