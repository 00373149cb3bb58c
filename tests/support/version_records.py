"""Records with all that a broker version can hold, in each codec, and what a reader must find of them."""

from __future__ import annotations

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.producing import Sent, produce
from tests.support.range_data import TIME

PARTITIONS = 2
EACH = 3000
"""Records of a partition, a third of them with each codec."""
_CODECS = ("none", "gzip", "snappy")

Row = tuple[int, int, bytes | None, bytes | None, int | None, list[tuple[str, bytes | None]] | None]
"""Partition, offset, key, value, time in ms, headers; None for what a record does not have."""


def _sent(version: str) -> list[Sent]:
    """Timestamps from 0.10 on, headers from 0.11 on."""
    timed = not version.startswith(("0.8", "0.9"))
    headed = not version.startswith("0.")
    return [
        Sent(
            partition,
            None if n % 3 == 0 else b"k%d" % n,
            None if n % 7 == 0 else b"%d/%d " % (partition, n) * (n % 20),
            (("h", b"%d" % n),) if headed and n % 2 else (),
            TIME + n if timed else None,
        )
        for n in range(EACH)
        for partition in range(PARTITIONS)
    ]


def produce_all(cluster: Cluster, topic: str) -> None:
    records, third = _sent(cluster.version), EACH * PARTITIONS // len(_CODECS)
    for number, codec in enumerate(_CODECS):
        part = records[number * third : (number + 1) * third]
        produce(cluster.bootstrap, cluster.version, topic, part, codec)


def expected(version: str) -> list[Row]:
    rows = []
    for partition in range(PARTITIONS):
        of_it = [each for each in _sent(version) if each.partition == partition]
        rows += [
            (partition, offset, each.key, each.value, each.timestamp, list(each.headers) or None)
            for offset, each in enumerate(of_it)
        ]
    return rows
