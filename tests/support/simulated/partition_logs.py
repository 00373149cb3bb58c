"""The topics' logs: batches with offsets, which producers append to and retention shortens.

`PartitionLogs` owns the logs, who leads them, and what ZooKeeper has of topics and brokers.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.zookeeper.operations import Create, Delete, SetData
from tests.support.record_sets import Record, record_batch
from tests.support.simulated.ensemble import Ensemble

RATE = 4
"""Records a second and partition."""
PRODUCED_EVERY = 1.0
"""Seconds between two batches of a producer."""
MOST_IN_BATCH = 100
TIMESTAMP = 1_700_000_000_000
"""Of all records, in ms since 1970."""
PORT = 9092


class PartitionLog:
    """One partition's log, made of whole batches. `key` is that of the records it gets: it identifies the log.

    One that was cut off goes on with another key, and in another leader epoch.
    """

    def __init__(self, key: bytes) -> None:
        self.key: bytes | None = key
        self.start = self.end = 0
        self.epoch = 0
        """The present leader's."""
        self._epochs: list[tuple[int, int]] = [(0, 0)]  # each that has begun, and where
        self._keys: list[tuple[int, bytes]] = [(0, key)]  # from which offset on
        self._first: list[int] = []  # the first offset of each batch
        self._batches: list[bytes] = []
        self.holes: list[tuple[int, int]] = []
        """From where to where it has no records."""

    def append(self, records: int, size: int) -> None:
        """Records with values of this many bytes."""
        while records:
            count = min(records, MOST_IN_BATCH)
            batch = _batch(self.key, count, size)
            self._first.append(self.end)
            # Both fields are outside of the checksum.
            self._batches.append(struct.pack(">q", self.end) + batch[8:12] + struct.pack(">i", self.epoch) + batch[16:])
            self.end += count
            records -= count

    def replace(self, first: int, until: int, batches: Sequence[tuple[int, bytes]]) -> None:
        """The log begins and ends there, and has these batches, each after its first offset."""
        self.start, self.end, self.holes = first, until, []
        self._first = [base for base, _ in batches]
        self._batches = [batch for _, batch in batches]

    def elect(self) -> None:
        """A leader was elected."""
        self.epoch += 1
        if self._epochs[-1][1] == self.end:
            self._epochs.pop()
        self._epochs.append((self.epoch, self.end))

    def cut_off(self, offset: int) -> int:
        """Lose all batches that end behind the offset, with their epochs. Returns where the log ends now."""
        if offset >= self.end:
            return self.end
        keep = max(bisect_right(self._first, offset) - 1, 0)
        if keep < len(self._first):
            self.end = max(self._first[keep], self.start)
            del self._first[keep:], self._batches[keep:]
            self._epochs = [each for each in self._epochs if each[1] < self.end] or self._epochs[:1]
            self._keys = [each for each in self._keys if each[0] < self.end]
            self.holes = [(first, min(until, self.end)) for first, until in self.holes if first < self.end]
            self.key = b"%s cut at %d" % (self.key or b"", self.end)
            self._keys.append((self.end, self.key))
            self.elect()  # records are produced meanwhile
        return self.end

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record."""
        return int.from_bytes(self._batches[-1][12:16], "big")

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The largest epoch of the log that is not above this one, and where it ends; as `LeaderEpochFileCache`."""
        if epoch == self._epochs[-1][0]:
            return epoch, self.end
        above = next((n for n, (each, _) in enumerate(self._epochs) if each > epoch), None)
        if above is None:
            return -1, -1
        return (self._epochs[above - 1][0] if above else epoch), max(self._epochs[above][1], self.start)

    def differs_at(self, key: bytes) -> int:
        """The first offset whose record is another one than in the log in which a record had this key.

        It is `sys.maxsize` if it is the same log, and 0 for a key of another partition.
        """
        others = (first for first, own in self._keys if key != own and not key.startswith(b"%s cut at " % own))
        return next(others, sys.maxsize)

    def delete_before(self, offset: int) -> None:
        """Retention: as with `DeleteRecords`, a batch may be there of which the first records are not."""
        self.start = max(self.start, offset)
        gone = max(bisect_right(self._first, self.start) - 1, 0)
        if self.start == self.end:
            gone = len(self._first)
        del self._first[:gone], self._batches[:gone]

    def compact_end(self, offset: int) -> int:
        """Compaction leaves no batch from this offset on up to the end. Returns where the hole begins."""
        keep = bisect_left(self._first, offset)
        first = self._first[keep] if keep < len(self._first) else self.end
        del self._first[keep:], self._batches[keep:]
        if first < self.end:
            self.holes = [*(each for each in self.holes if each[0] < first), (first, self.end)]
        return first

    def first_from(self, offset: int) -> int:
        """The first offset from this one on that is in no hole."""
        for first, until in self.holes:  # in their order
            if first <= offset < until:
                offset = until
        return offset

    def records(self) -> Iterator[tuple[int, bytes | None]]:
        """The offsets of its records, and their keys."""
        for offset in range(self.start, self.end):
            if self.first_from(offset) == offset:
                yield offset, next(key for first, key in reversed(self._keys) if first <= offset)

    @property
    def size(self) -> int:
        return sum(map(len, self._batches))

    def read(self, offset: int, most: int, *, at_least_one: bool, until: int = sys.maxsize) -> bytes:
        """The bytes from the batch with this offset on: the last batch is cut off, and the first one is never.

        `until`: no batch that begins there or behind it.
        """
        if (behind := self.first_from(offset)) > offset:
            at = bisect_left(self._first, behind)  # the next batch
        else:
            at = bisect_right(self._first, offset) - 1
        if offset >= min(self.end, until) or not 0 <= at < len(self._first):
            return b""
        first = self._batches[at]
        if len(first) > most:
            return first if at_least_one else b""
        found, size = [], 0
        for batch in self._batches[at : bisect_left(self._first, until)]:
            found.append(batch[: most - size])
            size += len(found[-1])
            if size >= most:
                break
        return b"".join(found)


