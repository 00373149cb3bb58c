"""One measured run of one client: `python -m tests.bench.client NAME ZOOKEEPER BOOTSTRAP TOPIC RECORDS`.

Reads the topic from its beginning as a new group, and writes one Measurement as JSON to standard output. Each run is a
process of its own, so that no client inherits memory or threads of another. Nothing is prepared before the clock
starts, and only public names of a client are used.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import anyio
import msgspec

from tests.bench.source import Source
from tests.bench.stopwatch import Measurement, Stopwatch

_LIMIT = 120.0


def read_batches(source: Source, *, uvloop: bool = False) -> Measurement:
    """`stream.batches()` of one stream with all partitions, as a member of a group."""
    return anyio.run(_read_batches, source, backend_options={"use_uvloop": uvloop})


async def _read_batches(source: Source) -> Measurement:
    import kzconsumer  # here, as below: a process must load and hold the measured client only

    watch = Stopwatch()
    async with kzconsumer.connect(zookeeper=source.zookeeper, group=uuid.uuid4().hex) as consumer:
        streams = await consumer.create_message_streams({source.topic: 1})
        seen = 0
        with anyio.fail_after(_LIMIT):
            async for batch in streams[source.topic][0].batches():
                if seen == 0:
                    watch.start(batch.num_rows)
                seen += batch.num_rows
                if seen >= source.records:
                    break
        return _all(watch.stop(seen), seen, source)


def read_messages(source: Source, *, uvloop: bool = False) -> Measurement:
    """`async for message in stream`, as a member of a group."""
    return anyio.run(_read_messages, source, backend_options={"use_uvloop": uvloop})


async def _read_messages(source: Source) -> Measurement:
    import kzconsumer

    watch = Stopwatch()
    async with kzconsumer.connect(zookeeper=source.zookeeper, group=uuid.uuid4().hex) as consumer:
        streams = await consumer.create_message_streams({source.topic: 1})
        with anyio.fail_after(_LIMIT):
            iterator = aiter(streams[source.topic][0])
            await anext(iterator)
            watch.start(1)
            seen = 1
            async for _ in iterator:
                seen += 1
                if seen == source.records:
                    break
        return _all(watch.stop(seen), seen, source)


def read_confluent(source: Source) -> Measurement:
    """confluent-kafka's `consume(1000)`; without that back-off (1 s) it mostly waits. It does not verify checksums."""
    from confluent_kafka import Consumer

    watch = Stopwatch()
    consumer = Consumer(
        {
            "bootstrap.servers": source.bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.subscribe([source.topic])
    seen = 0
    while seen < source.records:
        # Never more than exist: it would wait for the rest of a thousand.
        got = consumer.consume(min(1000, source.records - seen), timeout=_LIMIT)
        if not got:
            raise TimeoutError(f"{seen} of {source.records} records after {_LIMIT} s")
        if seen == 0:
            watch.start(len(got))
        seen += len(got)
    measured = watch.stop(seen)
    seen = sum(position.offset for position in consumer.position(consumer.assignment()))  # an error is not a record
    consumer.close()
    return _all(measured, seen, source)


def read_aiokafka(source: Source) -> Measurement:
    """aiokafka's `async for`. It verifies checksums."""
    return anyio.run(_read_aiokafka, source)


async def _read_aiokafka(source: Source) -> Measurement:
    from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]

    watch = Stopwatch()
    consumer = AIOKafkaConsumer(
        source.topic,
        bootstrap_servers=source.bootstrap,
        group_id=uuid.uuid4().hex,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        with anyio.fail_after(_LIMIT):
            await anext(consumer)
            watch.start(1)
            seen = 1
            async for _ in consumer:
                seen += 1
                if seen == source.records:
                    break
        return _all(watch.stop(seen), seen, source)
    finally:
        await consumer.stop()


def read_java(source: Source) -> Measurement:
    from tests.bench import java_clients

    return java_clients.read_java(source)


def read_scala(source: Source) -> Measurement:
    from tests.bench import java_clients

    return java_clients.read_scala(source)


class Client(NamedTuple):
    """How to read a source, how many records are enough for a figure (slow clients need not read all), and its
    limitations.
    """

    read: Callable[[Source], Measurement]
    share: float = 1.0
    unknown_codecs: tuple[str, ...] = ()


CLIENTS: dict[str, Client] = {
    "kzconsumer batches()": Client(read_batches),
    "kzconsumer async for": Client(read_messages),
    "kzconsumer batches(), uvloop": Client(partial(read_batches, uvloop=True)),
    "kzconsumer async for, uvloop": Client(partial(read_messages, uvloop=True)),
    "confluent-kafka consume(1000)": Client(read_confluent),
    "aiokafka async for": Client(read_aiokafka, 0.1),
    "Java 3.9.1": Client(read_java),
    "Scala 1.1.1": Client(read_scala, 0.5, ("zstd",)),
}


def _all(measured: Measurement, seen: int, source: Source) -> Measurement:
    if seen != source.records:
        raise ValueError(f"{seen} records read of {source.records}")
    return measured


def main(name: str, zookeeper: str, bootstrap: str, topic: str, records: str) -> None:
    measured = CLIENTS[name].read(Source(zookeeper, bootstrap, topic, int(records)))
    sys.stdout.buffer.write(msgspec.json.encode(measured) + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
