"""Reading ranges without a group, where brokers do not answer as usual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import pytest

from kzconsumer.brokers.pool import Brokers
from kzconsumer.errors import BrokersUnreachableError
from kzconsumer.fetcher.range_reader import RangeReader
from kzconsumer.model import Broker, OffsetRange
from kzconsumer.settings.sections import FetchSettings
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.ports import free_port
from kzconsumer_sandbox.servers.topics import create_topic
from tests.support.producing import Sent, produce


class Known:
    """Each lookup finds the next of these brokers, and at the end the last one."""

    unusable: Final[Mapping[int, str]] = {}

    def __init__(self, *found: Broker) -> None:
        self.found = list(found)

    async def brokers(self) -> Sequence[Broker]:
        return [self.found.pop(0) if len(self.found) > 1 else self.found[0]]


@asynccontextmanager
async def reading(known: Known, timeout: float) -> AsyncIterator[RangeReader]:
    async with Brokers(client_id="reader", timeout=timeout) as brokers:
        yield RangeReader(FetchSettings(request_timeout=timeout), known, brokers)


async def offsets(reader: RangeReader, span: OffsetRange) -> list[object]:
    return [offset async for _, rows in reader.read([span]) for offset in rows["offset"].to_pylist()]


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
