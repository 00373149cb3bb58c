"""The content of a topic of dead letters, read with librdkafka."""

from __future__ import annotations

import struct
import time
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition


class Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def original_offset(self) -> int:
        (offset,) = struct.unpack(">q", dict(self.headers)["kafka_dlt-original-offset"] or b"")
        return int(offset)


def read_letters(bootstrap: str, topic: str, count: int, limit: float = 30.0) -> list[Letter]:
    """The first `count` of partition 0. Raises AssertionError if they do not arrive in time."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "letters", "enable.auto.commit": False}
    consumer = Consumer(settings)
    found: list[Message] = []
    until = time.monotonic() + limit
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while len(found) < count and time.monotonic() < until:
            # A slow broker is also reported as a message.
            found += [each for each in consumer.consume(count - len(found), 1.0) if each.error() is None]
    finally:
        consumer.close()
    assert len(found) == count, f"{len(found)} of {count} dead letters"
    return [Letter(each.key(), each.value(), _headers(each)) for each in found]


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    headers: Any = message.headers()  # librdkafka accepts more types than it returns
    return list(headers or [])
