"""Kafka brokers in memory, at the level of the wire: ApiVersions, Metadata, ListOffsets, Fetch, and offsets of a group.

`SimulatedBroker` owns its connections and what is wrong with it. As in a real broker the requests of a connection are
answered one after the other, a fetch waits for `min_bytes` or `max_wait`, responses are filled in the order of the
request, and the first batch of a response is sent whole however large it is. A request in a version that it does not
have ends the connection, as in Kafka 4.0.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Final

from kzconsumer.model import TopicPartition
from tests.support.simulated import kafka_frames as frames
from tests.support.simulated.coordinator import Coordinator
from tests.support.simulated.ensemble import Peer
from tests.support.simulated.fetch_sessions import Answer, FetchSessions
from tests.support.simulated.haste import Haste
from tests.support.simulated.kafka_frames import Body, Fetch, FetchedFrom, Header, Led, Part
from tests.support.simulated.member import GROUP
from tests.support.simulated.partition_logs import TIMESTAMP, PartitionLogs, host
from tests.support.simulated.virtual_time import World

ANSWERS_AFTER: Final = 0.0005
WINDOW: Final = 10.0
"""Seconds over which the rate of a client is measured."""
LATEST: Final = -1
EARLIEST: Final = -2
"""The timestamps that ask where a log ends and begins. In this version there are no others than times."""


class SimulatedBroker:
    """See the module. Every broker knows the present leaders."""

    def __init__(self, world: World, logs: PartitionLogs, number: int) -> None:
        self.world = world
        self.logs = logs
        self.number = number
        self.up = True
        """Otherwise connections are refused."""
        self.silent = False
        """It takes requests and answers none, until it is no longer."""
        self.slow: dict[int, float] = {}
        """Seconds between the making of an answer and its sending, by the request's key."""
        self.quota: float | None = None
        """Bytes a second for consumers. As from 2.0 to 2.5 an answer above it is empty, and the next one waits."""
        self.muted_until = 0.0
        """When the last of its clients that exceeded the quota may send again."""
        self.idle = math.inf
        """Seconds without a request after which it closes a connection."""
        self.hangs_up = False
        """It closes a connection when the next request arrives, as if it had been about to do so anyway."""
        self.preferred: dict[TopicPartition, int] = {}
        """Replicas that clients are sent to if they say where they are."""
        self.follows: dict[TopicPartition, int] = {}
        """Partitions of others that it serves, up to an offset, which is the end of the log that it reports."""
        self.open: dict[TopicPartition, int] = {}
        """Partitions with an open transaction, and where it begins; ListOffsets does not know of it."""
        self.remote: dict[TopicPartition, tuple[int, float]] = {}
        """Partitions in tiered storage: up to which offset, and how many seconds a read takes. As in 3.6 and 3.7 it
        is given up when `max_wait` of the fetch ends, and of several in one fetch only the first is read."""
        self.isolation: int | None = None
        """The level that its clients have to read at; None: any."""
        self.sessions = FetchSessions(lambda: world.now)
        self.coordinator = Coordinator()
        """Of the group, and the same for all brokers of a cluster."""
        self.groups = {GROUP}
        """Those that requests are about, in a test with no other."""
        self._sent: deque[tuple[float, int]] = deque()
        self.connections: dict[BrokerConnection, None] = {}
        self.requests: Counter[int] = Counter()
        """By key."""
        self.knows_cluster = True
        """Otherwise it does not say of which cluster it is, as one before 0.10.1."""
        self.unlisted = frames.NONE
        """The error that it answers to ListOffsets of any partition."""
        self.hidden: set[str] = set()
        """Topics that an ACL keeps from its clients: they may neither describe nor read them."""
        self.unreadable: set[str] = set()
        """Topics that they may describe only."""
        self.answered: list[Callable[[Peer, Fetch, list[Part]], None]] = []
        """Called with every fetch that is answered: all partitions that it reads, and what was read of each."""
        self.alters: Callable[[list[Part]], list[Part]] | None = None
        """What it sends instead of what was read, as if it or the network had a fault."""
        logs.changed.append(self._look)

    def accept(self, peer: Peer) -> BrokerConnection:
        if not self.up:
            raise ConnectionRefusedError(f"{host(self.number)}: connection refused")
        connection = BrokerConnection(self, peer)
        self.connections[connection] = None
        return connection

    def stop(self) -> None:
        """The process has ended."""
        self.up = False
        self.sessions.evict()
        for connection in list(self.connections):
            connection.close()

    def set_silent(self, silent: bool) -> None:
        self.silent = silent
        self._look()

    def throttles(self, size: int) -> float:
        """Seconds that an answer of this size is over the quota; 0 if it may be sent, which counts."""
        now = self.world.now
        while self._sent and self._sent[0][0] < now - WINDOW:
            self._sent.popleft()
        if self.quota is not None:
            rate = (sum(size for _, size in self._sent) + size) / WINDOW
            if rate > self.quota:
                return (rate - self.quota) / self.quota * WINDOW
        self._sent.append((now, size))
        return 0.0

    def may_send_nothing(self, partition: TopicPartition) -> bool:
        """Although its log goes on."""
        log = self.logs.logs.get(partition)
        return partition in self.remote or (log is not None and bool(log.holes))

    def _look(self) -> None:
        """Something has changed that requests may wait for."""
        for connection in list(self.connections):
            connection.serve()


