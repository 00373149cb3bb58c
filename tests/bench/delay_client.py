"""Latency of one client, in a process of its own.

`python -m tests.bench.delay_client WHAT NAME ZOOKEEPER BOOTSTRAP TOPIC[,TOPIC] N`, started by `bench_delays` and
`bench_rest`.
WHAT is `first`: writes the time of the first message (CLOCK_MONOTONIC, the same for all processes of a machine); or
`latency`: writes the seconds from `produce` to delivery of N messages, whose values are the times when they were
produced; or `rest`: writes a line after the first message, and the delays of all when a message says `end`. A client
imports only what it needs: imports delay a process's first message.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial

UVLOOP = "kzconsumer async for, uvloop"
# Three seconds: start of the group, its backlog. The cost of a start is measured by `first`.
NOT_COUNTED = 300


class _Taken:
    """Handles each message; returns True for the last one."""

    def __init__(self, what: str, number: int) -> None:
        self._what = what
        self._number = number
        self._skip = 0 if what == "rest" else NOT_COUNTED
        self._delays: list[float] = []
        self._ready = False
        self.everything = what != "rest"  # what the topic had before is read, too

    def take(self, value: bytes | None) -> bool:
        at = time.monotonic()
        if self._what == "first":
            print(json.dumps(at), flush=True)
            return True
        if self._what == "rest":
            return self._take_at_rest(at, value or b"0")
        if self._skip > 0:
            self._skip -= 1
            return False
        self._delays.append(at - float(value or b"0"))
        if len(self._delays) < self._number:
            return False
        print(json.dumps(self._delays), flush=True)
        return True

    def _take_at_rest(self, at: float, value: bytes) -> bool:
        if value == b"end":
            print(json.dumps(self._delays), flush=True)
            return True
        if not self._ready:
            print("ready", flush=True)
            self._ready = True
        if value != b"0":  # those before the measurement
            self._delays.append(at - float(value))
        return False


def read_kzconsumer(zookeeper: str, bootstrap: str, topic: str, taken: _Taken, *, uvloop: bool = False) -> None:
    """`async for`, as a member of a group."""
    import anyio

    import kzconsumer

    settings = kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": zookeeper},
            "group": {"id": uuid.uuid4().hex},
            "offsets": {"reset": "smallest" if taken.everything else "largest"},
            "log": {"level": "warning"},
        }
    )

    async def read() -> None:
        async with kzconsumer.connect(settings) as consumer:
            if "," in topic:
                # A filter of all names would be too long. They are numbered.
                pattern = topic.partition(",")[0].rpartition("-")[0] + r"-\d+"
                (stream,) = await consumer.create_message_streams_by_filter(kzconsumer.Include(pattern))
            else:
                (stream,) = (await consumer.create_message_streams({topic: 1}))[topic]
            async for message in stream:
                if taken.take(message.value):
                    return

    anyio.run(read, backend_options={"use_uvloop": uvloop})


def read_confluent(zookeeper: str, bootstrap: str, topic: str, taken: _Taken) -> None:
    """`poll`, tuned as in the throughput benchmark."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest" if taken.everything else "latest",
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.subscribe(topic.split(","))

    def values() -> Iterator[bytes | None]:
        while True:
            if (message := consumer.poll(1.0)) is not None and message.error() is None:
                yield message.value()

    for value in values():
        if taken.take(value):
            break
    consumer.close()


def read_aiokafka(zookeeper: str, bootstrap: str, topic: str, taken: _Taken) -> None:
    """`async for`."""
    import asyncio

    from aiokafka import AIOKafkaConsumer  # type: ignore[import-untyped]

    start = "earliest" if taken.everything else "latest"

    async def read() -> None:
        consumer = AIOKafkaConsumer(
            *topic.split(","), bootstrap_servers=bootstrap, group_id=uuid.uuid4().hex, auto_offset_reset=start
        )
        await consumer.start()
        try:
            async for message in consumer:
                if taken.take(message.value):
                    return
        finally:
            await consumer.stop()

    asyncio.run(read())


CLIENTS: dict[str, Callable[[str, str, str, _Taken], None]] = {
    "kzconsumer async for": read_kzconsumer,
    UVLOOP: partial(read_kzconsumer, uvloop=True),
    "confluent-kafka poll": read_confluent,
    "aiokafka async for": read_aiokafka,
}

TUNED = ("kzconsumer async for", "confluent-kafka poll")
"""Those whose latency is compared at an even pace, and from the start of the process."""

if __name__ == "__main__":
    CLIENTS[sys.argv[2]](sys.argv[3], sys.argv[4], sys.argv[5], _Taken(sys.argv[1], int(sys.argv[6])))
