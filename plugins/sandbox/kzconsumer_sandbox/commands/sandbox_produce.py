"""`kzconsumer sandbox produce`: lines of standard input, or generated orders, as records of a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

from kzconsumer_sandbox.errors import SandboxError

LIMIT = 30.0
_ORDER = b'{"id":%d,"customer":"%s","article":"article-%04d","quantity":%d,"cents":%d}'

Record = tuple[bytes | None, bytes]
"""Key and value."""


def generated(number: int) -> Iterator[Record]:
    for n in range(number):
        customer = b"customer-%02d" % (n * 7 % 20)
        yield customer, _ORDER % (n, customer, n * 104_729 % 10_000, n % 9 + 1, n * 31 % 100_000)


def lines() -> Iterator[Record]:
    for line in sys.stdin.buffer:
        yield None, line.rstrip(b"\n")


def produce(bootstrap: str, kafka_version: str, topic: str, records: Iterable[Record]) -> int:
    """Returns the number of records once the brokers have them all. Raises SandboxError."""
    faults: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            faults.append(str(error))

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **_compatibility(kafka_version)})
    number = 0
    try:
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:  # librdkafka's queue is full
                    producer.poll(0.1)
            producer.poll(0)
            number += 1
    finally:  # Ctrl-C, too: what was entered until then is sent
        left = producer.flush(LIMIT)
    if left or faults:
        why = faults[0] if faults else f"no answer within {LIMIT:.0f} s"
        raise SandboxError(f"{left + len(faults)} of {number} records were not produced: {why}")
    return number


def _compatibility(kafka_version: str) -> dict[str, Any]:
    """Before 0.10 brokers do not answer the request for their versions."""
    old = kafka_version.startswith("0.8")
    return {"api.version.request": False, "broker.version.fallback": kafka_version} if old else {}
