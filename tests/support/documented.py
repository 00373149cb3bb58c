"""The topic of the programs of the documentation, in the cluster that tests share: it has the name that they print,
`orders`. Other tests that need that name have a cluster of their own.
"""

from __future__ import annotations

import asyncio

from kzconsumer_sandbox.servers.jars import NEWEST
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.producing import Sent, produce
from tests.support.servers import Servers

PARTITIONS, EACH = 4, 10
_FILLED: set[str] = set()
NEW_YEAR = 1_767_225_600_000
"""In ms since 1970. The second half of each partition's records is of this time or later, a second apart."""


def documented(servers: Servers) -> Cluster:
    """Each program has a group of its own."""
    cluster = servers.cluster_of(NEWEST.number)
    if cluster.connect not in _FILLED:
        _FILLED.add(cluster.connect)
        _fill(cluster)
    return cluster


def _fill(cluster: Cluster) -> None:
    asyncio.run(create_topic(cluster.connect, "orders", PARTITIONS))
    records = [
        Sent(partition, b"c%d" % partition, _order(partition, n), timestamp=NEW_YEAR + (n - EACH // 2) * 1000)
        for partition in range(PARTITIONS)
        for n in range(EACH)
    ]
    produce(cluster.bootstrap, cluster.version, "orders", records)


def _order(partition: int, n: int) -> bytes:
    """As `kzconsumer sandbox produce` makes them, as far as programs look."""
    return b'{"id":%d,"customer":"c%d","cents":%d}' % (partition * EACH + n, partition, n)
