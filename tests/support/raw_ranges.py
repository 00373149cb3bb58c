"""Ranges of raw batches for tests of archives, and the content of the directory of an archive or of a log."""

from __future__ import annotations

from pathlib import Path

from kzconsumer.sinks.interface import RangeData
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.record_sets import Record, record_batch

TOPIC = "orders"


def batch(base: int, count: int = 10) -> bytes:
    return record_batch([Record(b"k%d" % n, b"v%d" % n) for n in range(base, base + count)], base_offset=base)


def raw_range(first: int, until: int, *pieces: bytes, partition: int = 0, incarnation: int = 0x2A) -> RangeData:
    return RangeData(
        topic=TOPIC,
        partition=partition,
        first=first,
        until=until,
        pieces=(),
        incarnation=incarnation,
        epoch=0,
        raw=tuple(memoryview(piece) for piece in pieces),
    )


def batches(first: int, until: int, partition: int = 0) -> RangeData:
    """Every ten offsets a batch, each a piece of its own."""
    return raw_range(first, until, *[batch(base) for base in range(first, until, 10)], partition=partition)


def log_bytes(first: int, until: int) -> bytes:
    return b"".join(batch(base) for base in range(first, until, 10))


def log_directory(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    """Where the first broker keeps the partition. A search would also find topics that are being deleted."""
    return cluster.brokers[1].folder / "data" / f"{topic}-{partition}"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def content(directory: Path) -> bytes:
    """All segments of one partition's directory, one after the other."""
    return b"".join(path.read_bytes() for path in segments(directory))
