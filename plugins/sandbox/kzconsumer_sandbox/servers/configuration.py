"""Configuration files, ports and Java flags of the servers: fast start, little memory, files in one directory only."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kzconsumer_sandbox.sandbox_errors import SandboxError
from kzconsumer_sandbox.servers.jars import KafkaVersion

# The ports of the servers on loopback: the usual ones, or free ones that remain free while their server restarts.
#
# Free ones are outside the kernel's ephemeral range: a port in it may be taken by any outgoing connection, and a
# client that retries it may connect to itself.

HOST = "127.0.0.1"
ZOOKEEPER_PORT = 2181
BROKER_PORT = 9092
_ALLOWED = range(10240, 65536)
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports(NamedTuple):
    """One for ZooKeeper, and one for each broker."""

    zookeeper: int
    brokers: tuple[int, ...]

    @classmethod
    def free(cls, brokers: int) -> Ports:
        return cls(free_port(), tuple(free_port() for _ in range(brokers)))

    @classmethod
    def chosen(cls, zookeeper: int | None, broker: int | None, brokers: int) -> Ports:
        """The given ports, of which `broker` is the first broker's; 0 is any free one.

        None is the usual port, or any free one if that is in use. Raises SandboxError if a given one is in use.
        """
        return cls(
            _choose(zookeeper, ZOOKEEPER_PORT, "--zookeeper-port"),
            tuple(_choose(broker and broker + n, BROKER_PORT + n, "--port") for n in range(brokers)),
        )


def _choose(given: int | None, usual: int, option: str) -> int:
    if given == 0:
        return free_port()
    if is_free(given or usual):
        return given or usual
    if given is not None:
        raise SandboxError(f"port {given} is in use; choose another one with {option}, or 0 for any")
    return free_port()


def is_free(port: int) -> bool:
    """Whether a server may listen there; connections of an earlier one do not prevent it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
        return True


def free_port() -> int:
    """A random port that is not in use. Raises SandboxError after a thousand attempts."""
    ports = ports_outside(*_ephemeral_range())
    for _ in range(1000):
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise SandboxError("no free port on 127.0.0.1")


def ports_outside(first: int, last: int) -> Sequence[int]:
    """The allowed ports outside first..last; all allowed ports if less than 1000 would be left."""
    below, above = range(_ALLOWED.start, max(first, _ALLOWED.start)), range(min(last, 65535) + 1, _ALLOWED.stop)
    larger = max(below, above, key=len)
    return larger if len(larger) >= 1000 else _ALLOWED


def _ephemeral_range() -> tuple[int, int]:
    try:
        first, last = map(int, _EPHEMERAL.read_text().split())
    except (OSError, ValueError):
        return 32768, 60999
    return first, last


QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Flags for a server that runs for seconds; leave out the second one for measurements."""

# log4j is used up to 0.10, slf4j-simple from 1.1 on. Both write to the standard streams.
LOG4J = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{1} %m%n
"""
_SLF4J = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss,SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
    "-Dorg.slf4j.simpleLogger.showShortLogName=true",
)


def java_flags(folder: Path, heap: str, tuning: tuple[str, ...] = QUICK_START) -> list[str]:
    """Flags for a server with its files in `folder`; `heap` in Java's format, such as `256m`."""
    return [
        f"-Xmx{heap}",
        *tuning,
        "-XX:-UsePerfData",  # its file in /tmp would be left after a kill -9
        f"-Djava.io.tmpdir={folder}",  # the native codecs unpack themselves there
        f"-Dlog4j.configuration=file:{folder / 'log4j.properties'}",
        *_SLF4J,
    ]


def zookeeper_properties(folder: Path, port: int) -> dict[str, object]:
    """zoo.cfg. Ticks of 0.5 s: the server rounds expiry up to the next tick, and tests wait for expiries."""
    return {
        "dataDir": folder,
        "clientPort": port,
        "clientPortAddress": HOST,
        "tickTime": 500,
        "minSessionTimeout": 1000,
        "maxSessionTimeout": 60000,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "*",
    }


class ListenerSetting(NamedTuple):
    """A listener besides the plain one; settings of its protocol are in the broker's `config`."""

    protocol: str
    port: int


def broker_properties(
    version: KafkaVersion,
    folder: Path,
    broker: int,
    port: int,
    zookeeper: str,
    extra: Mapping[str, object],
    listeners: Mapping[str, ListenerSetting],
) -> dict[str, object]:
    """server.properties; `extra` overrides. No automatic topic creation, and no retention.

    Without `zookeeper` nothing is said of where the cluster's state is: see `quorum`.

    `port` is the plain listener's, which the brokers use among themselves; `listeners`, by name, are those besides it
    (0.10.2 and later).
    """
    if version.listeners:
        all_listeners = {"PLAINTEXT": ListenerSetting("PLAINTEXT", port), **listeners}
        where = {"listeners": ",".join(f"{name}://{HOST}:{each.port}" for name, each in all_listeners.items())}
        if listeners:
            protocols = ",".join(f"{name}:{each.protocol}" for name, each in all_listeners.items())
            where["listener.security.protocol.map"] = protocols
    else:
        where = {"host.name": HOST, "advertised.host.name": HOST, "port": str(port)}
    registered = {
        "broker.id": broker,
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": 6000,
    }
    transactions = {
        "group.initial.rebalance.delay.ms": 0,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
    }
    share_groups = {
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 2,
    }
    return {
        **where,
        "log.dirs": folder / "data",
        **(registered if zookeeper else {}),
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "log.retention.hours": 2_000_000,  # two centuries: records may have any timestamp, and 0.8 has no "unlimited"
        "log.retention.bytes": -1,
        "log.segment.bytes": 256 << 20,
        "log.cleaner.dedupe.buffer.size": 2 << 20,
        "num.network.threads": 2,
        "num.io.threads": 4,
        **(transactions if version.transactions else {}),
        **({} if version.zookeeper else share_groups),
        **extra,
    }


def as_text(properties: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())
