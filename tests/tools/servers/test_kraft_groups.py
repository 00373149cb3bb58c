"""Groups that brokers of Kafka 4 coordinate, by each of their protocols, in the exporter and in commands.

The figures are compared with those of Kafka's own tool.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic_in_kraft
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.kafka_consumer import NEWER_PROTOCOL, kafka_member, read_to_the_end, share_member
from tests.support.servers import Servers
from tests.tools.original.test_exporter import exporter, reached
from tests.tools.servers.test_groups_move import Moving
from tests.tools.servers.test_kraft_commands import EACH, PARTITIONS, consume, send

ALL = EACH * PARTITIONS
PROTOCOLS = {"classic": {}, "newer": NEWER_PROTOCOL}


@pytest.fixture
async def topic(kraft: Cluster, unique: str) -> str:
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, PARTITIONS)
    await send(kraft, unique)
    return unique


@pytest.fixture
def kzconsumer(kraft: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> CommandLine:
    monkeypatch.chdir(tmp_path)  # undo files are written there
    return CommandLine(capsys, "--zookeeper", kraft.connect, "--bootstrap", kraft.bootstrap)


async def kafkas_figures(servers: Servers, cluster: Cluster, group: str) -> dict[str, tuple[str, str, str]]:
    """Partition -> stored offset, lag and consumer id, as `kafka-consumer-groups.sh --describe` prints them."""
    where = "--bootstrap-server", cluster.bootstrap, "--group", group
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    printed = await servers.tool(cluster.version, tool, "--describe", *where)
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return {row[2]: (row[3], row[5], row[6]) for row in rows}


async def test_the_exporter_has_groups_in_zookeeper_and_those_that_brokers_coordinate(
    servers: Servers,
    kraft: Cluster,
    kzconsumer: CommandLine,
    topic: str,
    tmp_path: Path,
) -> None:
    """Of the latter: with a member of either protocol, and offsets without members; not share groups."""
    ours, alone, shared, *theirs = (f"{topic}-{name}" for name in ("ours", "alone", "shared", *PROTOCOLS))
    await kzconsumer.json("offsets", "reset", ours, "--topic", topic, "--to-offset", "3", "--execute")
    await kzconsumer.json("offsets", "reset", alone, "--topic", f"{topic}:1", "--to-offset", "6", "--execute")
    await kzconsumer.json("groups", "move", alone, "--to-kafka", "--execute")
    await kzconsumer.json("groups", "delete", alone, "--execute")
    async with AsyncExitStack() as members:
        await members.enter_async_context(share_member(kraft, shared, topic))
        for group, protocol in zip(theirs, PROTOCOLS.values(), strict=True):
            settings = {"client_id": "client", "auto_offset_reset": "earliest", **protocol}
            consumer = await members.enter_async_context(kafka_member(kraft, group, topic, **settings))
            await asyncio.to_thread(read, consumer, ALL)
        await send(kraft, topic)
        words = "--kafka-groups", "--bootstrap", kraft.bootstrap
        exported = await members.enter_async_context(exporter(kraft.connect, tmp_path, *words))

        async def complete() -> bool:
            lags = await exported.metrics("group_lag_records", "group")
            return all((group,) in lags for group in (ours, alone, *theirs))

        await reached(complete)
        for group in theirs:  # at once: later they are taken for stopped
            status = await exported.lag(group)
            assert (status["status"], status["totallag"]) == ("OK", ALL)
            assert status["partitions"][0]["client_id"] == "client"
        assert await exported.metrics("exporter_complete") == {(): 1.0}
        lags = await exported.metrics("group_partition_lag_records", "group", "topic", "partition")
        offsets = await exported.metrics("group_partition_offset", "group", "topic", "partition")
        owners = await exported.metrics("group_partition_owner", "group", "partition", "owner")
        assert {lags[ours, topic, str(n)] for n in range(PARTITIONS)} == {17.0}
        for group, partitions in ((alone, 1), *((group, PARTITIONS) for group in theirs)):
            expected = await kafkas_figures(servers, kraft, group)
            assert len(expected) == sum(at[0] == group for at in offsets) == partitions
            for partition, (offset, lag, owner) in expected.items():
                at = group, topic, partition
                assert (offsets[at], lags[at]) == (float(offset), float(lag)), at
                assert (owner == "-") == (group == alone)
                assert owner == "-" or owners[group, partition, owner] == 1.0
        counted = await exported.metrics("group_members", "group")
        assert [counted[group,] for group in (ours, alone, *theirs)] == [0, 0, 1, 1]
        listed = (await exported.get("/v3/kafka/test/consumer"))[1]["consumers"]
        assert listed == sorted(group for (group,) in counted)
        assert shared not in listed


def read(consumer: Consumer, number: int) -> None:
    """So many records, and commit."""
    seen = 0
    while seen < number:
        message = consumer.poll(1)
        assert message is None or message.error() is None
        seen += message is not None
    consumer.commit(asynchronous=False)


@only_nightly  # with the older protocol: test_groups_move.py; members of the newer one: the test above
async def test_a_group_moves_to_consumers_of_the_newer_protocol_and_back(
    servers: Servers,
    kraft: Cluster,
    kzconsumer: CommandLine,
    topic: str,
    tmp_path: Path,
) -> None:
    """KIP-848: each side continues at the next record, also under the group's own name; not while a member is there."""
    moving = Moving(kzconsumer, topic, tmp_path)
    await consume(kraft, topic, topic, ALL)
    await send(kraft, topic)
    with pytest.raises(KafkaException):  # without an offset
        await read_to_the_end(kraft, f"{topic}-control", topic, partitions=PARTITIONS, **NEWER_PROTOCOL)
    await moving.execute("--to-kafka")
    await moving("--to-kafka", "--verify")
    read = await read_to_the_end(kraft, topic, topic, partitions=PARTITIONS, **NEWER_PROTOCOL)
    assert sorted(read, key=int) == [b"%d" % number for number in range(ALL)]

    await send(kraft, topic)
    async with kafka_member(kraft, topic, topic, **NEWER_PROTOCOL):
        for way in ("--to-kafka", "--from-kafka"):
            reason, *_ = (await moving(way))["blocked"]
            assert reason.startswith(f"the Kafka group {topic} has 1 member (")
            assert reason in await moving.refused(way)
        lag = await kzconsumer.json("lag", topic, "--storage", "kafka")
        figures = {str(each["partition"]): (str(each["stored"]), str(each["lag"])) for each in lag["partitions"]}
        expected = await kafkas_figures(servers, kraft, topic)
        assert figures == {partition: each[:2] for partition, each in expected.items()}
        assert lag["lag"] == ALL

    (done, _) = (await moving.execute("--from-kafka"))["partitions"]
    assert (done["stored"], done["new"], done["skipped"]) == (EACH, 2 * EACH, EACH)
    await consume(kraft, topic, topic, ALL)
    await moving.execute("--to-kafka")  # into a group of the newer protocol, which is empty
    assert await read_to_the_end(kraft, topic, topic, partitions=PARTITIONS, **NEWER_PROTOCOL) == []


async def test_a_share_group_takes_no_offsets(
    kraft: Cluster,
    kzconsumer: CommandLine,
    topic: str,
    tmp_path: Path,
) -> None:
    moving = Moving(kzconsumer, topic, tmp_path)
    await consume(kraft, topic, topic, ALL)
    async with share_member(kraft, f"{topic}-shared", topic):
        done = await moving.kzconsumer("groups", "move", topic, "--to-kafka", f"{topic}-shared", "--execute")
        assert done.status == 1
        assert "share" in done.err
