"""Whether a server serves, by blocking requests on a new connection each.

It uses Kafka's Metadata version 0, which every broker version answers, and ZooKeeper's four-letter words. An open port
is not enough: brokers up to 2.8 listen before they have registered, and another program may have taken the port.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
