"""Writes a history of transactions with librdkafka, and records the offset and outcome of each record.

Blocking, like `producing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer

from tests.support.producing import Sent

LIMIT = 60.0
COMMIT, ABORT = "commit", "abort"


class Written(NamedTuple):
    sent: Sent
    offset: int
    committed: bool
    """False if its transaction was aborted or is still open."""


class History:
    """One topic's transactions. Every record is acknowledged before the next is sent, so that their order is known."""

    def __init__(self, bootstrap: str, topic: str, codec: str = "none") -> None:
        self._settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "acks": "all", "linger.ms": 0}
        self._topic = topic
        self._producers: dict[str, Producer] = {}
        self._open: dict[str, list[int]] = {}
        self._records: list[tuple[Sent, int]] = []
        self._committed: set[int] = set()

    def write(self, steps: Iterable[tuple[str, Sent | list[Sent] | str]]) -> None:
        """Steps are (producer, record or records of one batch) and (producer, COMMIT or ABORT).

        A producer's first record after an end begins its next transaction; the producer "" has none.
        """
        for name, step in steps:
            if isinstance(step, str):
                self._end(name, step)
            else:
                self._send(name, step if isinstance(step, list) else [step])

    def _send(self, name: str, records: list[Sent]) -> None:
        producer = self._producer(name)
        if name and name not in self._open:
            producer.begin_transaction()
            self._open[name] = []
        offsets: list[int] = []
        faults: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                faults.append(str(error))
            else:
                offsets.append(message.offset() or 0)

        for sent in records:
            producer.produce(
                self._topic,
                sent.value,
                sent.key,
                sent.partition,
                on_delivery=delivered,
                timestamp=sent.timestamp or 0,
                headers=list(sent.headers),
            )
        assert producer.flush(LIMIT) == 0
        assert not faults, faults[0]
        numbers = range(len(self._records), len(self._records) + len(records))
        self._records += zip(records, sorted(offsets), strict=True)
        if name:
            self._open[name] += numbers
        else:
            self._committed.update(numbers)

    def _end(self, name: str, how: str) -> None:
        producer = self._producers[name]
        numbers = self._open.pop(name)
        if how == COMMIT:
            producer.commit_transaction(LIMIT)
            self._committed.update(numbers)
        else:
            producer.abort_transaction(LIMIT)

    def _producer(self, name: str) -> Producer:
        if name not in self._producers:
            settings = dict(self._settings)
            if name:
                settings["transactional.id"] = f"{self._topic}-{name}"
            self._producers[name] = Producer(settings)
            if name:
                self._producers[name].init_transactions(LIMIT)
        return self._producers[name]

    @property
    def written(self) -> list[Written]:
        return [Written(sent, offset, number in self._committed) for number, (sent, offset) in enumerate(self._records)]
