"""Latency of one client, in a process of its own.

`python -m tests.bench.delay_client WHAT NAME ZOOKEEPER BOOTSTRAP TOPIC N`, started by `bench_delays`. WHAT is `first`:
writes the time of the first message (CLOCK_MONOTONIC, the same for all processes of a machine); or `latency`: writes
the seconds from `produce` to delivery of N messages, whose values are the times when they were produced. A client
imports only what it needs: imports delay a process's first message.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator

# Three seconds: start of the group, its backlog. The cost of a start is measured by `first`.
NOT_COUNTED = 300


class _Taken:
    """Handles each message; returns True for the last one."""

    def __init__(self, what: str, number: int) -> None:
        self._what = what
        self._number = number
        self._skip = NOT_COUNTED
        self._delays: list[float] = []

    def take(self, value: bytes | None) -> bool:
        at = time.monotonic()
        if self._what == "first":
            print(json.dumps(at), flush=True)
            return True
        if self._skip > 0:
            self._skip -= 1
            return False
        self._delays.append(at - float(value or b"0"))
        if len(self._delays) < self._number:
            return False
        print(json.dumps(self._delays), flush=True)
        return True


def read_kzconsumer(zookeeper: str, bootstrap: str, topic: str, taken: _Taken) -> None:
    """`async for`, as a member of a group."""
    import asyncio

    import kzconsumer

    settings = kzconsumer.Settings.from_dict(
        {"zookeeper": {"connect": zookeeper}, "group": {"id": uuid.uuid4().hex}, "log": {"level": "warning"}}
    )

    async def read() -> None:
        async with kzconsumer.connect(settings) as consumer:
            streams = await consumer.create_message_streams({topic: 1})
            async for message in streams[topic][0]:
                if taken.take(message.value):
                    return

    asyncio.run(read())


def read_confluent(zookeeper: str, bootstrap: str, topic: str, taken: _Taken) -> None:
    """`poll`, tuned as in the throughput benchmark."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.subscribe([topic])

    def values() -> Iterator[bytes | None]:
        while True:
            if (message := consumer.poll(1.0)) is not None and message.error() is None:
                yield message.value()

    for value in values():
        if taken.take(value):
            break
    consumer.close()


CLIENTS = {"kzconsumer async for": read_kzconsumer, "confluent-kafka poll": read_confluent}

if __name__ == "__main__":
    CLIENTS[sys.argv[2]](sys.argv[3], sys.argv[4], sys.argv[5], _Taken(sys.argv[1], int(sys.argv[6])))
