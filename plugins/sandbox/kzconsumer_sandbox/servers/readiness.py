"""Whether a server serves, by blocking requests on a new connection each; and the creation of topics.

It uses Kafka's Metadata version 0, which every broker version answers, and ZooKeeper's four-letter words. An open port
is not enough: brokers up to 2.8 listen before they have registered, and another program may have taken the port.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kzconsumer.zookeeper.operations import ConnectString, Create
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.state_file import SandboxState, ServerState

_TIMEOUT = 2.0
_LISTEN = "0A"  # the state in /proc/net/tcp
_METADATA_V0 = struct.pack(">hhih", 3, 0, 1, -1)  # api key, version, correlation id, no client id


def known_brokers(host: str, port: int) -> set[int] | None:
    """The broker ids in that broker's Metadata response; None if it does not answer.

    0.8 returns no brokers before the first topic exists.
    """
    try:
        return set(_metadata(host, port, None).brokers)
    except OSError:
        return None


def led_partitions(host: str, port: int, topic: str) -> set[int]:
    """The topic's partitions of which that broker knows the leader; empty if it does not answer."""
    try:
        return {partition for partition, leader in _metadata(host, port, topic).leaders.items() if leader >= 0}
    except OSError:
        return set()


class MetadataV0(NamedTuple):
    """Broker ids, and the leader (-1: none) of each partition of the requested topic."""

    brokers: list[int]
    leaders: dict[int, int]


def read_metadata(reply: bytes) -> MetadataV0:
    """Read a Metadata v0 response from its correlation id on; only its first topic."""
    at = 4

    def take(layout: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(layout, reply, at)
        at += struct.calcsize(layout)
        return int(value)

    def skip(size: int) -> None:
        nonlocal at
        at += size

    brokers = []
    for _ in range(take(">i")):
        brokers.append(take(">i"))
        skip(take(">h"))  # the host
        skip(4)  # the port
    leaders: dict[int, int] = {}
    if take(">i"):
        skip(2)
        skip(take(">h"))  # the topic's name
        for _ in range(take(">i")):
            skip(2)
            partition = take(">i")
            leaders[partition] = take(">i")
            skip(4 * take(">i"))  # replicas
            skip(4 * take(">i"))  # in-sync replicas
    return MetadataV0(brokers, leaders)


def _metadata(host: str, port: int, topic: str | None) -> MetadataV0:
    """Request one topic, or all topics."""
    name = b"" if topic is None else struct.pack(">h", len(topic)) + topic.encode()
    request = _METADATA_V0 + struct.pack(">i", bool(name)) + name
    with socket.create_connection((host, port), _TIMEOUT) as connection:
        connection.settimeout(_TIMEOUT)
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        return read_metadata(_exactly(connection, size))


def zookeeper_serves(host: str, port: int) -> bool:
    """Whether ZooKeeper answers `srvr` with its statistics."""
    return four_letters(host, port, b"srvr").startswith("Zookeeper version")


def ephemeral_nodes(host: str, port: int) -> set[str]:
    """The paths of all ephemeral nodes, including chroots; empty if ZooKeeper does not answer."""
    return {line.strip() for line in four_letters(host, port, b"dump").splitlines() if line.startswith("\t/")}


def four_letters(host: str, port: int, word: bytes) -> str:
    """What a ZooKeeper server answers to a word such as `srvr`; empty if it does not."""
    try:
        with socket.create_connection((host, port), _TIMEOUT) as connection:
            connection.settimeout(_TIMEOUT)
            connection.sendall(word)
            with connection.makefile("rb") as reply:
                return reply.read().decode()
    except OSError:
        return ""


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionError("closed in the middle of a response")
        data += chunk
    return data


def listens(pid: int, port: int) -> bool:
    """Whether that process listens on the port, so that no other program's answer counts as its own."""
    try:
        open_files = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()}
        tables = [Path(f"/proc/{pid}/net/{each}").read_text() for each in ("tcp", "tcp6")]
    except OSError:  # it has ended, or a descriptor was closed
        return False
    rows = [line.split() for table in tables for line in table.splitlines()]
    listening = {row[9] for row in rows if row[3] == _LISTEN and row[1].endswith(f":{port:04X}")}
    return not open_files.isdisjoint(f"socket:[{inode}]" for inode in listening)


def find_faults(state: SandboxState) -> dict[ServerState, str]:
    """The servers that do not serve -> what is wrong; empty if all serve, or none has been started.

    Takes milliseconds, and 2 s more for each live server that does not answer.
    """
    return {server: "does not answer" if _lives(server.pid) else "has ended" for server in _silent(state)}


