"""Produces records with librdkafka, which shares no code with ours, and reports the offset of each one.

Blocking: async tests call it through `anyio.to_thread.run_sync` or `asyncio.to_thread`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message, Producer

Headers = tuple[tuple[str, bytes | None], ...]


class Sent(NamedTuple):
    """A record to produce; `timestamp` in ms, None for now. Timestamps need a 0.10 broker, headers one of 0.11."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None


def produce(
    bootstrap: str,
    version: str,
    topic: str,
    records: Iterable[Sent | tuple[Any, ...]],
    codec: str = "none",
    *,
    limit: float = 60.0,
    **settings: object,
) -> list[int]:
    """Send the records in order and return the offset of each, in the same order.

    A record is a Sent or the tuple of its fields. `codec` is none, gzip, snappy, lz4 or zstd; `settings` are
    librdkafka's, with `_` for `.`. Records of one partition stay in order. Raises AssertionError unless every record is
    acknowledged by all replicas in time.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "acks": "all",
            "linger.ms": 20,
            "max.in.flight": 1,
            **compatibility(version),
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    offsets: list[int | None] = []
    faults: list[str] = []

    for number, record in enumerate(records):
        partition, key, value, headers, timestamp = Sent(*record)
        offsets.append(None)

        def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
            if error is not None:
                faults.append(str(error))
            else:
                offsets[number] = message.offset()

        more: dict[str, Any] = {"headers": list(headers)} if headers else {}
        if timestamp is not None:
            more["timestamp"] = timestamp
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=delivered, **more)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(limit)
    assert not faults, f"{len(faults)} records of {topic} were refused: {faults[0]}"
    assert left == 0, f"{left} records of {topic} are not delivered after {limit:.0f} s"
    found = [offset for offset in offsets if offset is not None]
    assert len(found) == len(offsets)
    return found


def compatibility(version: str) -> dict[str, object]:
    """The settings that librdkafka needs for that broker version: before 0.10 brokers do not answer ApiVersions."""
    if version.startswith(("0.8", "0.9")):
        return {"api.version.request": False, "broker.version.fallback": version}
    return {}
