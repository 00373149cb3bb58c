"""The broker's side of Kafka's wire format: requests from bytes, responses to bytes, one version of each request.

Written from the protocol's definition and not with the product's codec, so that a mistake in that does not cancel out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from kzconsumer.model import TopicPartition

T = TypeVar("T")

FETCH, LIST_OFFSETS, METADATA, DESCRIBE_GROUPS, API_VERSIONS, OFFSET_FOR_LEADER_EPOCH = 1, 2, 3, 15, 18, 23
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
VERSIONS: Final = {
    FETCH: 11,
    LIST_OFFSETS: 5,
    METADATA: 8,
    OFFSET_COMMIT: 7,
    OFFSET_FETCH: 5,
    FIND_COORDINATOR: 2,
    DESCRIBE_GROUPS: 0,
    API_VERSIONS: 0,
    OFFSET_FOR_LEADER_EPOCH: 3,
}
"""The newest ones without the compact encoding of KIP-482."""

NO_REPLICA, NO_GENERATION = -1, -1
"""Of a consumer's requests, and of commits from outside of the coordinator's group."""
NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_LEADER = 0, 1, 3, 5, 6
UNKNOWN_SERVER_ERROR, LOADING, NOT_COORDINATOR, TOPIC_AUTHORIZATION_FAILED, UNSUPPORTED_VERSION = -1, 14, 16, 29, 35
FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 70, 71, 74, 75
OFFSET_NOT_AVAILABLE = 78


class Header(NamedTuple):
    api_key: int
    version: int
    correlation: int


class FetchedFrom(NamedTuple):
    """One partition of a fetch request."""

    partition: TopicPartition
    offset: int
    max_bytes: int
    leader_epoch: int


class Fetch(NamedTuple):
    max_wait: float
    min_bytes: int
    max_bytes: int
    partitions: list[FetchedFrom]
    """As sent, or all of the session."""
    session: int
    epoch: int
    forgotten: list[TopicPartition]
    rack: str
    isolation: int = 0
    """1: nothing from the first open transaction on is to be sent."""


class Part(NamedTuple):
    """One partition of a fetch response."""

    partition: TopicPartition
    error: int
    high_watermark: int = -1
    log_start: int = -1
    records: bytes = b""
    preferred: int = -1
    """The replica that the client should fetch from instead."""
    open: int | None = None
    """Where the first open transaction begins; None if there is none."""


class Led(NamedTuple):
    """One partition of a metadata response; leader -1: it has none."""

    number: int
    error: int
    leader: int
    epoch: int


class Kept(NamedTuple):
    """An offset with the group's coordinator; -1: there is none."""

    offset: int
    leader_epoch: int
    metadata: str


class Body:
    """What is left to be read of a request."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def take(self, form: str) -> tuple[int, ...]:
        values = struct.unpack_from(">" + form, self._data, self._at)
        self._at += struct.calcsize(">" + form)
        return values

    def expect(self, form: str, *values: int) -> None:
        """What every request of a consumer has here."""
        found = self.take(form)
        assert found == values, f"a request has {found}, not {values}"

    def end(self) -> None:
        assert self._at == len(self._data), f"a request has {len(self._data) - self._at} bytes too many"

    def string(self) -> str:
        (size,) = self.take("h")
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def array(self, item: Callable[[], T]) -> list[T]:
        (count,) = self.take("i")
        return [item() for _ in range(count)]

    def by_topic(self, form: str) -> list[tuple[TopicPartition, tuple[int, ...]]]:
        """Each partition with the fields that follow its number."""
        found: list[tuple[TopicPartition, tuple[int, ...]]] = []

        def topic() -> None:
            name = self.string()
            for number, *fields in self.array(lambda: self.take("i" + form)):
                found.append((TopicPartition(name, number), tuple(fields)))

        self.array(topic)
        return found


def header(frame: bytes) -> tuple[Header, Body]:
    """A request's header, and the rest."""
    body = Body(frame, 0)
    found = Header(*body.take("hhi"))
    body.string()  # client_id
    return found, body


def fetch(body: Body) -> Fetch:
    body.expect("i", NO_REPLICA)
    # max_wait, min_bytes, max_bytes, isolation, session id and epoch
    wait, least, most, isolation, session, session_epoch = body.take("iiibii")
    # leader epoch, offset, log start, max_bytes
    parts = [
        FetchedFrom(partition, offset, size, epoch) for partition, (epoch, offset, _, size) in body.by_topic("iqqi")
    ]
    forgotten = [partition for partition, _ in body.by_topic("")]
    rack = body.string()
    body.end()
    return Fetch(wait / 1000, least, most, parts, session, session_epoch, forgotten, rack, isolation)


def list_offsets(body: Body) -> tuple[int, dict[TopicPartition, tuple[int, int]]]:
    """The level of isolation; leader epoch and timestamp of each."""
    body.expect("i", NO_REPLICA)
    (isolation,) = body.take("b")
    asked = {partition: (epoch, timestamp) for partition, (epoch, timestamp) in body.by_topic("iq")}
    body.end()
    return isolation, asked


def epochs(body: Body) -> dict[TopicPartition, tuple[int, int]]:
    """The leader's epoch and the one asked about, of each."""
    body.expect("i", NO_REPLICA)
    asked = {partition: (leader, epoch) for partition, (leader, epoch) in body.by_topic("ii")}
    body.end()
    return asked


