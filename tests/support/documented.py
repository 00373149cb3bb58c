"""The cluster in which programs of the documentation run: its topic has the name that they print, `orders`."""

from __future__ import annotations

import asyncio

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.producing import Sent, produce
from tests.support.servers import Servers

PARTITIONS, EACH = 4, 10
NEW_YEAR = 1_767_225_600_000
"""In ms since 1970. The second half of each partition's records is of this time or later, a second apart."""


def documented(servers: Servers) -> Cluster:
    """Shared by the files of one chain; each program has a group of its own."""
    return servers.shared("documented", lambda name: _filled(servers.cluster(name)))


def _filled(cluster: Cluster) -> Cluster:
    asyncio.run(create_topic(cluster.connect, "orders", PARTITIONS))
    records = [
        Sent(partition, b"c%d" % partition, _order(partition, n), timestamp=NEW_YEAR + (n - EACH // 2) * 1000)
        for partition in range(PARTITIONS)
        for n in range(EACH)
    ]
    produce(cluster.bootstrap, cluster.version, "orders", records)
    return cluster


def _order(partition: int, n: int) -> bytes:
    """As `kzconsumer sandbox produce` makes them, as far as programs look."""
    return b'{"id":%d,"customer":"c%d","cents":%d}' % (partition * EACH + n, partition, n)
