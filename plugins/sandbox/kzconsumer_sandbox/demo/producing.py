"""The producer: distinct messages, spread over the partitions, within a limit that the scenario raises.

It is idempotent, so that an acknowledged message is in the log once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from confluent_kafka import KafkaError, Message, Producer

from kzconsumer.clock import now
from kzconsumer_sandbox.errors import DemoFailed

_BLOCK = 500
_FLUSH_LIMIT = 60.0
_VALUE = b'{"id":%d,"customer":"customer-%05d","article":"article-%04d","quantity":%d,"cents":%d}'


def value(number: int) -> bytes:
    """The value of message `number`: about 85 bytes of JSON with a unique `id`."""
    return _VALUE % (number, number * 7919 % 100_000, number * 104_729 % 10_000, number % 9 + 1, number * 31 % 100_000)


class Allowance:
    """The number of messages that may have been produced at a time: grows at a rate up to a limit."""

    def __init__(self) -> None:
        self._base = 0
        self._limit = 0
        self._rate = 0.0
        self._since = 0.0

    def raise_to(self, limit: int, moment: float, seconds: float = 0.0) -> None:
        """Allow `limit` messages, with the additional ones spread evenly over the next `seconds`."""
        self._base = limit if seconds <= 0 else self.at(moment)
        self._rate = (limit - self._base) / seconds if seconds > 0 else 0.0
        self._limit = limit
        self._since = moment

    def at(self, moment: float) -> int:
        return min(self._limit, self._base + int(self._rate * (moment - self._since)))


class Production:
    """Produces messages 0, 1, 2, ... to one topic; `acknowledged` counts them by partition, from any thread."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, messages: int) -> None:
        self._topic = topic
        self._messages = messages
        self._allowance = Allowance()
        self._closed = threading.Event()
        self._fault = ""
        self.acknowledged = [0] * partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "log_level": 0,  # errors come with the acknowledgements
            }
        )

    def __repr__(self) -> str:
        return f"<Production {sum(self.acknowledged)} of {self._messages}>"

    def allow(self, share: float, seconds: float = 0.0) -> None:
        """Allow this share of all messages, spread over `seconds`."""
        self._allowance.raise_to(round(share * self._messages), now(), seconds)

    def close(self) -> None:
        """Make `run` return soon."""
        self._closed.set()

    def run(self) -> None:
        """Produce all messages as the limit allows; blocks. Raises DemoFailed."""
        partitions = len(self.acknowledged)
        for block in self._blocks():
            for number in block:
                self._produce(number, number % partitions)
            self._producer.poll(0)
            self._raise_fault()
        if not self._closed.is_set():
            self._producer.flush(_FLUSH_LIMIT)
            self._raise_fault()
            if len(self._producer):
                raise DemoFailed(f"{len(self._producer)} messages are not acknowledged after {_FLUSH_LIMIT:.0f} s")

    def _produce(self, number: int, partition: int) -> None:
        while not self._closed.is_set():
            try:
                self._producer.produce(self._topic, value(number), partition=partition, on_delivery=self._delivered)
                return
            except BufferError:  # librdkafka's queue is full
                self._producer.poll(0.1)

    def _blocks(self) -> Iterator[range]:
        done = 0
        while done < self._messages and not self._closed.is_set():
            until = min(done + _BLOCK, self._allowance.at(now()))
            if until > done:
                yield range(done, until)
                done = until
            else:
                self._producer.poll(0.02)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is None and partition is not None:
            self.acknowledged[partition] += 1
        else:
            self._fault = str(error)

    def _raise_fault(self) -> None:
        if self._fault:
            raise DemoFailed(f"a message was rejected: {self._fault}")
