"""A steady flow of records whose values contain their position, and what members delivered of it.

Owns the producer of one topic: there must be no other, so that a record's offset is known before it is sent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaException, Producer

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.original import Record
from tests.support.producing import compatibility

RATE = 400.0
"""Records a second: enough that every hand-over happens under way, too few to keep two cores busy."""


class Flow:
    """`partitions` may grow while it runs."""

    def __init__(
        self, cluster: Cluster, topic: str, partitions: int, rate: float, settings: Mapping[str, object]
    ) -> None:
        self.topic = topic
        self.rate = rate
        self.partitions = partitions
        self.sent: Counter[int] = Counter()
        self.faults: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "max.in.flight": 1,
                "topic.metadata.refresh.interval.ms": 100,  # this is how added partitions become known
                **compatibility(cluster.version),
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flow to {topic}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """No more records; returns when all are acknowledged."""
        self._ending.set()
        self._thread.join(60)
        assert self._producer.flush(30) == 0
        assert not self.faults, self.faults[0]

    def close(self) -> None:
        """No more records, delivered or not, and no more connections."""
        self._ending.set()
        self._thread.join(60)
        self._producer.purge()
        del self._producer

    def all_sent(self) -> set[Record]:
        return {Record(self.topic, partition, offset) for partition, n in self.sent.items() for offset in range(n)}

    def _run(self) -> None:
        began, number = time.monotonic(), 0
        while not self._ending.is_set():
            while number < (time.monotonic() - began) * self.rate:
                partition = number % self.partitions
                record = Record(self.topic, partition, self.sent[partition])
                number += 1
                try:
                    self._producer.produce(self.topic, record.value(), None, partition, on_delivery=self._acknowledged)
                except KafkaException:
                    continue  # the partition is too new to be known
                except BufferError:
                    self._producer.poll(0.1)  # the broker has not caught up: unsent records are sent later
                    continue
                self.sent[partition] += 1
            self._producer.poll(0)
            self._ending.wait(0.03)

    def _acknowledged(self, error: object, message: object) -> None:
        if error is not None:
            self.faults.append(str(error))


@contextmanager
def flow(cluster: Cluster, topic: str, partitions: int, rate: float = RATE, **settings: object) -> Iterator[Flow]:
    """A flow that runs until the block ends or its `end` is called. `settings` are librdkafka's, with `_` for `.`."""
    running = Flow(cluster, topic, partitions, rate, settings)
    running.start()
    try:
        yield running
    finally:
        running.close()


class Deliveries:
    """What each member delivered; a member is identified by the function that returns its records so far."""

    def __init__(self, **members: Callable[[], Iterable[Record]]) -> None:
        self.members = members

    def all(self) -> set[Record]:
        return {record for output in self.members.values() for record in output()}

    def doubled(self) -> dict[Record, list[str]]:
        """Records delivered more than once -> by which members."""
        by: dict[Record, list[str]] = defaultdict(list)
        for name, output in self.members.items():
            for record in output():
                by[record].append(name)
        return {record: names for record, names in by.items() if len(names) > 1}
