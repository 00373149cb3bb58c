"""The files in which a broker of a sandbox keeps its logs."""

from __future__ import annotations

from pathlib import Path

from kzconsumer_sandbox.servers.kafka_servers import Cluster


def log_directory(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    """Where the first broker keeps the partition. A search would also find topics that are being deleted."""
    return cluster.brokers[1].folder / "data" / f"{topic}-{partition}"


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def damage(segment: Path, text: bytes) -> bytes:
    """Flips a bit in the first occurrence of the text; returns the log as it is then. The broker may run: it sends
    what the file has.
    """
    log = bytearray(segment.read_bytes())
    at = log.index(text)
    log[at] ^= 1
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(log[at : at + 1])
    return bytes(log)
