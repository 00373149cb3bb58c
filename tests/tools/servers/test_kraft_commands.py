"""Commands and the exporter on a cluster without ZooKeeper, whose groups of ours are in one."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from kzconsumer.lag.partition import Reason
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic_in_kraft
from kzconsumer_tools.exporter.exporter import Exporter
from kzconsumer_tools.groups.group_reader import tree_of
from tests.support.command_line import CommandLine
from tests.support.members import Tables, reader, settings, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until

PARTITIONS, EACH = 2, 10
#: Of the tool that is compared: the newest one in the sandbox's jars.


@pytest.fixture
async def zookeeper(kraft: Cluster) -> AsyncIterator[ZooKeeperSession]:
    async with session(kraft.connect) as opened:
        yield opened


@pytest.fixture
async def topic(kraft: Cluster, unique: str) -> str:
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, unique, PARTITIONS)
    await send(kraft, unique)
    return unique


@pytest.fixture
def kzconsumer(kraft: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> CommandLine:
    monkeypatch.chdir(tmp_path)  # undo files are written there
    return CommandLine(capsys, "--zookeeper", kraft.connect, "--bootstrap", kraft.bootstrap)


def tables(cluster: Cluster, reset: str = "smallest") -> Tables:
    return {
        "brokers": {"bootstrap": [cluster.bootstrap], "metadata_interval": "200ms"},
        "offsets": {"reset": reset, "commit_interval": "500ms"},
    }


async def send(cluster: Cluster, topic: str) -> None:
    records = [Sent(n % PARTITIONS, None, b"%d" % n) for n in range(EACH * PARTITIONS)]
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, records)


async def consume(cluster: Cluster, group: str, topic: str, number: int, reset: str = "smallest") -> None:
    async with reader(settings(cluster.connect, group, **tables(cluster, reset)), {topic: 1}) as member:
        await until(lambda: len(member.messages) >= number)
        assert len(member.messages) == number


@asynccontextmanager
async def exporting(cluster: Cluster, group: str) -> AsyncIterator[Exporter]:
    exporter = Exporter(settings(cluster.connect, group, **tables(cluster)), "c", 0.2, 300.0, wanted=group.__eq__)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exporter.run)
        yield exporter
        tasks.cancel_scope.cancel()


def useless(exporter: Exporter, group: str) -> set[Reason | None]:
    """Why stored offsets are not used."""
    seen = exporter.last.groups.get(group) if exporter.last is not None else None
    return {each.useless for each in seen.partitions} if seen is not None else set()


async def contents(zookeeper: ZooKeeperSession, path: str) -> dict[str, tuple[bytes, int]]:
    return {at: (node.data, node.stat.version) for at, node in (await tree_of(zookeeper, path)).items()}


async def test_commands_that_read_find_topics_and_change_nothing(
    kraft: Cluster, zookeeper: ZooKeeperSession, kzconsumer: CommandLine, topic: str, tmp_path: Path
) -> None:
    group = f"{topic}-group"
    file = tmp_path / "group.toml"
    file.write_text(
        f'[zookeeper]\nconnect = "{kraft.connect}"\n[brokers]\nbootstrap = ["{kraft.bootstrap}"]\n'
        f'[group]\nid = "{group}"\n[subscription]\ninclude = "{topic}"\n'
    )
    async with reader(settings(kraft.connect, group, **tables(kraft)), {topic: 1}) as member:
        await until(lambda: len(member.messages) >= EACH * PARTITIONS)
        await member.consumer.commit()
        before = await contents(zookeeper, f"/consumers/{group}")
        assert (await kzconsumer.json("groups", "doctor", group))["health"] == "healthy"
        assert (await kzconsumer("groups", "verify", group)).status == 0
        described = await kzconsumer.json("groups", "describe", group)
        assert (described["health"], described["missing_topics"]) == ("healthy", [])
        assert [each["exists"] for each in described["partitions"]] == [True] * PARTITIONS
        plain = CommandLine(kzconsumer.capsys, "--config", str(file))
        plan = await plain.json("groups", "plan")
        assert (plan["as_assigned"], len(plan["partitions"])) == (True, PARTITIONS)
        assert await contents(zookeeper, f"/consumers/{group}") == before
    await send(kraft, topic)
    before = await contents(zookeeper, "/consumers")
    lag = await kzconsumer.json("lag", group)
    assert [(each["stored"], each["log_end"], each["lag"]) for each in lag["partitions"]] == [(10, 20, 10)] * PARTITIONS
    assert lag["partitions"][0]["leader_address"] == kraft.bootstrap
    assert (await kzconsumer.json("lag", group, "--storage", "both"))["lag"] == lag["lag"]
    preview = await kzconsumer.json("offsets", "reset", group, "--all-topics", "--to-latest")
    assert [each["new"] for each in preview["groups"][0]["partitions"]] == [20] * PARTITIONS
    missing = await kzconsumer("offsets", "reset", group, "--topic", topic[:-1], "--to-latest")
    assert (missing.status, f"did you mean {topic}?" in missing.err) == (1, True)
    options = ["--zookeeper", kraft.connect, "--bootstrap", kraft.bootstrap]
    assert topic in (await CommandLine(kzconsumer.capsys)("completion", "topics", " ".join(options))).out
    words = ["consume", topic, "--from", "beginning", "--until", "end"]
    printed = await anyio.run_process([sys.executable, "-m", "kzconsumer", *words, *options])
    assert len(printed.stdout.splitlines()) == 2 * EACH * PARTITIONS
    assert await contents(zookeeper, "/consumers") == before


async def test_addresses_that_members_have_kept_are_used_without_bootstrap(
    kraft: Cluster, zookeeper: ZooKeeperSession, capsys: pytest.CaptureFixture[str], topic: str
) -> None:
    """As after a migration whose end deleted the cluster's nodes; also for a group that has kept none itself."""
    kzconsumer = CommandLine(capsys, "--zookeeper", kraft.connect)
    for group in (topic, f"{topic}-other"):
        for number in range(PARTITIONS):
            await zookeeper.ensure(f"/consumers/{group}/offsets/{topic}/{number}")
            await zookeeper.set(f"/consumers/{group}/offsets/{topic}/{number}", b"3", -1)
    unknown = await kzconsumer("lag", topic, "-o", "json")  # nothing names a broker
    assert (unknown.status, json.loads(unknown.out)["unknown"]) == (4, {"brokers unreachable": PARTITIONS})
    await zookeeper.create(GroupPaths(topic).brokers, msgspec.json.encode([kraft.bootstrap]))
    for group in (topic, f"{topic}-other"):
        assert (await kzconsumer.json("lag", group))["lag"] == 2 * (EACH - 3)
    await zookeeper.delete(GroupPaths(topic).brokers, -1)


