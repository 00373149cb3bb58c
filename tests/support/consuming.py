"""Members of a group for tests about delivery: joined in one line, read up to a count, and their stored offsets.

Every wait has a limit: a missing record is a TimeoutError, not a hanging test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pyarrow as pa

import kzconsumer
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.zookeeper_sessions import session

LIMIT = 30.0

Streams = dict[str, list[kzconsumer.KafkaStream]]


@asynccontextmanager
async def member(
    cluster: Cluster, group: str, topics: Mapping[str, int], **tables: Mapping[str, object]
) -> AsyncIterator[tuple[kzconsumer.ConsumerConnector, Streams]]:
    """A member with its streams; `tables` are further tables of the settings, `fetch={"max_bytes": "1KiB"}`."""
    settings = kzconsumer.Settings.from_dict(
        {"zookeeper": {"connect": cluster.connect}, "group": {"id": group}, **tables}
    )
    async with kzconsumer.connect(settings) as consumer:
        with anyio.fail_after(LIMIT):
            streams = await consumer.create_message_streams(topics)
        yield consumer, streams


async def take(stream: kzconsumer.KafkaStream, count: int, *, limit: float = LIMIT) -> list[kzconsumer.Message]:
    """The next `count` messages by `async for`; the last of them is in hand afterwards."""
    taken: list[kzconsumer.Message] = []
    with anyio.fail_after(limit):
        async for message in stream:
            taken.append(message)
            if len(taken) == count:
                break
    return taken


async def take_batches(stream: kzconsumer.KafkaStream, rows: int, *, limit: float = LIMIT) -> list[pa.RecordBatch]:
    """Batches until they have at least so many rows; the last of them is in hand afterwards."""
    taken: list[pa.RecordBatch] = []
    with anyio.fail_after(limit):
        async for batch in stream.batches():
            taken.append(batch)
            if sum(each.num_rows for each in taken) >= rows:
                break
    return taken


def as_messages(batch: pa.RecordBatch) -> list[kzconsumer.Message]:
    """The rows of a batch, column by column through Arrow's own conversions."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)).to_pylist()
    return [
        kzconsumer.Message(**row | {"headers": tuple((pair["key"], pair["value"]) for pair in row["headers"])})
        for row in rows
    ]


async def stored_offset(cluster: Cluster, group: str, topic: str, partition: int = 0) -> int | None:
    """What ZooKeeper has for the group, read like any other program would; None without a node."""
    async with session(cluster.connect) as zookeeper:
        node = await zookeeper.find(f"/consumers/{group}/offsets/{topic}/{partition}")
    return None if node is None else int(node.data)
