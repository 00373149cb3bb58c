"""Reading ranges without a group, from brokers that come back or have another log; others are in `plain`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import BrokersUnreachableError, ConnectionLostError, OffsetLostError
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange, TopicPartition
from kzconsumer.settings.sections import FetchSettings
from kzconsumer_sandbox.servers.configuration import free_port
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.plain.test_range_reader import Known, offsets, reading
from tests.support.extent import only_nightly
from tests.support.producing import Sent, produce
from tests.support.servers import Servers


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


@only_nightly  # tests/core/plain/test_range_account.py; epochs of real brokers: test_log_replaced.py
async def test_a_range_of_another_leader_epoch_is_refused(servers: Servers, unique: str) -> None:
    """As after an unclean election, a log whose records of epoch 0 end within the range; here others only follow."""
    cluster = servers.cluster(unique, brokers=2)
    try:
        await create_topic(cluster.connect, unique, 1, replicas=2)
        sent = [Sent(0, None, b"v")] * 10
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)
        leader, other = cluster.brokers.values()
        known = Known(Broker(other.id, other.host, other.port))
        partition = TopicPartition(unique, 0)

        @asynccontextmanager
        async def reader_of(epoch: int, timeout: float) -> AsyncIterator[RangeReader]:
            async with Brokers(client_id="reader", timeout=timeout) as brokers:
                yield RangeReader(FetchSettings(request_timeout=timeout), known, brokers, epochs={partition: epoch})

        async def read(epoch: int, until: int, timeout: float = 30.0) -> list[object]:
            async with reader_of(epoch, timeout) as reader:
                return await offsets(reader, OffsetRange(unique, 0, 5, until))

        async with reader_of(0, 30.0) as reader:
            assert await reader.epochs([partition]) == {partition: 0}
            leader.send_signal(signal.SIGTERM)
            with anyio.fail_after(60):
                while await reader.epochs([partition]) != {partition: 1}:
                    await anyio.sleep(0.1)
        await asyncio.to_thread(produce, f"{other.host}:{other.port}", cluster.version, unique, sent)
        assert await read(0, 10) == [*range(5, 10)]
        assert await read(1, 20) == [*range(5, 20)]
        said = "offsets 5 to 15 were planned in leader epoch 0, whose records end at 10 now: 5 of them were cut off"
        with pytest.raises(OffsetLostError, match=said):
            await read(0, 15)
        with pytest.raises(ConnectionLostError, match="the log has no leader epoch 9"):
            await read(9, 15, 1.0)
    finally:
        cluster.kill()
