"""`kzconsumer topics reassign | elect-preferred | delete | config` on real controllers of two brokers.

Each request is written in that version's form; its node disappears and the cluster has changed. CI runs the oldest and
the newest version, `make test-admin` all of them.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import extent
from tests.support.pages import form, printed
from tests.support.producing import compatibility
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session

pytestmark = pytest.mark.timeout(240)

ALL = ["0.8.2.2", "1.1.1", "2.8.2", "3.9.1"]
VERSIONS = ALL if os.environ.get("KZCONSUMER_ADMIN_VERSIONS") else extent(["3.9.1"], ALL)

NOTIFIED = {
    "0.8.2.2": b'"moved"',
    "1.1.1": b'{"version":2,"entity_path":"topics/moved"}',
    "2.8.2": b'{"version":2,"entity_path":"topics/moved"}',
    "3.9.1": b'{"version":2,"entity_path":"topics/moved"}',
}


def refusal(cluster: Cluster, topic: str, size: int) -> int | None:
    """The error code for a record of so many bytes."""
    settings = {"bootstrap.servers": cluster.bootstrap, "retries": 3, **compatibility(cluster.version)}
    producer = Producer(settings)
    codes: list[int | None] = []

    def delivered(error: KafkaError | None, message: object) -> None:
        codes.append(error.code() if error is not None else None)

    producer.produce(topic, b"x" * size, partition=0, on_delivery=delivered)
    assert producer.flush(30) == 0
    return codes[0]


async def until(look: Callable[[], Any], wanted: Any) -> None:
    """Brokers do not confirm a change of settings."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(look) != wanted:
            await asyncio.sleep(0.1)


@pytest.fixture
def two_brokers(servers: Servers, version: str) -> Iterator[Cluster]:
    off = dict.fromkeys(("auto.leader.rebalance.enable", "auto.create.topics.enable"), "false")
    config = off | {"delete.topic.enable": "true"}
    cluster = servers.cluster(f"admin-{version}", version, brokers=2, config=config)
    yield cluster
    cluster.kill()


@pytest.mark.parametrize("version", VERSIONS)
async def test_controllers_execute_requests(
    two_brokers: Cluster,
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    cluster = two_brokers
    if version == ALL[-1]:
        await play_page(cluster, CommandLine(capsys))
    await create_topic(cluster.connect, "moved", 2, {"retention.ms": 86_400_000})
    await create_topic(cluster.connect, "gone", 1)
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure("/config/changes")
        earlier = set(await zookeeper.children("/config/changes"))

    async def partitions(topic: str) -> list[tuple[list[int], int, list[int]]]:
        (found,) = await kzconsumer.json("topics", "describe", topic)
        return [(each["replicas"], each["leader"], sorted(each["isr"])) for each in found["partitions"]]

    before = await partitions("moved")
    assert before == [([1], 1, [1]), ([2], 2, [2])]

    plan = await kzconsumer("topics", "reassign", "moved:0=2,1", "moved:1=2")
    assert (plan.status, plan.err, "Nothing was changed. Add --execute" in plan.out) == (0, "", True), plan
    assert await partitions("moved") == before
    done = await kzconsumer.json("topics", "reassign", "moved:0=2,1", "moved:1=2", "--execute", "--undo", "undo.json")
    assert (done["executed"], done["pending"]) == (True, [])
    (first, second) = await partitions("moved")
    assert (first[0], first[2], second) == ([2, 1], [1, 2], before[1])
    again = await kzconsumer("topics", "reassign", "--file", "undo.json")
    assert "Add --execute" in again.out, again

    # If the leader did not change, it is not the preferred one; if a version elected a new one, it is made so here.
    if first[1] == 2:
        assert (await kzconsumer("topics", "reassign", "moved:0=1,2", "--execute")).status == 0
        first = (await partitions("moved"))[0]
    preferred = first[0][0]
    assert first[1] != preferred, first
    assert "moved" in (await kzconsumer("topics", "elect-preferred")).out
    done = await kzconsumer.json("topics", "elect-preferred", "moved", "--execute")
    assert [(each["partition"], each["preferred"]) for each in done["partitions"]] == [(0, preferred)]
    assert (await partitions("moved"))[0] == (first[0], preferred, [1, 2])
    assert (await kzconsumer("topics", "elect-preferred")).out == "Every partition is led by its preferred leader.\n"

    words = ("topics", "config", "set", "moved", "max.message.bytes=500", "--unset", "retention.ms")
    assert "Add --execute" in (await kzconsumer(*words)).out
    changed = await kzconsumer(*words, "--execute")
    assert (changed.status, changed.err) == (0, "")
    assert await kzconsumer.json("topics", "config", "get", "moved") == [
        {"topic": "moved", "config": {"max.message.bytes": "500"}}
    ]
    await until(lambda: refusal(cluster, "moved", 2000), KafkaError.MSG_SIZE_TOO_LARGE)
    undo = changed.out.splitlines()[-1].removeprefix("To undo: kzconsumer ").partition(" --zookeeper")[0].split()
    assert (await kzconsumer(*undo)).status == 0
    assert (await kzconsumer.json("topics", "config", "get", "moved"))[0]["config"] == {"retention.ms": "86400000"}
    await until(lambda: refusal(cluster, "moved", 2000), None)

    async with session(cluster.connect) as zookeeper:
        changes = sorted(set(await zookeeper.children("/config/changes")) - earlier)
        assert [(await zookeeper.get(f"/config/changes/{each}")).data for each in changes] == [NOTIFIED[version]] * 2

        await zookeeper.ensure("/consumers/readers/owners/gone")
        await zookeeper.create("/consumers/readers/owners/gone/0", b"readers_x-0", ephemeral=True)
        refused = await kzconsumer("topics", "delete", "gone", "--execute")
        assert (refused.status, refused.out) == (1, "")
        assert "topic gone is being consumed by group readers; stop the members first; nothing was" in refused.err
    assert "Add --execute" in (await kzconsumer("topics", "delete", "gone")).out
    assert (await kzconsumer.json("topics", "delete", "gone", "--execute"))["pending"] == []
    assert "gone" not in [each["topic"] for each in await kzconsumer.json("topics", "list")]
    found = await kzconsumer.json("cluster", "describe")
    assert [found[each] for each in ("deleting", "reassigning", "electing")] == [[], [], []]

    # With a broker stopped: requests that could not be executed are refused.
    cluster.brokers[1].kill()
    await until(lambda: down(cluster), True)
    for command, output in {
        "reassign moved:0=1": "moved-0: broker 1 is not alive; alive are 2",
        "delete moved": "moved: broker 1 is not alive, its replicas there would not be deleted",
    }.items():
        refused = await kzconsumer("topics", *command.split(), "--execute")
        assert (refused.status, output in refused.err) == (1, True), refused


async def play_page(cluster: Cluster, kzconsumer: CommandLine) -> None:
    """The answers printed in docs/topics.md."""
    await create_topic(cluster.connect, "orders", 2)
    await create_topic(cluster.connect, "old", 1)
    for command, answer in printed("docs/topics.md"):
        done = await kzconsumer(*shlex.split(command.replace("zk1:2181", cluster.connect)))
        out = done.out.replace(cluster.connect, "zk1:2181")
        assert (done.err, form(out.splitlines())) == ("", form(answer)), command


def down(cluster: Cluster) -> bool:
    async def look() -> bool:
        async with session(cluster.connect) as zookeeper:
            return await zookeeper.children("/brokers/ids") == ["2"]

    return asyncio.run(look())