def _silent(state: SandboxState) -> Iterator[ServerState]:
    zookeeper = state.zookeeper
    if zookeeper is not None and not (_lives(zookeeper.pid) and zookeeper_serves(zookeeper.host, zookeeper.port)):
        yield zookeeper
    for broker in state.brokers:
        if not _lives(broker.pid) or known_brokers(broker.host, broker.port) is None:
            yield broker


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


# Creates topics: by writing the nodes that Kafka's own tool writes, which the controllers of all versions accept that
# read ZooKeeper; in KRaft mode with librdkafka.


async def create_topic(
    connect: str,
    topic: str,
    partitions: int,
    config: Mapping[str, object] | None = None,
    *,
    replicas: int = 1,
    limit: float = 30.0,
) -> None:
    """Create the topic and return when every broker knows every leader (`kafka.admin.AdminUtils.createTopic`, 0.8.2).

    `connect` is ZooKeeper's connect string with the cluster's chroot; `config` the topic's own settings. Replicas are
    assigned to the registered brokers in turn. Raises SandboxError after `limit` seconds, NodeExistsError if it exists.
    """
    async with _session(connect, limit) as session:
        brokers = sorted(map(int, await session.children("/brokers/ids")))
        await session.ensure("/config/topics")
        await session.multi(
            [
                Create(f"/config/topics/{topic}", topic_config(config or {})),
                Create(f"/brokers/topics/{topic}", assignment(partitions, brokers, replicas)),
            ]
        )
        await _wait_led(session, topic, partitions, brokers)


def create_topic_in_kraft(
    bootstrap: str, topic: str, partitions: int, config: Mapping[str, object] | None = None, *, limit: float = 30.0
) -> bool:
    """Create the topic, and block until every broker knows every leader; False if it exists. Raises SandboxError."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {key: str(value) for key, value in (config or {}).items()}
    try:
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(limit)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise SandboxError(f"topic {topic} was not created: {error}") from None
    deadline = time.monotonic() + limit
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        while len(led_partitions(host, int(port), topic)) < partitions:
            if time.monotonic() > deadline:
                raise SandboxError(f"partitions without leader after {limit:.0f} s at {address}")
            time.sleep(0.02)
    return True


async def add_partitions(connect: str, topic: str, partitions: int, *, limit: float = 30.0) -> None:
    """Grow the topic to `partitions`, as `kafka-topics --alter` does, and wait likewise."""
    path = f"/brokers/topics/{topic}"
    async with _session(connect, limit) as session:
        brokers = sorted(map(int, await session.children("/brokers/ids")))
        node = await session.get(path)
        content = msgspec.json.decode(node.data, type=dict[str, object])
        present = msgspec.convert(content["partitions"], dict[str, list[int]])
        grown = deal(partitions, brokers, max(map(len, present.values())))
        content["partitions"] = grown | present
        await session.set(path, msgspec.json.encode(content), node.stat.version)
        await _wait_led(session, topic, partitions, brokers)


def deal(partitions: int, brokers: list[int], replicas: int) -> dict[str, list[int]]:
    """Partition (as JSON key) -> replicas, the preferred leader first. Raises ValueError with too few brokers."""
    if not 0 < replicas <= len(brokers):
        raise ValueError(f"{replicas} replicas on {len(brokers)} brokers")
    return {
        str(partition): [brokers[(partition + replica) % len(brokers)] for replica in range(replicas)]
        for partition in range(partitions)
    }


def assignment(partitions: int, brokers: list[int], replicas: int) -> bytes:
    """The content of `/brokers/topics/<topic>`, version 1: newer controllers add a topic id of their own."""
    return msgspec.json.encode({"version": 1, "partitions": deal(partitions, brokers, replicas)})


def topic_config(config: Mapping[str, object]) -> bytes:
    """The content of `/config/topics/<topic>`; all values are text."""
    return msgspec.json.encode({"version": 1, "config": {key: str(value) for key, value in config.items()}})


@asynccontextmanager
async def _session(connect: str, limit: float) -> AsyncIterator[ZooKeeperSession]:
    """A session of at most `limit` seconds."""
    try:
        with anyio.fail_after(limit):
            async with ZooKeeperSession(ConnectString.parse(connect), 6.0) as session:
                yield session
    except TimeoutError:
        raise SandboxError(f"no answer, or partitions without leader, after {limit:.0f} s at {connect}") from None


async def _wait_led(session: ZooKeeperSession, topic: str, partitions: int, brokers: list[int]) -> None:
    """Wait until every broker knows the leaders of all partitions, which is later than ZooKeeper has them."""
    for broker in brokers:
        node = await session.get(f"/brokers/ids/{broker}")
        where = msgspec.json.decode(node.data, type=_Registered)
        while True:
            led = await anyio.to_thread.run_sync(led_partitions, where.host, where.port, topic)
            if len(led) >= partitions:
                break
            await anyio.sleep(0.02)


class _Registered(msgspec.Struct):
    host: str
    port: int
