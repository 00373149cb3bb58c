"""`kzconsumer cluster describe` and `topics list | describe` on real brokers, and on the nodes of a 0.7 cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_a_real_cluster(
    cluster_of: Callable[[str], Cluster], version: str, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 2, {"retention.ms": 5000})
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)

    found = await kzconsumer.json("cluster", "describe")
    broker, new = found["brokers"][0]["id"], version == "3.9.1"
    host, _, port = cluster.bootstrap.rpartition(":")
    listener = {"name": "PLAINTEXT", "security_protocol": "PLAINTEXT", "host": host, "port": int(port)}
    assert [(each["version"], each["listeners"]) for each in found["brokers"]] == [(5 if new else 1, [listener])]
    assert (found["controller"], found["controller_epoch"]) == (broker, 1)
    assert (found["cluster_id"] is not None, found["unreadable"]) == (new, [])
    table = await kzconsumer("cluster", "describe")
    assert (table.status, table.err, f"controller: broker {broker}, since" in table.out) == (0, "", True)

    (topic,) = await kzconsumer.json("topics", "describe", unique)
    assert (topic["topic_id"] is not None, topic["config"]) == (new, {"retention.ms": "5000"})
    assert topic["partitions"] == [
        {
            "partition": number,
            "leader": broker,
            "leader_registered": True,
            "leader_epoch": 0,
            "controller_epoch": 1,
            "replicas": [broker],
            "isr": [broker],
            "adding": [],
            "removing": [],
        }
        for number in range(2)
    ]
    assert topic in await kzconsumer.json("topics", "list")
    for words, head, row in (
        (("cluster", "describe"), "LISTENERS SECURITY", f"PLAINTEXT://{cluster.bootstrap} PLAINTEXT"),
        (("topics", "list"), "TOPIC ID ITS SETTINGS", f"{unique} {topic['topic_id'] or '-'} retention.ms=5000"),
        (
            ("topics", "describe", unique),
            "IN SYNC NOT IN SYNC PREFERRED CONTROLLER EPOCH",
            f"1 {broker} 0 {broker} {broker} none {broker} 1",
        ),
    ):
        wide = await kzconsumer(*words, "-o", "wide")
        lines = [" ".join(line.split()) for line in wide.out.splitlines()]
        assert [(end, any(line.endswith(end) for line in lines)) for end in (head, row)] == [(head, True), (row, True)]
    if new:
        await the_same_from_brokers(cluster, found, topic, capsys)
    wrong = await kzconsumer("topics", "describe", f"{unique}x")
    assert (wrong.status, wrong.out) == (1, "")
    assert f"there is no topic {unique}x; did you mean {unique}?" in wrong.err


async def the_same_from_brokers(
    cluster: Cluster, described: dict[str, Any], topic: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a cluster in ZooKeeper mode, too, if `bootstrap` is set; what brokers do not report is null."""
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect, "--bootstrap", cluster.bootstrap)
    unknown = {"controller_since": None, "controller_epoch": None, "deleting": None, "electing": None}
    broker = described["brokers"][0] | {"version": None, "since": None}
    broker["listeners"] = [broker["listeners"][0] | {"name": None}]
    found = await kzconsumer.json("cluster", "describe")
    topics = found["topics"]  # other tests of the cluster make some
    assert found == described | unknown | {"from_brokers": True, "brokers": [broker], "topics": topics}
    partitions = [each | {"controller_epoch": None} for each in topic["partitions"]]
    assert await kzconsumer.json("topics", "describe", topic["topic"]) == [
        topic | {"deleting": None, "partitions": partitions}
    ]


async def test_the_nodes_of_a_kafka_0_7_cluster(
    servers: Servers, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = servers.zookeeper
    async with session(zookeeper.connect) as setting:
        for path, data in {
            "brokers/ids/0": b"host-1329780000000:host:9092",
            "brokers/topics/clicks/0": b"4",
            "brokers/topics/clicks/2": b"1",
            "controller_epoch": b"many",
        }.items():
            await setting.ensure(f"/{unique}/{path}")
            await setting.set(f"/{unique}/{path}", data, -1)
    kzconsumer = CommandLine(capsys, "--zookeeper", f"{zookeeper.connect}/{unique}")
    found = await kzconsumer.json("cluster", "describe")
    assert [(each["id"], each["version"], each["listeners"][0]["host"]) for each in found["brokers"]] == [
        (0, 0, "host")
    ]
    assert (found["controller"], found["unreadable"][0]["path"]) == (None, "/controller_epoch")
    (topic,) = await kzconsumer.json("topics", "list")
    assert (topic["topic"], topic["brokers_of_0_7"], topic["partitions"]) == ("clicks", {"0": 4, "2": 1}, [])
    nowhere = await CommandLine(capsys, "--zookeeper", f"{zookeeper.connect}/{unique}/no")("topics", "list")
    assert (nowhere.status, "there is no Kafka cluster; is the chroot right?" in nowhere.err) == (1, True)
