"""Faults of brokers, and what happens to topics, as a simulated group's caller asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from kzconsumer.model import TopicPartition
from tests.support.simulated.broker import SimulatedBroker
from tests.support.simulated.kafka_frames import NONE, Part
from tests.support.simulated.partition_logs import PartitionLogs
from tests.support.simulated.promises import Promises
from tests.support.simulated.virtual_time import World


class BrokerFaults:
    """Each lasts for the time that is given, or until `end`."""

    def __init__(
        self, world: World, logs: PartitionLogs, brokers: Sequence[SimulatedBroker], promises: Promises
    ) -> None:
        self._world = world
        self._logs = logs
        self._brokers = brokers
        self._promises = promises
        self._present: list[Callable[[], object]] = []

    def move_leader(self, partition: TopicPartition, seconds: float) -> None:
        """The next broker leads it, after this time without leader."""
        before = self._logs.leaders[partition]
        if before < 0:
            return
        self._logs.lead(partition, -1)
        self._until(seconds, lambda: self._elect(partition, (before + 1) % len(self._brokers)))

    def elect_uncleanly(self, partition: TopicPartition, lost: int, grown: int, seconds: float) -> None:
        """A replica leads that does not have so many of the last records; then others are produced in their place."""
        before = self._logs.leaders[partition]
        if before < 0:
            return
        self._logs.lead(partition, -1)
        self._promises.cut_off(partition, self._logs.cut_off(partition, self._logs.end(partition) - lost))

        def elect() -> None:
            self._elect(partition, (before + 1) % len(self._brokers))
            self._logs.grow_log(partition, grown)

        self._until(seconds, elect)

    def silence(self, number: int, seconds: float) -> None:
        """It takes requests and answers none."""
        broker = self._brokers[number]
        if not broker.silent:
            broker.set_silent(True)
            self._until(seconds, lambda: broker.set_silent(False))

    def evict_sessions(self, number: int) -> None:
        """It has no slot for them any more."""
        self._brokers[number].sessions.evict()

    def slow_down(self, number: int, request: int, by: float, seconds: float) -> None:
        """Its answers to such requests leave so many seconds after they were made: what they say may be over."""
        slow = self._brokers[number].slow
        slow[request] = by
        self._until(seconds, lambda: slow.pop(request, None))

    def limit_client(self, number: int, quota: int, seconds: float) -> None:
        """It may have so many bytes a second of this broker."""
        broker = self._brokers[number]
        broker.quota = quota
        self._until(seconds, lambda: setattr(broker, "quota", None))

    def list_nothing(self, number: int, error: int, seconds: float) -> None:
        """It answers with this error where logs begin and end."""
        broker = self._brokers[number]
        broker.unlisted = error
        self._until(seconds, lambda: setattr(broker, "unlisted", NONE))

    def stop(self, number: int, seconds: float) -> None:
        """Its process ends and is restarted; its partitions have other leaders, or none."""
        broker = self._brokers[number]
        if not broker.up:
            return
        broker.stop()
        for partition, leader in list(self._logs.leaders.items()):
            if leader == number:
                self._logs.lead(partition, -1)
                self._elect(partition, partition.partition % len(self._brokers))
        self._until(seconds, lambda: self._start(broker))

    def retain(self, partition: TopicPartition, offset: int) -> None:
        """Retention deletes what is before this offset, whether it was read or not."""
        self._promises.gone(partition, offset)
        self._logs.retain(partition, offset)

    def move_to_remote(self, partition: TopicPartition, takes: float) -> None:
        """What the log has now is in tiered storage, of which a read takes so many seconds."""
        for broker in self._brokers:
            broker.remote[partition] = (self._logs.end(partition), takes)

    def produce_remotely(self, records: int, takes: float, seconds: float) -> None:
        """So many in each partition, which are in tiered storage before they are read. It is slow for so long."""
        self._logs.burst(records)
        for partition in self._logs.partitions:
            self.move_to_remote(partition, takes)
            self._until(seconds, partial(self.move_to_remote, partition, 0.0))

    def compact_end(self, partition: TopicPartition, offset: int) -> int:
        """Compaction removes everything from this offset on, read or not. Returns where exactly."""
        first = self._logs.compact_end(partition, offset)
        self._promises.compacted(partition, first, self._logs.end(partition))
        return first

    def recreate(self, topic: str, partitions: int, after: float) -> None:
        """Delete the topic, and make it again, empty, after this time."""
        gone = self._logs.of(topic)
        self._logs.delete(topic)
        for broker in self._brokers:
            broker.coordinator.forget(gone)
        self._world.pass_time(after)
        self._promises.recreated(gone)
        self._logs.grow(topic, partitions)

    def end(self) -> None:
        """No fault any more, and no client that has to wait because of a quota."""
        for broker in self._brokers:
            broker.alters, broker.hangs_up = None, False
        for over in list(self._present):
            self._end(over)
        self._world.pass_time(max(0.0, *(broker.muted_until - self._world.now for broker in self._brokers)))

    def _until(self, seconds: float, over: Callable[[], object]) -> None:
        self._present.append(over)
        self._world.after(seconds, lambda: self._end(over))

    def _end(self, over: Callable[[], object]) -> None:
        if over in self._present:
            self._present.remove(over)
            over()

    def _elect(self, partition: TopicPartition, broker: int) -> None:
        """This broker, or another one that is up, leads a partition without leader."""
        if self._logs.leaders.get(partition) == -1 and (up := self._up()):
            self._logs.lead(partition, broker if broker in up else up[0])

    def _start(self, broker: SimulatedBroker) -> None:
        broker.up = True
        for partition in self._logs.partitions:
            self._elect(partition, broker.number)

    def _up(self) -> list[int]:
        return [broker.number for broker in self._brokers if broker.up]


def ailing(chance: Random, times: int, errors: Sequence[int], damaged: int = 0) -> Callable[[list[Part]], list[Part]]:
    """For `SimulatedBroker.alters`: so many parts of answers are missing, have an error, or a part of their records.

    `damaged`: how often the records of a partition may be damaged.
    """
    left = Counter[TopicPartition]()

    def alter(parts: list[Part]) -> list[Part]:
        nonlocal times
        sent: list[Part] = []
        for part in parts:
            fault = chance.randrange(8) if times else 8
            times -= fault < 4
            records = part.records
            if fault == 0:
                continue
            if fault == 1:
                part = Part(part.partition, chance.choice(errors))
            elif fault == 2:
                part = part._replace(records=records[: chance.randrange(len(records) + 1)])
            elif fault == 3 and records and left[part.partition] < damaged:
                left[part.partition] += 1
                part = part._replace(records=records[:-1] + bytes([records[-1] ^ 1]))
            sent.append(part)
        return sent

    return alter
