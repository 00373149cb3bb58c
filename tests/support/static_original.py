"""Kafka's own ZooKeeper consumer with a static subscription, its records taken one by one from here.

Owns the process (py4j's server with Kafka's jars) and a thread for each stream. The performance tool would do as well,
but its streams end after a second without a record, which can happen on a busy machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
from py4j.protocol import Py4JError

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.original import NEWEST_ORIGINAL, PROPERTIES, Original, Record, logging_command
from tests.support.py4j_gateway import SERVER, gateway_of, with_py4j
from tests.support.servers import Servers


class StaticOriginal(Original):
    """One member, in the group from `join` to `leave`. `streams` of one topic."""

    def __init__(
        self, command: list[str], folder: Path, properties: dict[str, object], topic: str, streams: int
    ) -> None:
        super().__init__(command, folder, str(properties["group.id"]), str(properties["consumer.id"]))
        self._properties = properties
        self._topic = topic
        self._streams = streams
        self._records: list[Record] = []
        self._threads: list[threading.Thread] = []

    async def join(self) -> None:
        """Returns when it is registered and has tried to claim its share."""
        await anyio.to_thread.run_sync(self._join)

    def _join(self) -> None:
        self._gateway = gateway_of(self)
        java: Any = self._gateway.jvm
        configured = java.java.util.Properties()
        for key, value in self._properties.items():
            configured.setProperty(key, str(value))
        self._connector = java.kafka.consumer.Consumer.createJavaConsumerConnector(
            java.kafka.consumer.ConsumerConfig(configured)
        )
        wanted = java.java.util.HashMap()
        wanted.put(self._topic, self._streams)
        for stream in self._connector.createMessageStreams(wanted)[self._topic]:
            thread = threading.Thread(target=self._read, args=(stream,), name=f"{self.consumer} of {self._topic}")
            thread.start()
            self._threads.append(thread)

    def _read(self, stream: Any) -> None:
        """Until it has left, or was killed."""
        with suppress(Py4JError):
            arriving = stream.iterator()
            while arriving.hasNext():
                record = arriving.next()
                self._records.append(Record(record.topic(), record.partition(), record.offset()))

    def delivered(self) -> list[Record]:
        return list(self._records)

    async def commit(self, partition: int, offset: int) -> None:
        """As by an application that acknowledges what it has processed; the current owner is not checked."""
        await anyio.to_thread.run_sync(self._commit, partition, offset)

    def _commit(self, partition: int, offset: int) -> None:
        java: Any = self._gateway.jvm
        offsets = java.java.util.HashMap()
        where = java.kafka.common.TopicAndPartition(self._topic, partition)
        offsets.put(where, java.kafka.common.OffsetAndMetadata.apply(offset))
        self._connector.commitOffsets(offsets, True)

    async def leave(self) -> None:
        """Shut down as by an application; returns when the last stream has ended."""
        await anyio.to_thread.run_sync(self._leave)

    def _leave(self) -> None:
        self._connector.shutdown()
        for thread in self._threads:
            thread.join()

    def kill(self) -> None:
        super().kill()
        for thread in self._threads:
            thread.join()
        if self._threads:
            self._gateway.close()


@contextmanager
def static_original(
    servers: Servers,
    cluster: Cluster,
    group: str,
    topic: str,
    streams: int,
    folder: Path,
    *,
    consumer: str = "original",
    version: str = NEWEST_ORIGINAL,
    **properties: object,
) -> Iterator[StaticOriginal]:
    """A member that has not joined yet, with so many streams. `properties` are the consumer's, with `_` for `.`."""
    needed = {
        "zookeeper.connect": cluster.connect,
        "group.id": group,
        "consumer.id": consumer,
        "auto.offset.reset": "smallest",
    }
    given = {key.replace("_", "."): value for key, value in properties.items()}
    command = with_py4j(logging_command(servers, version, SERVER[0], [SERVER[1]], folder))
    member = StaticOriginal(command, folder, {**PROPERTIES, **needed, **given}, topic, streams)
    try:
        yield member
    finally:
        member.kill()
