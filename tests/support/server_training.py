"""A broker that starts, takes and hands out a record, and ends: its Java writes the archive of that version's classes.

Brokers and tools of the version load it. A ZooKeeper is needed, under a chroot of its own.
"""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
from confluent_kafka import Consumer, TopicPartition

from kzconsumer_sandbox.servers.configuration import QUICK_START
from kzconsumer_sandbox.servers.jars import KafkaVersion
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.class_archive import writing
from tests.support.producing import Sent, compatibility, produce

_TOPIC = "trained"


def train_broker(zookeeper: str, version: KafkaVersion, folder: Path, java: Path, jars: Path, archive: Path) -> None:
    """Blocks for some seconds."""
    chroot = f"/training-{version.number}"
    tuning = (*QUICK_START, *writing(archive))
    cluster = Cluster(zookeeper, version, folder, java, jars, chroot=chroot, heap="192m", tuning=tuning)
    try:
        cluster.start()
        cluster.wait_ready()
        with ThreadPoolExecutor(1) as apart:  # from the loop of the test that asks
            apart.submit(lambda: anyio.run(create_topic, cluster.connect, _TOPIC, 1)).result()
        produce(cluster.bootstrap, version.number, _TOPIC, [Sent(0, None, b"record")])
        _consume(cluster)
        (broker,) = cluster.brokers.values()
        broker.send_signal(signal.SIGTERM)
        broker.wait_ended(60.0)
    finally:
        cluster.kill()


def _consume(cluster: Cluster) -> None:
    group = {"group.id": _TOPIC, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, **group, **compatibility(cluster.version)})
    consumer.assign([TopicPartition(_TOPIC, 0, 0)])
    assert consumer.poll(30.0) is not None
    consumer.close()
