"""Reading ranges without a group, from brokers that come back or have another log; others are in `plain`."""

from __future__ import annotations

import asyncio

import pytest

from kzconsumer.errors import BrokersUnreachableError
from kzconsumer.model import Broker, OffsetRange
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.plain.test_range_reader import Known, offsets, reading
from tests.support.producing import Sent, produce


async def test_brokers_that_come_back_are_waited_for(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"v")] * 5)
    host, _, port = cluster.bootstrap.partition(":")
    away = Broker(9, "127.0.0.1", free_port())
    span = OffsetRange(unique, 0, 1, 4)
    async with reading(Known(away, away, Broker(0, host, int(port))), 30) as reader:
        assert await offsets(reader, span) == [1, 2, 3]
    async with reading(Known(away), 0.3) as reader:
        with pytest.raises(BrokersUnreachableError, match=r"broker 9 .*127\.0\.0\.1"):
            await offsets(reader, span)
