"""A broker of 3.9.1 whose topics are in tiered storage (KIP-405), slow and with a quota (`SlowStorage.java`)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import anyio

from kzconsumer.brokers.pool import Brokers
from kzconsumer.brokers.protocol.log_reads import EARLIEST_LOCAL, ListOffsetsRequest
from kzconsumer.model import Broker, TopicPartition
from kzconsumer_sandbox.servers.jars import NEWEST, classpath, resolve_jars
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.producing import Sent, produce
from tests.support.programs import JAVAC, need
from tests.support.servers import Servers

_SOURCE = Path(__file__).with_name("SlowStorage.java")
READ_MS = 1500
"""For the first read of a segment. The broker waits 0.5 s for it, as by default."""
RECORDS = 2000
_SIZE = 100
_SEGMENT = 200_000  # four in tiered storage
_LIMIT = 60.0


class Tiered:
    """The records of its topics, but for the last ones, are in tiered storage alone."""

    def __init__(self, servers: Servers, quota: int | None = None) -> None:
        """`quota`: bytes of tiered storage that the broker reads in a second."""
        javac = need(JAVAC)
        jars = resolve_jars(NEWEST.jars)
        classes = servers.folder / "slow-storage"
        subprocess.run([javac, "-cp", classpath(jars), "-d", classes, _SOURCE], check=True)
        self._folder = servers.folder / f"tiers-{quota}"
        config = {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": "SlowStorage",
            "remote.log.storage.manager.class.path": f"{classes}/",
            "rsm.config.folder": self._folder,
            "rsm.config.delay.ms": READ_MS,
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
            "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
            "remote.log.manager.task.interval.ms": 200,
            "log.retention.check.interval.ms": 200,
            "log.initial.task.delay.ms": 200,
        }
        if quota is not None:
            config["remote.log.manager.fetch.max.bytes.per.second"] = quota
        self.cluster: Cluster = servers.cluster(f"tiered-{quota}", config=config, heap="256m")

    async def topic(self, name: str, partitions: int = 1) -> None:
        """With `RECORDS` records in each partition; returns when most of them are in tiered storage alone."""
        config = {"remote.storage.enable": "true", "segment.bytes": _SEGMENT, "local.retention.bytes": 1}
        await create_topic(self.cluster.connect, name, partitions, config)
        for first in range(0, RECORDS, 100):
            lot = [Sent(p, None, b"%d" % n * _SIZE) for n in range(first, first + 100) for p in range(partitions)]
            await anyio.to_thread.run_sync(produce, self.cluster.bootstrap, self.cluster.version, name, lot)
        asked = {TopicPartition(name, number): EARLIEST_LOCAL for number in range(partitions)}
        (server,) = self.cluster.brokers.values()
        async with Brokers(client_id="tiered", timeout=_LIMIT) as brokers:
            connection = await brokers.connection(Broker(server.id, server.host, server.port), "control")
            with anyio.fail_after(_LIMIT):
                while True:
                    found = await connection.call(ListOffsetsRequest(asked), timeout=_LIMIT)
                    if all(each.offset > RECORDS // 2 for each in found.values()):
                        break
                    await anyio.sleep(0.2)
        self.forget()

    def forget(self) -> None:
        """Every first read of a segment is slow once more."""
        (self._folder / "forget").touch()
