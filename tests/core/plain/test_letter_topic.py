"""Dead letters in a topic: a letter without an acknowledgement does not count as written."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from kzconsumer import rejected
from kzconsumer.dead_letter_format import DeadLetter
from kzconsumer.errors import DeadLetterError
from kzconsumer.offsets.progress import Message
from kzconsumer.rejected import LetterTopic, RejectedRecord, producer_security, rejects_of
from kzconsumer.settings.sections import BrokersSettings
from kzconsumer.settings.settings import Settings

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
    topic: ClassVar[KafkaError | None] = None

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.settings = settings
        self.held: list[tuple[object, Callable[[object, object], None]]] = []
        self.sent: list[object] = []
        self.asked: list[object] = []
        self.made.append(self)

    def produce(
        self, topic: str, value: object, key: object, *, headers: object, on_delivery: Callable[[object, object], None]
    ) -> None:
        if self.outcome == "full":
            raise BufferError("queue full")
        if self.outcome == "refused":
            raise KafkaException("no such topic")
        self.asked.append((topic, key, value, headers))
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

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=self.topic)})


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


async def test_letters_go_to_the_topic_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", Queue)
    monkeypatch.setattr(Queue, "made", [])

    async def registered() -> str:
        return "b:9092"

    policy = {"policy": "dead-letter", "topic": "letters"}
    tables = {"zookeeper": {"connect": "h:1"}, "group": {"id": "g"}, "fetch": {"request_timeout": "7s"}}
    rejects = rejects_of(Settings.from_dict(tables | {"rejected": policy}), registered, Counter())
    assert await rejects.handle([RejectedRecord(LETTER.message, "odd", "no")], lambda: False)
    (producer,) = Queue.made
    assert producer.asked == [("letters", b"k", b"v", msgspec.structs.replace(LETTER, error_class="odd").headers)]
    error = producer.settings["error_cb"]
    assert callable(error)
    assert producer.settings == {
        "bootstrap.servers": "b:9092",
        "client.id": "g",
        "acks": "all",
        "enable.idempotence": True,
        "message.timeout.ms": 7000,
        "message.max.bytes": 1_000_000_000,
        "partitioner": "murmur2_random",
        "log_level": 0,
        "error_cb": error,
        "security.protocol": "PLAINTEXT",
    }
    error("no broker is up")
    monkeypatch.setattr(Queue, "outcome", "failed")
    assert isinstance(rejects._letters, LetterTopic)
    with pytest.raises(DeadLetterError, match=r"^topic letters: broken; no broker is up$"):
        await rejects._letters.write([LETTER, LETTER])
    monkeypatch.setattr(Queue, "topic", KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(DeadLetterError, match=r"^topic letters: broken; Broker: Unknown topic or partition$"):
        await rejects._letters.write([LETTER])
    rejects.close()


TLS = {"ca": "ca.pem", "certificate": "own.pem"}
SSL = {
    "security.protocol": "SSL",
    "ssl.ca.location": "ca.pem",
    "ssl.certificate.location": "own.pem",
    "ssl.key.location": "own.pem",
    "ssl.endpoint.identification.algorithm": "https",
}
PLAIN = {"mechanism": "PLAIN", "username": "u", "password_env": "LETTER_PASSWORD"}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, {"security.protocol": "PLAINTEXT"}),
        ({"tls": TLS, "sasl": PLAIN}, {"security.protocol": "PLAINTEXT"}),
        ({"security_protocol": "SSL", "tls": TLS}, SSL),
        ({"security_protocol": "SSL", "tls": TLS | {"key": "key.pem"}}, SSL | {"ssl.key.location": "key.pem"}),
        (
            {
                "security_protocol": "SSL",
                "tls": TLS | {"key_password_env": "LETTER_PASSWORD", "verify_hostname": False},
            },
            SSL | {"ssl.key.password": "secret", "ssl.endpoint.identification.algorithm": "none"},
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl": PLAIN},
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "secret",
            },
        ),
    ],
    ids=["plaintext", "unused tables", "tls", "key", "password of the key", "password"],
)
def test_letters_are_sent_with_the_security_of_the_settings(
    table: dict[str, object], expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As librdkafka names it; what is not set is left out."""
    monkeypatch.setenv("LETTER_PASSWORD", "secret")
    assert producer_security(msgspec.convert(table, BrokersSettings)) == expected


def test_each_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = {"key_password_file": str(tmp_path / "key"), "certificate": "own.pem"}
    sasl = {"mechanism": "PLAIN", "username": "u", "password_file": str(tmp_path / "password")}
    table = {"security_protocol": "SASL_SSL", "tls": missing, "sasl": sasl}
    with pytest.raises(DeadLetterError) as raised:
        producer_security(msgspec.convert(table, BrokersSettings))
    for key in ("[brokers.tls] key_password_file", "[brokers.sasl] password_file"):
        assert f"{key}: cannot be read" in str(raised.value)