async def test_brokers_topics_and_settings_come_from_brokers_and_changes_are_left_to_kafkas_tools(
    kraft: Cluster,
    zookeeper: ZooKeeperSession,
    kzconsumer: CommandLine,
    unique: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    topic = f"{unique}-topic"
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, topic, PARTITIONS, {"retention.ms": 5000})
    found = await kzconsumer.json("cluster", "describe")
    host, _, port = kraft.bootstrap.rpartition(":")
    listener = {"name": None, "security_protocol": "PLAINTEXT", "host": host, "port": int(port)}
    assert found["brokers"] == [{"id": 1, "version": None, "listeners": [listener], "since": None, "rack": "r1"}]
    assert (found["controller"], found["kraft_controller"], found["controller_epoch"] > 0) == (1, True, True)
    assert (found["deleting"], found["electing"], found["reassigning"], found["unreadable"]) == (None, None, [], [])
    assert found["cluster_id"] == admin.list_topics(timeout=10).cluster_id
    table = (await kzconsumer("cluster", "describe", "-o", "wide")).out
    assert f"controller: node 1; epoch {found['controller_epoch']}\n" in table
    assert "They do not report" in table

    (described,) = await kzconsumer.json("topics", "describe", topic)
    theirs = await asyncio.to_thread(admin.describe_topics(TopicCollection([topic]))[topic].result, 30)
    assert described["topic_id"] == str(theirs.topic_id).replace("+", "-").replace("/", "_")
    assert described["config"] == {"retention.ms": "5000"}
    known = {
        "leader": 1,
        "leader_registered": True,
        "leader_epoch": 0,
        "controller_epoch": None,
        "replicas": [1],
        "isr": [1],
    }
    assert described["partitions"] == [
        {"partition": number, **known, "adding": [], "removing": []} for number in range(PARTITIONS)
    ]
    assert described in await kzconsumer.json("topics", "list")
    rows = [" ".join(line.split()) for line in (await kzconsumer("topics", "list")).out.splitlines()]
    assert f"{PARTITIONS} 1 0 0 1 {topic}" in rows
    assert await kzconsumer.json("topics", "config", "get", topic) == [
        {"topic": topic, "config": {"retention.ms": "5000"}}
    ]
    wrong = await kzconsumer("topics", "describe", f"{topic}x")
    assert (wrong.status, f"there is no topic {topic}x; did you mean {topic}?" in wrong.err) == (1, True)
    nowhere = await CommandLine(capsys, "--zookeeper", kraft.connect)("topics", "list")
    assert (nowhere.status, "For one that has left ZooKeeper add --bootstrap" in nowhere.err) == (1, True)

    before = await zookeeper.children("/")
    for words, tool in (
        (("delete", topic), f"kafka-topics.sh --bootstrap-server {kraft.bootstrap} --delete --topic {topic}"),
        (("elect-preferred",), f"kafka-leader-election.sh --bootstrap-server {kraft.bootstrap} --election-type"),
        (("reassign", f"{topic}:0=1"), f"kafka-reassign-partitions.sh --bootstrap-server {kraft.bootstrap} --execute"),
        (("config", "set", topic, "retention.ms=7"), f"kafka-configs.sh --bootstrap-server {kraft.bootstrap} --alter"),
    ):
        for execute in ((), ("--execute",)):
            refused = await kzconsumer("topics", *words, *execute)
            assert (refused.status, refused.out) == (1, ""), refused
            assert (
                f"{kraft.connect}: no controller reads requests in ZooKeeper; use Kafka's own tool: {tool}"
                in refused.err
            )
            assert len(refused.err.splitlines()) == 1
    assert await zookeeper.children("/") == before


