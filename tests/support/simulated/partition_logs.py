"""The records of topics without brokers: logs that grow with time, and the fetching side of a member.

`PartitionLogs` owns the existing partitions, the length of their logs and who reaches no broker. `SimulatedFetchers`
replaces `FetcherManager` alone: the queues it fills and the reset policy it uses are the product's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import anyio
import msgspec
import pyarrow as pa

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.leaders import Leaders
from kzconsumer.brokers.protocol.list_offsets import EARLIEST, ListedOffset, ListOffsetsRequest
from kzconsumer.clock import now
from kzconsumer.fetcher.offset_reset import OffsetReset
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.model import TopicPartition
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.registry import paths
from kzconsumer.streams.chunk import Chunk
from kzconsumer.zookeeper.operations import Create, Delete, SetData
from tests.support.simulated.ensemble import Ensemble

RATE = 4.0
"""Records a second and partition."""
LONGEST = 20_000
FETCH_INTERVAL = 0.15
MOST_RECORDS = 40
"""Of one chunk."""


class PartitionLogs:
    """Topics as ZooKeeper has them, and their records: each log grows by `RATE` records a second, and by bursts."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._born: dict[TopicPartition, float] = {}
        self._bursts: dict[TopicPartition, int] = {}
        self._stopped: float | None = None
        self.out_of_reach: set[asyncio.AbstractEventLoop] = set()
        """Processes that no broker answers."""
        ensemble.make(paths.BROKER_TOPICS)
        ensemble.make(paths.BROKER_IDS)
        self.set_broker(up=True)

    def set_broker(self, *, up: bool) -> None:
        """The only one registers, or leaves; its logs stay."""
        path = paths.broker(0)
        self._ensemble.operate(Create(path, b'{"version":1,"host":"kafka","port":9092}') if up else Delete(path, -1))

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self._born)

    def grow(self, topic: str, partitions: int) -> None:
        """Create the topic, or add partitions."""
        before = sum(partition.topic == topic for partition in self._born)
        for number in range(before, before + partitions):
            self._born[TopicPartition(topic, number)] = self._ensemble.world.now
            self._bursts[TopicPartition(topic, number)] = 0
        data = msgspec.json.encode(
            {"version": 1, "partitions": {str(number): [0] for number in range(before + partitions)}}
        )
        if before:
            self._ensemble.operate(SetData(paths.topic(topic), data, -1))
        else:
            self._ensemble.make(paths.topic(topic), data)

    def end(self, partition: TopicPartition) -> int:
        until = self._ensemble.world.now if self._stopped is None else self._stopped
        return int(max(until - self._born[partition], 0.0) * RATE) + self._bursts[partition]

    def burst(self, records: int) -> None:
        """Produce so many records at once, in each partition."""
        for partition in self._born:
            self._bursts[partition] += records

    def stop(self) -> None:
        """Nothing more is produced."""
        self._stopped = self._ensemble.world.now

    async def call(self, request: ListOffsetsRequest, *, timeout: float) -> dict[TopicPartition, ListedOffset]:
        """Answers like a broker."""
        await anyio.sleep(0.002)
        return {
            partition: ListedOffset(0, 0 if when == EARLIEST else self.end(partition), -1)
            for partition, when in request.partitions.items()
        }


class SimulatedFetchers:
    """Like `FetcherManager`: fetches what is started, until it is closed."""

    def __init__(self, logs: PartitionLogs, leaders: Leaders, reset: OffsetReset) -> None:
        self._logs = logs
        self._leaders = leaders
        self._reset = reset
        self._states: list[PartitionFetchState] = []

    def __contains__(self, state: PartitionFetchState) -> bool:
        return state in self._states

    def start(self, states: Iterable[PartitionFetchState]) -> None:
        self._states.extend(states)

    def seeks_leader(self, state: PartitionFetchState) -> bool:
        return False

    def leader_of(self, state: PartitionFetchState) -> int | None:
        return 0 if state in self._states else None

    def forget(self) -> None:
        """Stop fetching, as if by a bug."""
        self._states.clear()

    async def run(self) -> None:
        while True:
            self._states = [state for state in self._states if state.open]
            if asyncio.get_running_loop() in self._logs.out_of_reach:
                self._leaders.unreachable_since = self._leaders.unreachable_since or now()
                await anyio.sleep(FETCH_INTERVAL)
                continue
            self._leaders.unreachable_since = None
            if due := [state for state in self._states if state.reset_due]:
                await self._reset.resolve(cast(BrokerConnection, self._logs), due)
            for state in self._states:
                if state.fetchable(now()):
                    self._fetch(state)
            await anyio.sleep(FETCH_INTERVAL)

    def _fetch(self, state: PartitionFetchState) -> None:
        first = state.position
        assert first is not None
        until = min(self._logs.end(state.topic_partition), first + MOST_RECORDS)
        if until > first:
            batch = _records().slice(first, until - first)
            state.queue.reserve(until - first)
            state.queue.put(Chunk(state.tracker, first, until, ColumnRecords(batch), until - first))
            state.position = until


@cache
def _records() -> pa.RecordBatch:
    """One log for all: the reader knows topic and partition from the claim."""
    count = LONGEST
    columns: list[pa.Array[Any]] = [
        pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int8()), pa.array(["any"])),
        pa.array([0] * count, pa.int32()),
        pa.array(range(count), pa.int64()),
    ]
    columns += [pa.nulls(count, SCHEMA.field(name).type) for name in ("key", "value", "timestamp")]
    columns.append(pa.array([[]] * count, SCHEMA.field("headers").type))
    columns.append(pa.array([-1] * count, pa.int8()))
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