class PartitionLogs:
    """Topics as ZooKeeper and the brokers have them: each log grows by `RATE` records a second, and by bursts.

    `changed` is called when anything changes that a fetch may be waiting for.
    """

    def __init__(self, ensemble: Ensemble, brokers: int, record_bytes: int, quiet: bool = False) -> None:
        """`record_bytes`: of each value of a burst. `quiet`: each second partition has records of bursts only."""
        self._ensemble = ensemble
        self._record_bytes = record_bytes
        self.brokers = range(brokers)
        self.addresses = {number: (host(number), PORT) for number in self.brokers}
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._topics: dict[str, list[TopicPartition]] = {}
        self.leaders: dict[TopicPartition, int] = {}
        """-1: none at the moment."""
        self.changed: list[Callable[[], None]] = []
        self.cluster: str | None = None
        """The cluster's id, if it was given one."""
        self._incarnations = 0
        self._producing = True
        self._busy = 2 if quiet else 1
        ensemble.make(paths.BROKER_TOPICS)
        ensemble.make(paths.BROKER_IDS)
        self.register(up=True)
        ensemble.world.after(PRODUCED_EVERY, self._produce)

    def identify(self, cluster: str) -> None:
        """Give the cluster an id, as it has from 0.10.1 on: in ZooKeeper, and in what brokers say."""
        self.cluster = cluster
        self._ensemble.make(paths.CLUSTER_ID, msgspec.json.encode({"version": "1", "id": cluster}))

    def register(self, *, up: bool) -> None:
        """All brokers register, or go; they answer all the same."""
        for number in self.brokers:
            self._register(number, up=up)

    def move(self, number: int) -> str:
        """This broker registers again, at another address, which is returned."""
        name, port = self.addresses[number]
        self.addresses[number] = moved, _ = f"other-{name}", port
        self._register(number, up=False)
        self._register(number, up=True)
        return moved

    def _register(self, number: int, *, up: bool) -> None:
        path = paths.broker(number)
        name, port = self.addresses[number]
        data = b'{"version":1,"host":"%s","port":%d}' % (name.encode(), port)
        self._ensemble.operate(Create(path, data) if up else Delete(path, -1))

    @property
    def partitions(self) -> list[TopicPartition]:
        return list(self.logs)

    def grow(self, topic: str, partitions: int) -> None:
        """Create the topic, or add partitions."""
        before = len(self.of(topic))
        for number in range(before, before + partitions):
            partition = TopicPartition(topic, number)
            self._topics.setdefault(topic, []).append(partition)
            self.logs[partition] = PartitionLog(b"%s %d" % (str(partition).encode(), self._incarnations))
            self.leaders[partition] = self.brokers[number % len(self.brokers)]
        data = msgspec.json.encode(
            {"version": 1, "partitions": {str(number): [0] for number in range(before + partitions)}}
        )
        if before:
            self._ensemble.operate(SetData(paths.topic(topic), data, -1))
        else:
            self._ensemble.make(paths.topic(topic), data)
        self._change()

    def delete(self, topic: str) -> None:
        """The topic with its logs; made again it is another one."""
        self._incarnations += 1
        for partition in self.of(topic):
            del self.logs[partition], self.leaders[partition]
        self._topics.pop(topic, None)
        self._ensemble.operate(Delete(paths.topic(topic), -1))
        self._change()

    def of(self, topic: str) -> list[TopicPartition]:
        return list(self._topics.get(topic, ()))

    def end(self, partition: TopicPartition) -> int:
        """0 if there is no such partition any more, which its owner may not know yet."""
        log = self.logs.get(partition)
        return log.end if log is not None else 0

    @property
    def size(self) -> int:
        """Bytes of all logs."""
        return sum(log.size for log in self.logs.values())

    def lead(self, partition: TopicPartition, broker: int) -> None:
        """Another leader, or none: -1."""
        self.leaders[partition] = broker
        if broker >= 0:
            self.logs[partition].elect()
        self._change()

    def replace(self, partition: TopicPartition, first: int, until: int, batches: Sequence[tuple[int, bytes]]) -> None:
        """See `PartitionLog`."""
        self.logs[partition].replace(first, until, batches)
        self._change()

    def retain(self, partition: TopicPartition, offset: int) -> None:
        """Delete what is before this offset."""
        self.logs[partition].delete_before(offset)
        self._change()

    def compact_end(self, partition: TopicPartition, offset: int) -> int:
        """See `PartitionLog`."""
        return self.logs[partition].compact_end(offset)

    def cut_off(self, partition: TopicPartition, offset: int) -> int:
        """An unclean election: the new leader's log ends there. Returns where exactly."""
        end = self.logs[partition].cut_off(offset)
        self._change()
        return end

    def grow_log(self, partition: TopicPartition, records: int) -> None:
        """Produce so many records at once, in one partition."""
        if (log := self.logs.get(partition)) is not None:
            log.append(records, 1)
            self._change()

    def burst(self, records: int) -> None:
        """Produce so many records at once, in each partition."""
        for log in self.logs.values():
            log.append(records, self._record_bytes)
        self._change()

    def stop(self) -> None:
        """Nothing more is produced."""
        self._producing = False

    def _produce(self) -> None:
        if self._producing:
            for partition, log in self.logs.items():
                if partition.partition % self._busy == 0:
                    log.append(round(RATE * PRODUCED_EVERY), 1)
            self._change()
            self._ensemble.world.after(PRODUCED_EVERY, self._produce)

    def _change(self) -> None:
        for call in self.changed:
            call()


def host(broker: int) -> str:
    return f"kafka{broker}"


@cache
def _batch(key: bytes | None, records: int, size: int) -> bytes:
    return record_batch([Record(key, bytes(size), timestamp=TIMESTAMP)] * records, base_offset=0)