async def test_changed_offsets_count_for_the_next_member(
    kraft: Cluster, zookeeper: ZooKeeperSession, kzconsumer: CommandLine, topic: str, tmp_path: Path
) -> None:
    """Also those of a group that has never consumed the topic, and so has not identified it yet."""
    new, copy, restored = (f"{topic}-{name}" for name in ("new", "copy", "restored"))
    everything = EACH * PARTITIONS
    done = await kzconsumer.json("offsets", "reset", new, "--topic", topic, "--to-offset", "4", "--execute")
    assert done["executed"]
    await consume(kraft, new, topic, everything - 8, reset="largest")
    await kzconsumer.json("offsets", "clone", new, copy, "--execute")
    assert await stored_offsets(kraft.connect, copy, topic, PARTITIONS) == [EACH] * PARTITIONS
    await kzconsumer.json("offsets", "reset", copy, "--all-topics", "--shift-by", "-1", "--execute")
    exported = tmp_path / "offsets.csv"
    assert (await kzconsumer("offsets", "export", copy, "--format", "csv", "--output-file", str(exported))).status == 0
    await kzconsumer.json("offsets", "import", str(exported), "--group", restored, "--execute")
    for group in (copy, restored):
        await consume(kraft, group, topic, PARTITIONS, reset="largest")
    copied = await kzconsumer.json("groups", "move", restored, "--to-kafka", "--execute")
    assert copied["executed"]
    shown = await kzconsumer.json("offsets", "show", restored, "--storage", "kafka")
    assert [each["brokers"] for each in shown["partitions"]] == [EACH] * PARTITIONS

    # Another topic of that name: the offsets of the first one are not its.
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
    await until(lambda: topic not in admin.list_topics(timeout=10).topics)
    await asyncio.to_thread(create_topic_in_kraft, kraft.bootstrap, topic, PARTITIONS)
    await send(kraft, topic)
    sick = await kzconsumer.json("groups", "doctor", restored, status=3)
    assert {each["id"] for each in sick["findings"]} >= {"recreated_topic"}
    async with exporting(kraft, restored) as exporter:
        await until(lambda: useless(exporter, restored) == {"offset of an earlier topic"})
        await kzconsumer.json("offsets", "reset", restored, "--all-topics", "--to-offset", "7", "--execute")
        await until(lambda: useless(exporter, restored) == {None})
    await consume(kraft, restored, topic, everything - 14, reset="largest")
    assert (await kzconsumer.json("groups", "doctor", restored))["health"] == "healthy"