def metadata(body: Body) -> list[str]:
    names = body.array(body.string)
    body.expect("???", False, False, False)  # it creates no topics, and asks for no rights
    body.end()
    return names


def offset_commit(body: Body) -> tuple[str, dict[TopicPartition, Kept]]:
    """The group, and its offsets."""
    group = body.string()
    body.expect("i", NO_GENERATION)
    assert body.string() == "", "only a member of the coordinator's group has a name"
    body.expect("h", -1)  # instance: null
    found: dict[TopicPartition, Kept] = {}

    def topic() -> None:
        name = body.string()
        body.array(lambda: partition(name))

    def partition(name: str) -> None:
        number, offset, epoch = body.take("iqi")
        found[TopicPartition(name, number)] = Kept(offset, epoch, body.string())

    body.array(topic)
    body.end()
    return group, found


def offset_fetch(body: Body) -> tuple[str, list[TopicPartition]]:
    """The group, and the partitions asked for."""
    group, asked = body.string(), [partition for partition, _ in body.by_topic("")]
    body.end()
    return group, asked


def find_coordinator(body: Body) -> str:
    """The group."""
    group = body.string()
    body.expect("b", 0)  # of a group, not of a producer
    body.end()
    return group


def response(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation) + body


def versions() -> bytes:
    return struct.pack(">h", NONE) + _array(struct.pack(">hhh", key, 0, newest) for key, newest in VERSIONS.items())


def no_groups() -> bytes:
    return _array(())


def fetched(parts: Sequence[Part], throttle_ms: int = 0, error: int = NONE, session: int = 0) -> bytes:
    def one(part: Part) -> bytes:
        high = part.high_watermark
        stable = high if part.open is None else part.open
        fixed = struct.pack(
            ">ihqqqii", part.partition.partition, part.error, high, stable, part.log_start, -1, part.preferred
        )
        return fixed + struct.pack(">i", len(part.records)) + part.records

    return struct.pack(">ihi", throttle_ms, error, session) + _by_topic((part.partition, one(part)) for part in parts)


def listed(answers: Mapping[TopicPartition, tuple[int, int, int]]) -> bytes:
    """(error, offset, leader epoch) of each."""
    return struct.pack(">i", 0) + _by_topic(
        (partition, struct.pack(">ihqqi", partition.partition, error, -1, offset, epoch))
        for partition, (error, offset, epoch) in answers.items()
    )


def epochs_end(answers: Mapping[TopicPartition, tuple[int, int, int]]) -> bytes:
    """(error, leader epoch, end) of each."""
    return struct.pack(">i", 0) + _by_topic(
        (partition, struct.pack(">hiiq", error, partition.partition, epoch, end))
        for partition, (error, epoch, end) in answers.items()
    )


def coordinator(number: int, host: str, port: int) -> bytes:
    return struct.pack(">ihhi", 0, NONE, -1, number) + _string(host) + struct.pack(">i", port)


def committed(errors: Mapping[TopicPartition, int]) -> bytes:
    return struct.pack(">i", 0) + _by_topic(
        (partition, struct.pack(">ih", partition.partition, error)) for partition, error in errors.items()
    )


def stored(offsets: Mapping[TopicPartition, Kept], error: int) -> bytes:
    def one(partition: TopicPartition, kept: Kept) -> bytes:
        fixed = struct.pack(">iqi", partition.partition, kept.offset, kept.leader_epoch)
        return fixed + _string(kept.metadata) + struct.pack(">h", NONE)

    found = _by_topic((partition, one(partition, kept)) for partition, kept in offsets.items())
    return struct.pack(">i", 0) + found + struct.pack(">h", error)


def described(
    brokers: Mapping[int, tuple[str, int]], topics: Mapping[str, tuple[int, Sequence[Led]]], cluster: str | None
) -> bytes:
    """A metadata response: host and port of each broker, error and partitions of each topic."""

    def partition(each: Led) -> bytes:
        fixed = struct.pack(">hiii", each.error, each.number, each.leader, each.epoch)
        return fixed + struct.pack(">iii", 0, 0, 0)  # replicas, in-sync and offline ones: nobody asks

    def topic(name: str, error: int, partitions: Sequence[Led]) -> bytes:
        return struct.pack(">h", error) + _string(name) + b"\0" + _array(map(partition, partitions)) + _NO_OPERATIONS

    at = _array(
        struct.pack(">i", number) + _string(host) + struct.pack(">ih", port, -1)
        for number, (host, port) in brokers.items()
    )
    found = _array(topic(name, *about) for name, about in topics.items())
    its_id = struct.pack(">h", -1) if cluster is None else _string(cluster)
    return struct.pack(">i", 0) + at + its_id + struct.pack(">i", 0) + found + _NO_OPERATIONS


_NO_OPERATIONS: Final = struct.pack(">i", -(1 << 31))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _array(items: Iterable[bytes]) -> bytes:
    packed = list(items)
    return struct.pack(">i", len(packed)) + b"".join(packed)


def _by_topic(partitions: Iterable[tuple[TopicPartition, bytes]]) -> bytes:
    topics: list[tuple[str, list[bytes]]] = []
    for (topic, _), packed in partitions:
        if not topics or topics[-1][0] != topic:
            topics.append((topic, []))
        topics[-1][1].append(packed)
    return _array(_string(topic) + _array(parts) for topic, parts in topics)
