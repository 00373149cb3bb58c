"""What a task reports if it cannot fetch: an error that remains. Outages of brokers: test_source_leaders.py.

Without Spark: a task is a call of `fetched`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio
import pytest

from kzconsumer.errors import BrokersUnreachableError
from kzconsumer.model import Broker, OffsetRange
from kzconsumer.settings.settings import Settings
from kzconsumer_sandbox.servers.configuration import HOST
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.executors.broker_access import BrokerAccess
from kzconsumer_spark.executors.fetching import fetched
from kzconsumer_spark.worker_protocol.kafka_settings import Kafka
from tests.spark.servers.test_group_reader import ROWS, made
from tests.support.producing import Sent, produce
from tests.support.secured import PLAIN_USER, Secured

pytestmark = pytest.mark.timeout(120)


def access(cluster: Cluster, seconds: float, brokers: dict[str, object] | None = None) -> BrokerAccess:
    tables = {"zookeeper": {"connect": cluster.connect}, "group": {"id": "g"}, "brokers": brokers or {}}
    settings = Settings.from_dict(tables | {"fetch": {"request_timeout": f"{seconds}s"}})
    listener = str((brokers or {}).get("listener", ""))
    known = [
        Broker(each.id, HOST, each.listeners[listener].port if listener else each.port)
        for each in cluster.brokers.values()
    ]
    return BrokerAccess(Kafka.of(settings), known)


async def offsets(topic: str, partition: int, given: BrokerAccess) -> list[object]:
    def read() -> list[object]:
        batches = fetched([OffsetRange(topic, partition, 0, 3)], given)
        return [offset for batch in batches for offset in batch["offset"].to_pylist()]

    return await anyio.to_thread.run_sync(read)


async def test_a_wrong_password_and_an_unknown_authority_are_no_outage(secured: Secured, unique: str) -> None:
    cluster = secured.cluster_of("3.9.1")
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"v")] * 3)
    wrong = {"password_file": secured.file("wrong-password", "wrong\n")}
    for table in (
        secured.table(cluster, "SASL_PLAINTEXT", "PLAIN", sasl=wrong),
        secured.table(cluster, "SSL", tls={"ca": secured.other_ca_file}),
    ):
        with pytest.raises(BrokersUnreachableError):
            await offsets(unique, 0, access(cluster, 3, table))
    for table in (secured.table(cluster, "SASL_PLAINTEXT", "PLAIN"), secured.table(cluster, "SSL")):
        assert await offsets(unique, 0, access(cluster, 30, table)) == [0, 1, 2]


def test_a_query_does_not_wait_with_a_wrong_password(secured: Secured, unique: str, tmp_path: Path) -> None:
    cluster = secured.cluster_of("3.9.1")
    wrong = secured.file("wrong-password", "wrong\n")
    file = tmp_path / "group.toml"
    file.write_text(
        f'zookeeper.connect = "{cluster.connect}"\ngroup.id = "{unique}"\nsubscription.topics.{unique} = 1\n'
        '[brokers]\nsecurity_protocol = "SASL_PLAINTEXT"\nlistener = "SASL_PLAINTEXT"\n'
        f'sasl = {{ mechanism = "PLAIN", username = "{PLAIN_USER}", password_file = "{wrong}" }}\n'
    )
    reader = made({"config": str(file)})
    with pytest.raises(BrokersUnreachableError, match=r"PLAIN as plain-user: Authentication failed"):
        reader.latestOffset(reader.initialOffset(), ROWS)