class BrokerConnection:
    """The broker's side of one connection."""

    def __init__(self, broker: SimulatedBroker, peer: Peer) -> None:
        self.broker = broker
        self.peer = peer
        self.open = True
        self._buffer = b""
        self.requests: deque[tuple[Header, Callable[[], bytes | None]]] = deque()
        """With what makes the response's body; None while that has to wait."""
        self._sending = False
        self._muted_until = 0.0
        self._asked = broker.world.now
        self._haste = Haste(broker.world)

    def received(self, data: bytes) -> None:
        if self.broker.hangs_up:
            self.broker.hangs_up = False
            self.close()
            return
        self._asked = self.broker.world.now
        if self.broker.idle < math.inf:
            self.broker.world.after(self.broker.idle, self._look_whether_idle)
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if len(self._buffer) < 4 + size:
                break
            header, body = frames.header(self._buffer[4 : 4 + size])
            self.requests.append((header, self._understand(header, body)))
            self._buffer = self._buffer[4 + size :]
        self.serve()

    def _look_whether_idle(self) -> None:
        if self.broker.world.now - self._asked >= self.broker.idle and not self.requests:
            self.close()

    def close(self) -> None:
        """The broker closes it."""
        if self.open:
            self.lost()
            self.peer.finish()

    def lost(self) -> None:
        """It broke, or the client closed it."""
        self.open = False
        self.broker.connections.pop(self, None)

    def serve(self) -> None:
        """Answer the oldest request, if it can be answered now."""
        if not (self.open and self.requests) or self._sending or self.broker.silent:
            return
        if self.broker.world.now < self._muted_until:
            self.broker.world.at(self._muted_until, self.serve)
            return
        header, answer = self.requests[0]
        if (body := answer()) is not None:
            self.requests.popleft()
            self._sending = True
            takes = ANSWERS_AFTER + self.broker.slow.get(header.api_key, 0.0)
            self.broker.world.after(takes, lambda: self._send(header.correlation, body))

    def _send(self, correlation: int, body: bytes) -> None:
        self._sending = False
        if self.open:
            self.peer.deliver(frames.response(correlation, body))
            self.serve()

    def _understand(self, header: Header, body: Body) -> Callable[[], bytes | None]:
        self.broker.requests[header.api_key] += 1
        if header.version != frames.VERSIONS[header.api_key]:
            return self.close
        match header.api_key:
            case frames.API_VERSIONS:
                return frames.versions
            case frames.DESCRIBE_GROUPS:  # of clients that wait for the versions
                return frames.no_groups
            case frames.METADATA:
                return partial(self._describe, frames.metadata(body))
            case frames.LIST_OFFSETS:
                isolation, asked = frames.list_offsets(body)
                self._require_isolation(isolation)
                self._haste.count(header.api_key, asked)
                return partial(self._list, asked)
            case frames.FIND_COORDINATOR:
                self._require_group(frames.find_coordinator(body))
                return self._coordinator
            case frames.OFFSET_COMMIT:
                group, offsets = frames.offset_commit(body)
                self._require_group(group)
                return partial(self.broker.coordinator.commit, self.broker.number, self.peer, offsets)
            case frames.OFFSET_FETCH:
                group, partitions = frames.offset_fetch(body)
                self._require_group(group)
                return partial(self.broker.coordinator.fetch, self.broker.number, partitions)
            case frames.OFFSET_FOR_LEADER_EPOCH:
                epochs = frames.epochs(body)
                self._haste.count(header.api_key, epochs)
                return partial(self._end_epochs, epochs)
            case _:
                answer = self.broker.sessions.begin(frames.fetch(body))
                fetch = answer.request
                if fetch.min_bytes:  # not of single batches, which are looked at, nor to end a session
                    self._require_isolation(fetch.isolation)
                waits_until = self.broker.world.now + fetch.max_wait
                reading = self._reads_remotely(fetch)
                if reading is not None:
                    waits_until = min(waits_until, self.broker.world.now + self.broker.remote[reading][1])
                self.broker.world.at(waits_until, self.serve)
                return partial(self._fetch, answer, waits_until, reading)

    def _require_isolation(self, level: int) -> None:
        """A client reads at one level: what one request finds another one has to find, too."""
        expected = self.broker.isolation
        assert expected in (None, level), f"a request has isolation {level}, not {expected}"

    def _require_group(self, group: str) -> None:
        assert group in self.broker.groups, f"a request is about group {group!r}"

    def _coordinator(self) -> bytes:
        number = self.broker.coordinator.broker
        return frames.coordinator(number, *self.broker.logs.addresses[number])

    def _reads_remotely(self, request: Fetch) -> TopicPartition | None:
        """The partition of which the fetch waits for a remote read."""
        remote = self.broker.remote
        found = (each for each in request.partitions if self._is_remote(each))
        return next((each.partition for each in found if each.partition in remote), None)

    def _is_in_hole(self, asked: FetchedFrom) -> bool:
        log = self.broker.logs.logs.get(asked.partition)
        return log is not None and log.first_from(asked.offset) > asked.offset

    def _is_remote(self, asked: FetchedFrom) -> bool:
        log = self.broker.logs.logs.get(asked.partition)
        remote, _ = self.broker.remote.get(asked.partition, (0, 0.0))
        return log is not None and asked.offset < min(remote, log.end)  # that log may be gone, or cut off

    def _describe(self, topics: list[str]) -> bytes:
        logs = self.broker.logs
        about: dict[str, tuple[int, list[Led]]] = {}
        for topic in topics:
            if topic in self.broker.hidden:
                about[topic] = (frames.TOPIC_AUTHORIZATION_FAILED, [])
                continue
            leaders = {partition: logs.leaders[partition] for partition in logs.of(topic)}
            led = [
                Led(
                    partition.partition,
                    frames.NONE if leader >= 0 else frames.LEADER_NOT_AVAILABLE,
                    leader,
                    logs.logs[partition].epoch,
                )
                for partition, leader in leaders.items()
            ]
            about[topic] = (frames.NONE if led else frames.UNKNOWN_TOPIC_OR_PARTITION, led)
        return frames.described(logs.addresses, about, logs.cluster if self.broker.knows_cluster else None)

    def _list(self, asked: dict[TopicPartition, tuple[int, int]]) -> bytes:
        answers = {}
        for partition, (epoch, timestamp) in asked.items():
            error = self._refusal(partition, epoch) or self.broker.unlisted
            log = self.broker.logs.logs.get(partition)
            if error or log is None:
                answers[partition] = (error, -1, -1)
            elif timestamp >= 0:
                is_there = timestamp <= TIMESTAMP and log.start < log.end
                answers[partition] = (error, log.start if is_there else -1, -1)
            elif timestamp not in (EARLIEST, LATEST):
                answers[partition] = (frames.UNSUPPORTED_VERSION, -1, -1)
            elif timestamp == EARLIEST:
                answers[partition] = (error, log.start, -1)
            else:
                answers[partition] = (error, log.end, log.epoch)
        return frames.listed(answers)

    def _end_epochs(self, asked: dict[TopicPartition, tuple[int, int]]) -> bytes:
        answers = {}
        for partition, (leader_epoch, epoch) in asked.items():
            error = self._refusal(partition, leader_epoch)
            log = self.broker.logs.logs.get(partition)
            answers[partition] = (error, *((-1, -1) if error or log is None else log.end_of(epoch)))
        return frames.epochs_end(answers)

    def _fetch(self, answer: Answer, waits_until: float, reading: TopicPartition | None) -> bytes | None:
        if answer.error:
            throttled = self._mute(self.broker.throttles(0))
            return frames.fetched([], int(throttled * 1000), error=answer.error)
        request = answer.request
        if reading is not None and self.broker.world.now < waits_until:
            return None
        parts: list[Part] = []
        left = request.max_bytes
        for asked in request.partitions:
            part = self._read(asked, left, first=left == request.max_bytes, request=request)
            if self._is_remote(asked) and (
                asked.partition != reading or request.max_wait < self.broker.remote[reading][1]
            ):
                part = part._replace(records=b"")
            parts.append(part)
            left = max(left - len(parts[-1].records), 0)
        enough = request.max_bytes - left >= request.min_bytes or any(p.error or p.preferred >= 0 for p in parts)
        enough = enough or any(map(self._is_in_hole, request.partitions))  # the log's end is in a later segment
        if enough or not parts or self.broker.world.now >= waits_until:
            if throttled := self._mute(self.broker.throttles(request.max_bytes - left)):
                return frames.fetched([], int(throttled * 1000), session=answer.throttle())
            for look in self.broker.answered:
                look(self.peer, request, parts)
            if self.broker.alters is not None:
                parts = self.broker.alters(parts)
            alone = request.epoch < 0 and request.max_bytes == left
            self._haste.count(frames.FETCH, [part.partition for part in parts if alone or part.error])
            error, session, sent = answer.finish(parts)
            return frames.fetched(sent, error=error, session=session)
        return None

    def _mute(self, seconds: float) -> float:
        self._muted_until = self.broker.world.now + seconds
        self.broker.muted_until = max(self.broker.muted_until, self._muted_until)
        return seconds

    def _read(self, asked: FetchedFrom, left: int, *, first: bool, request: Fetch) -> Part:
        partition = asked.partition
        error = self._refusal(partition, asked.leader_epoch)
        log = self.broker.logs.logs.get(partition)
        end = log.end if log is not None else -1
        if (known := self.broker.follows.get(partition)) is not None and log is not None:
            if asked.offset > known:
                return Part(partition, frames.OFFSET_OUT_OF_RANGE)
            error, end = frames.NONE, min(end, known)
        if partition.topic in self.broker.unreadable:
            error = frames.TOPIC_AUTHORIZATION_FAILED
        if error or log is None:
            return Part(partition, error)
        if request.rack and (preferred := self.broker.preferred.get(partition)) is not None:
            return Part(partition, frames.NONE, log.end, log.start, preferred=preferred)
        if not log.start <= asked.offset <= log.end:
            return Part(partition, frames.OFFSET_OUT_OF_RANGE)
        opened = self.broker.open.get(partition)
        until = end if opened is None or not request.isolation else min(end, opened)
        records = log.read(asked.offset, min(asked.max_bytes, left), at_least_one=first, until=until)
        return Part(partition, frames.NONE, end, log.start, records, open=opened)

    def _refusal(self, partition: TopicPartition, leader_epoch: int) -> int:
        """Whether it leads the partition, in this epoch; -1: in any."""
        leader, log = self.broker.logs.leaders.get(partition), self.broker.logs.logs.get(partition)
        if partition.topic in self.broker.hidden:
            return frames.TOPIC_AUTHORIZATION_FAILED
        if leader is None or log is None:
            return frames.UNKNOWN_TOPIC_OR_PARTITION
        if 0 <= leader_epoch < log.epoch:
            return frames.FENCED_LEADER_EPOCH
        if leader_epoch > log.epoch:
            return frames.UNKNOWN_LEADER_EPOCH
        return frames.NONE if leader == self.broker.number else frames.NOT_LEADER
