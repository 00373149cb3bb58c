"""Dead letters in a topic: a letter without an acknowledgement does not count as written."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from confluent_kafka import KafkaException

from kzconsumer import rejected
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import DeadLetterError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterTopic
from kzconsumer.settings.sections import BrokersSettings

LETTER = DeadLetter(Message("orders", 0, 7, b"k", b"v"), "rejected", "no", "g")
TIMEOUT = 30.0


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a broker that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@asynccontextmanager
async def topic_at(bootstrap: str) -> AsyncIterator[LetterTopic]:
    async def brokers() -> str:
        return bootstrap

    topic = LetterTopic("letters", BrokersSettings(), "test", TIMEOUT, brokers)
    try:
        yield topic
    finally:
        topic.close()


async def test_a_letter_that_is_not_acknowledged_in_time_is_not_written(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer has not given up by then and has reported no failure."""
    monkeypatch.setattr(rejected, "LATE", -TIMEOUT)
    async with topic_at(silent) as topic:
        with pytest.raises(DeadLetterError, match=r"^topic letters: no answer$"):
            await topic.write([LETTER])


class Queue:
    """A producer of which nothing is acknowledged unless the test says so."""

    made: ClassVar[list[Queue]] = []
    outcome: ClassVar[str] = ""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.held: list[tuple[object, Callable[[object, object], None]]] = []
        self.sent: list[object] = []
        self.made.append(self)

    def produce(
        self, topic: str, value: object, key: object, *, headers: object, on_delivery: Callable[[object, object], None]
    ) -> None:
        if self.outcome == "full":
            raise BufferError("queue full")
        if self.outcome == "refused":
            raise KafkaException("no such topic")
        self.held.append((value, on_delivery))

    def poll(self, timeout: float) -> int:
        return 0

    def flush(self, timeout: float) -> int:
        if self.outcome == "silent":
            return len(self.held)
        for value, callback in self.held:
            callback("broken" if self.outcome == "failed" else None, None)
            self.sent.append(value)
        self.held.clear()
        return 0

    def purge(self) -> None:
        self.held.clear()


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("full", "topic letters: queue full"),
        ("refused", "topic letters: KafkaException"),
        ("silent", "topic letters: no answer"),
        ("failed", "topic letters: broken"),
    ],
)
async def test_what_a_failed_attempt_has_left_is_not_sent_with_the_next(
    outcome: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", Queue)
    monkeypatch.setattr(rejected, "LATE", -TIMEOUT)
    monkeypatch.setattr(Queue, "made", [])
    async with topic_at("b:9092") as topic:
        await topic.write([LETTER])
        monkeypatch.setattr(Queue, "outcome", outcome)
        with pytest.raises(DeadLetterError) as raised:
            await topic.write([LETTER, LETTER])
        assert said.partition(":")[0] in str(raised.value)
        assert said.split(": ")[1] in repr(raised.value.__cause__ or raised.value)
        monkeypatch.setattr(Queue, "outcome", "")
        await topic.write([LETTER])
        await topic.write([LETTER])
    first, second = Queue.made
    assert len(first.sent) == (3 if outcome == "failed" else 1)
    assert len(second.sent) == 2
    assert not first.held
