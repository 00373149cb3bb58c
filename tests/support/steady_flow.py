"""A steady stream of records, and who owned their partitions meanwhile: every delivery is checked against it.

Owns a producer thread, and a session that watches the owner nodes. A delivery is (time, partition, offset) with the
time on `kzconsumer.clock`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
from confluent_kafka import KafkaError, Message, Producer

from kzconsumer import clock
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import repeated
from kzconsumer_sandbox.servers.kafka_servers import Cluster

Record = tuple[int, int]
"""Partition, offset."""


class Delivery(NamedTuple):
    at: float
    partition: int
    offset: int


class Flow:
    """Made by `flowing`. `acknowledged` grows while it flows, and is complete when the block has ended."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, per_second: int) -> None:
        self.acknowledged: set[Record] = set()
        self.refused: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._per_second = per_second
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 5})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")

    def __repr__(self) -> str:
        return f"<Flow to {self._topic}: {len(self.acknowledged)} acknowledged, {len(self.refused)} refused>"

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Send nothing more; records in flight may take a moment to be acknowledged."""
        self._stop.set()

    @property
    def ended(self) -> bool:
        """Every record has been acknowledged or refused."""
        return not self._thread.is_alive()

    def join(self) -> None:
        self.end()
        self._thread.join()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop.wait(0.06):
            due = int((time.monotonic() - began) * self._per_second)
            for number in range(sent, due):
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % self._partitions, on_delivery=self._delivered
                )
            sent = due
            self._producer.poll(0)
        self._producer.flush(30)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
        else:
            self.acknowledged.add((message.partition() or 0, message.offset() or 0))


@asynccontextmanager
async def flowing(cluster: Cluster, topic: str, partitions: int, per_second: int = 400) -> AsyncIterator[Flow]:
    """Records to all partitions in turn until the block ends."""
    flow = Flow(cluster, topic, partitions, per_second)
    flow.start()
    try:
        yield flow
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(flow.join)


class Tenure(NamedTuple):
    """One owner of one partition, as the watcher observed it: never earlier than it was."""

    partition: int
    consumer: str
    since: float
    until: float
    session: int


class Owners:
    """Owners and the time since when. `watch` fills it."""

    def __init__(self) -> None:
        self.past: list[Tenure] = []
        self.present: dict[int, Tenure] = {}
        self.stored: dict[int, list[int]] = {}
        """By partition: the committed offsets as they were seen, in order."""

    def __repr__(self) -> str:
        return f"<Owners {Counter(each.consumer for each in self.present.values())} after {len(self.past)} others>"

    @property
    def all(self) -> list[Tenure]:
        return [*self.past, *self.present.values()]

    def holds(self, consumer: str) -> set[int]:
        return {partition for partition, tenure in self.present.items() if tenure.consumer == consumer}

    async def watch(self, witness: ZooKeeperSession, group: str, topic: str, partitions: int) -> None:
        """Until cancelled. The watcher may lose its connection like any client: its server may be the killed one."""
        async with anyio.create_task_group() as tasks:
            for partition in range(partitions):
                path = f"/consumers/{group}/owners/{topic}/{partition}"
                tasks.start_soon(self._watch, witness, path, partition)
                path = f"/consumers/{group}/offsets/{topic}/{partition}"
                tasks.start_soon(self._watch_offset, witness, path, partition)

    @property
    def moved_back(self) -> dict[int, list[int]]:
        """The partitions whose committed offset was observed to decrease, with all observations."""
        return {partition: seen for partition, seen in self.stored.items() if seen != sorted(seen)}

    async def _watch_offset(self, witness: ZooKeeperSession, path: str, partition: int) -> None:
        while True:
            node, watch = await repeated(lambda: witness.watch_data(path))
            if node:
                self.stored.setdefault(partition, []).append(int(node.data))
            await watch.wait()

    async def _watch(self, witness: ZooKeeperSession, path: str, partition: int) -> None:
        while True:
            node, watch = await repeated(lambda: witness.watch_data(path))
            now = clock.now()
            before = self.present.get(partition)
            consumer = node.data.decode().rpartition("-")[0] if node else ""
            session = node.stat.ephemeral_owner if node else 0
            if before and (before.consumer, before.session) != (consumer, session):
                self.past.append(self.present.pop(partition)._replace(until=now))
            if node and partition not in self.present:
                self.present[partition] = Tenure(partition, consumer, now, float("inf"), session)
            await watch.wait()


LAG = 0.3
"""Seconds by which the watcher may learn late of the end of a tenure; a new owner delivers at once."""


def out_of_turn(deliveries: Mapping[str, Iterable[Delivery]], owners: Owners) -> dict[str, list[Delivery]]:
    """By consumer: what it delivered of a partition while another one was its owner."""
    found: dict[str, list[Delivery]] = {}
    for consumer, delivered in deliveries.items():
        others = [tenure for tenure in owners.all if tenure.consumer != consumer]
        wrong = [
            each
            for each in delivered
            if any(t.partition == each.partition and t.since < each.at < t.until - LAG for t in others)
        ]
        if wrong:
            found[consumer] = wrong
    return found


def records(deliveries: Iterable[Delivery]) -> Counter[Record]:
    return Counter((each.partition, each.offset) for each in deliveries)
