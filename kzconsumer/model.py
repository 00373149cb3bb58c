"""Partitions, threads, brokers and ranges. An offset always means the next record to be read."""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Literal, NamedTuple, SupportsIndex, TypeAlias

import msgspec

Wants: TypeAlias = Literal["columns", "ranges"]
"""What a member keeps of records: decoded ones, from which messages are made, too; or offsets alone."""

MOST_STREAMS = 5000
"""Of one member, over all its topics; a registration with more counts as unreadable."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def of(cls, pair: object) -> TopicPartition:
        """From one of these or a plain pair. Raises TypeError."""
        if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is int:
            return pair if isinstance(pair, cls) else cls(*pair)
        raise TypeError(f'a partition is given as TopicPartition("orders", 0), not {pair!r}')


def checked_offset(given: object) -> int:
    """An offset that an application gives, also as an integer of numpy. Raises TypeError, ValueError.

    5.0 or 2**63 would be stored as they are. No member can read the claim record or the offset then.
    """
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        raise TypeError(f"an offset is a whole number, not {given!r}")
    if not 0 <= (offset := index(given)) < 1 << 63:
        raise ValueError(f"{offset} is not an offset")
    return offset


def checked_time(ms: int) -> int:
    """A time that brokers look up, in ms since 1970. Raises ValueError.

    To brokers a negative one is a word, such as -1 for the end of the log, and the request has 64 bits.
    """
    if ms < 0:
        raise ValueError("is before 1970, and brokers look up no such time")
    if ms >= 1 << 63:
        raise ValueError("is too late for a time in ms since 1970")
    return ms


class ConsumerThreadId(NamedTuple):
    """One stream ("thread") of one group member, written `<consumer id>-<thread>` in ZooKeeper.

    Ordered as the *text*, as `kafka.consumer.ConsumerThreadId` (1.1.1) is: `-10` sorts before `-2`.
    """

    consumer: str
    thread: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.thread}"

    @classmethod
    def parse(cls, text: str) -> ConsumerThreadId:
        """Split at the last `-`, as Kafka's own tools do. Raises ValueError without a thread number."""
        consumer, dash, thread = text.rpartition("-")
        if not dash or not consumer:
            raise ValueError(f"{text!r} is not <consumer id>-<thread>")
        return cls(consumer, int(thread))

    def __lt__(self, other: tuple[object, ...]) -> bool:
        return utf16_order(str(self)) < utf16_order(str(other))

    def __gt__(self, other: tuple[object, ...]) -> bool:
        return utf16_order(str(self)) > utf16_order(str(other))


def utf16_order(text: str) -> bytes:
    """The sort key under which Python orders text as Java's String.compareTo does (UTF-16 code units)."""
    return text.encode("utf-16-be", "surrogatepass")


def thread_order(thread: ConsumerThreadId) -> bytes:
    """A sort key: threads are ordered as Java orders their texts, in UTF-16 units, so `-10` comes before `-2`.

    Members that sort otherwise compute another assignment. Comparing threads in pairs takes too long in a group of a
    hundred.
    """
    return utf16_order(str(thread))


class Broker(msgspec.Struct, frozen=True, order=True):
    """Where one broker listens."""

    id: int
    host: str
    port: int
    cluster: str = ""
    """The id of the cluster whose broker has to be found there; empty if it is not known, as before Kafka 0.10.1."""

    def is_at(self, other: Broker) -> bool:
        """Whether both may name one broker. Brokers before 0.10.1 do not say of which cluster any is."""
        same = (self.id, self.host, self.port) == (other.id, other.host, other.port)
        return same and (self.cluster == other.cluster or not self.cluster or not other.cluster)

    def __str__(self) -> str:
        return f"broker {self.id} ({self.host}:{self.port})"


class OffsetRange(NamedTuple):
    """The records of one partition with `first <= offset < until`."""

    topic: str
    partition: int
    first: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.first}..{self.until})"


def count_offsets(ranges: Iterable[OffsetRange]) -> int:
    """How many offsets the ranges have, with or without a record."""
    return sum(each.until - each.first for each in ranges)


class RangeIdentity(NamedTuple):
    """The identity of a range in a destination: independent of batches and of the member that writes it."""

    topic: str
    partition: int
    incarnation: int
    epoch: int
    first: int
    until: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)
