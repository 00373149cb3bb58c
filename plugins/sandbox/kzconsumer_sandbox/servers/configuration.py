"""The text of the servers' configuration files, and the flags of their Java.

Pure: values in, text out. Everything here serves a server that starts fast, takes little memory and writes nothing
outside its own folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kzconsumer_sandbox.servers.ports import HOST
from kzconsumer_sandbox.servers.versions import KafkaVersion

QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Flags for a server that lives for seconds. A server under measurement wants the second one left out."""

# Every version finds one of the two: log4j up to 0.10, slf4j-simple from 1.1 on. Both write where the output goes.
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
    """Flags for any server whose files are in that folder; `heap` as Java writes it, `256m`."""
    return [
        f"-Xmx{heap}",
        *tuning,
        "-XX:-UsePerfData",  # its file in /tmp would outlive a kill -9
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


class Listener(NamedTuple):
    """A listener besides the plain one; what its protocol needs, the broker's further settings say."""

    protocol: str
    port: int


def broker_properties(
    version: KafkaVersion,
    folder: Path,
    broker: int,
    port: int,
    zookeeper: str,
    extra: Mapping[str, object],
    listeners: Mapping[str, Listener],
) -> dict[str, object]:
    """server.properties; `extra` has the last word. Topics are not created by asking for them, nothing is retired.

    `port` is the plain listener's, which the brokers use among themselves; `listeners`, by name, are those besides it
    (0.10.2 and later).
    """
    if version.listeners:
        all_listeners = {"PLAINTEXT": Listener("PLAINTEXT", port), **listeners}
        where = {"listeners": ",".join(f"{name}://{HOST}:{each.port}" for name, each in all_listeners.items())}
        if listeners:
            protocols = ",".join(f"{name}:{each.protocol}" for name, each in all_listeners.items())
            where["listener.security.protocol.map"] = protocols
    else:
        where = {"host.name": HOST, "advertised.host.name": HOST, "port": str(port)}
    transactions = {
        "group.initial.rebalance.delay.ms": 0,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
    }
    return {
        "broker.id": broker,
        **where,
        "log.dirs": folder / "data",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": 6000,
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "log.retention.hours": 2_000_000,  # two centuries: records may carry any timestamp; 0.8 knows no "for ever"
        "log.retention.bytes": -1,
        "log.segment.bytes": 256 << 20,
        "log.cleaner.dedupe.buffer.size": 2 << 20,
        "num.network.threads": 2,
        "num.io.threads": 4,
        **(transactions if version.transactions else {}),
        **extra,
    }


def as_text(properties: Mapping[str, object]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())
