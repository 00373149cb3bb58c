"""`kzconsumer groups` on live groups: it reports what ZooKeeper and Kafka's own tool have, and changes nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

from kzconsumer.zookeeper.operations import Create, Delete, Operation
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.groups.cluster_access import read_nodes
from tests.support.command_line import CommandLine
from tests.support.extent import only_nightly
from tests.support.members import owners, reader, settings
from tests.support.original import console_consumer
from tests.support.ownership import by_range, watched
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until
from tests.tools.plain.test_group_description import described


class Commands(CommandLine):
    """In the process of members, whose events are on standard error as well."""

    async def json(self, *words: str, status: int = 0) -> Any:
        done = await self(*words, "-o", "json")
        assert done.status == status, done
        return json.loads(done.out)


@pytest.fixture
def kzconsumer(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


async def kafkas_own(servers: Servers, cluster: Cluster, group: str) -> dict[int, tuple[str, str]]:
    """Partition -> stored offset and owning consumer, as `kafka.admin.ConsumerGroupCommand` (1.1.1) prints them."""
    args = ["--zookeeper", cluster.connect, "--describe", "--group", group]
    printed = await servers.tool("1.1.1", "kafka.admin.ConsumerGroupCommand", *args)
    rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
    return {int(number): (offset, consumer) for _, number, offset, _, _, consumer in rows}


async def everything_below(zookeeper: ZooKeeperSession, path: str) -> dict[str, object]:
    """Path -> node, of a node and all below it."""
    found: dict[str, object] = {path: await zookeeper.get(path)}
    for name in await zookeeper.children(path):
        found |= await everything_below(zookeeper, f"{path}/{name}")
    return found


async def member_node(zookeeper: ZooKeeperSession, group: str, consumer: str) -> tuple[datetime, str]:
    """When the registration was made, and its session."""
    stat = (await zookeeper.get(f"/consumers/{group}/ids/{consumer}")).stat
    return datetime.fromtimestamp(stat.ctime / 1000, UTC), hex(stat.ephemeral_owner)


# Members of both kinds: plain/test_group_description.py; a running group beside Kafka's own tool: tests/tools/original/
# test_offset_tools.py; `describe` beside foreign clients: test_figures.py.
@only_nightly
@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_an_original_and_one_of_ours(
    servers: Servers,
    cluster_of: Callable[[str], Cluster],
    unique: str,
    tmp_path: Path,
    version: str,
    kzconsumer: Commands,
) -> None:
    cluster = cluster_of(version)
    await create_topic(cluster.connect, unique, 4)
    ours = settings(cluster.connect, unique, group={"id": unique, "consumer_id": "aa"})
    async with watched(cluster.connect, unique, {unique: 4}) as ownership:
        with console_consumer(
            servers, cluster, unique, unique, tmp_path, consumer="zz", version="0.10.2.2"
        ) as original:
            await ownership.settled(by_range(unique, 4, [original.thread()]), 30)
            alone = await kzconsumer.json("groups", "describe", unique, "--zookeeper", cluster.connect)
            assert [(each["consumer"], each["ours"], each["pattern"]) for each in alone["members"]] == [
                (original.consumer, False, "white_list")
            ]
            assert (alone["health"], [each["owner"] for each in alone["partitions"]]) == (
                "healthy",
                [original.thread()] * 4,
            )
            async with reader(ours, {unique: 3}):
                threads = [f"{unique}_aa-{n}" for n in range(3)] + [original.thread()]
                await ownership.settled(by_range(unique, 4, threads), 30)
                before = await everything_below(ownership.zookeeper, f"/consumers/{unique}")
                found = await kzconsumer.json("groups", "describe", unique, "--zookeeper", cluster.connect)
                assert (found["group"], found["health"], found["unowned"]) == (unique, "healthy", 0)
                since = {each["consumer"]: (each.pop("since"), each.pop("session")) for each in found["members"]}
                assert found["members"] == [
                    {
                        "consumer": f"{unique}_aa",
                        "ours": True,
                        "pattern": "static",
                        "subscription": {unique: 3},
                        "streams": 3,
                        "owns": 3,
                    },
                    {
                        "consumer": original.consumer,
                        "ours": False,
                        "pattern": "white_list",
                        "subscription": {unique: 1},
                        "streams": 1,
                        "owns": 1,
                    },
                ]
                in_zookeeper = await owners(ownership.zookeeper, unique, unique, 4)
                assert {each["partition"]: each["owner"] for each in found["partitions"]} == in_zookeeper
                assert {each["owner_kind"] for each in found["partitions"]} == {"member"}
                wide = (
                    await kzconsumer("groups", "describe", unique, "--zookeeper", cluster.connect, "-o", "wide")
                ).out
                rows = [line.split() for line in wide.splitlines()]
                for consumer, (at, held_by) in since.items():
                    registered = await member_node(ownership.zookeeper, unique, consumer)
                    assert registered == (datetime.fromisoformat(at), held_by)
                    assert [f"{at[:19]}Z", held_by] in [row[-2:] for row in rows if consumer in row]
                for each in found["partitions"]:
                    owned = f"{each['owned_since'][:19]}Z"
                    assert [each["owner"], str(each["partition"]), unique, owned] in [
                        [*row[:2], *row[-2:]] for row in rows
                    ]
                # With brokers of 0.8.2.2 the tool prints no row. By day: tests/tools/original/test_offset_tools.py.
                if version == "3.9.1":
                    assert await kafkas_own(servers, cluster, unique) == {
                        each["partition"]: (
                            "-" if each["stored"] is None else str(each["stored"]),
                            each["owner"].rpartition("-")[0],
                        )
                        for each in found["partitions"]
                    }
                shown = await kzconsumer("groups", "describe", unique, "--zookeeper", cluster.connect)
                assert shown.out.endswith("Healthy: every partition has an owner that is a member.\n")
                assert all(each["consumer"] in shown.out for each in found["members"])
                assert await everything_below(ownership.zookeeper, f"/consumers/{unique}") == before
                (listed,) = [
                    each
                    for each in await kzconsumer.json("groups", "list", "--zookeeper", cluster.connect)
                    if each["group"] == unique
                ]
                names = ("ours", "original", "unreadable", "topics", "owned", "partitions", "not_read")
                assert [listed[name] for name in names] == [1, 1, 0, [unique], 4, 4, ""]
                wide = (await kzconsumer("groups", "list", "--zookeeper", cluster.connect, "-o", "wide")).out
                assert [unique, unique] in [line.split()[-2:] for line in wide.splitlines()]


async def test_more_streams_than_partitions_and_offsets(
    cluster: Cluster, unique: str, tmp_path: Path, kzconsumer: Commands
) -> None:
    """Only what is stored is shown as stored; the group is the one of the file."""
    await create_topic(cluster.connect, unique, 2)
    file = tmp_path / "group.toml"
    file.write_text(f'[zookeeper]\nconnect = "{cluster.connect}"\n[group]\nid = "{unique}"\n')
    async with session(cluster.connect) as zookeeper:
        for number, text in enumerate([b"17", b"-1"]):
            await zookeeper.ensure(f"/consumers/{unique}/offsets/{unique}/{number}")
            await zookeeper.set(f"/consumers/{unique}/offsets/{unique}/{number}", text, -1)
        found = await kzconsumer.json("groups", "describe", "--config", str(file))
        assert (found["health"], {each["id"] for each in found["findings"]}) == ("unhealthy", {"offset_after_log"})
        assert [each["stored"] for each in found["partitions"]] == [17, None]
        shown = (await kzconsumer("groups", "describe", "--config", str(file))).out
        assert "Offsets after the end of a truncated or recreated log" in shown
        assert ["-", "1", "-", unique, "never", "committed"] in [line.split() for line in shown.splitlines()]
        configured = settings(cluster.connect, unique, group={"id": unique, "consumer_id": "me"})
        async with reader(configured, {unique: 4}) as member:
            await until(lambda: len(member.owned) == 2)
            found = await kzconsumer.json("groups", "describe", "--config", str(file))
            assert found["idle_streams"] == [{"thread": f"{unique}_me-{n}", "topic": unique} for n in (2, 3)]
            assert {each["id"] for each in found["findings"]} <= {"offset_after_log"}


async def test_nodes_with_problems(cluster: Cluster, unique: str, kzconsumer: Commands) -> None:
    await create_topic(cluster.connect, unique, 4)
    root = f"/consumers/{unique}"
    async with session(cluster.connect) as other, reader(settings(cluster.connect, unique), {unique: 1}) as member:
        await until(lambda: len(member.owned) == 4)
        consumer = member.consumer.consumer
        await other.create(f"{root}/ids/{unique}_poison", b"t1", ephemeral=True)  # from now on no member rebalances
        for number, text, ephemeral in (
            (0, b"gone_host-1-0", True),
            (1, b"gone_host-1-0", False),
            (2, f"{consumer}-0".encode(), True),
        ):
            path = f"{root}/owners/{unique}/{number}"
            with anyio.fail_after(10):
                while True:
                    await other.multi([Delete(path, -1), Create(path, text, ephemeral=ephemeral)])
                    stat = await other.exists(path)
                    if stat is not None and stat.ephemeral_owner == (other.id if ephemeral else 0):
                        break
        newer = b'{"version":2,"assignor":"range","incarnation":"0x2a"}'
        await other.set(f"{root}/claims/{unique}/3", newer, -1)
        found = await kzconsumer.json("groups", "describe", unique, "--zookeeper", cluster.connect)
        assert [(each["id"], each["path"]) for each in found["findings"]] == [
            ("other_session_owner", f"{root}/owners/{unique}/2"),
            ("persistent_owner", f"{root}/owners/{unique}/1"),
            ("unknown_claim_record", f"{root}/claims/{unique}/3"),
            ("unreadable_registration", f"{root}/ids/{unique}_poison"),
            ("unregistered_owner", f"{root}/owners/{unique}/0"),
        ]
        assert found["health"] == "unhealthy"
        shown = await kzconsumer("groups", "describe", unique, "--zookeeper", cluster.connect)
        assert shown.status == 0
        assert shown.out.splitlines()[-1].startswith("Not healthy: ")
        for path in (f"{root}/owners/{unique}/1", f"{root}/ids/{unique}_poison"):
            assert f"  {path}" in shown.out.splitlines()
        await other.delete(f"{root}/owners/{unique}/1", -1)


async def test_members_that_join_and_leave_are_no_findings(cluster: Cluster, unique: str) -> None:
    """A member and its owner node appear and disappear together; inconsistent readings are repeated."""
    await create_topic(cluster.connect, unique, 1)
    configured = settings(cluster.connect, unique)
    member, owner = f"/consumers/{unique}/ids/{unique}_m", f"/consumers/{unique}/owners/{unique}/0"
    registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static"}' % unique.encode()
    seen = []
    begun, changed = asyncio.Semaphore(0), asyncio.Semaphore(0)
    async with session(cluster.connect) as zookeeper, anyio.create_task_group() as tasks:
        for path in (member, owner):
            await zookeeper.ensure(path.rpartition("/")[0])

        async def come_and_go() -> None:
            """Once while a description is made, which reads the nodes up to five times."""
            text = f"{unique}_m-0".encode()
            come: list[Operation] = [
                Create(member, registration, ephemeral=True),
                Create(owner, text, ephemeral=True),
            ]
            go: list[Operation] = [Delete(member, -1), Delete(owner, -1)]
            for change in itertools.cycle((come, go)):
                await begun.acquire()
                await anyio.sleep(random.uniform(0, 0.02))
                await zookeeper.multi(change)
                changed.release()

        tasks.start_soon(come_and_go)
        for _ in range(60):
            begun.release()
            found = described(await read_nodes(configured, unique))
            assert found.findings == ()
            seen.append(len(found.members))
            await changed.acquire()  # otherwise several could be in one description
        tasks.cancel_scope.cancel()
    assert set(seen) == {0, 1}


async def test_unknown_groups_and_clusters(cluster: Cluster, unique: str, kzconsumer: Commands) -> None:
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}")
    done = await kzconsumer("groups", "describe", unique.upper(), "--zookeeper", cluster.connect)
    assert (done.status, done.out) == (1, "")
    assert done.err == (f"kzconsumer: {cluster.connect}: there is no group {unique.upper()}; did you mean {unique}?\n")
    done = await kzconsumer("groups", "describe", "=", "--zookeeper", cluster.connect)
    assert done.err.endswith("there is no group =; `kzconsumer groups list` lists the groups\n")
    empty = await kzconsumer.json("groups", "describe", unique, "--zookeeper", cluster.connect)
    assert (empty["members"], empty["partitions"], empty["health"]) == ([], [], "healthy")
    elsewhere = f"{cluster.connect}/{unique}"
    for words in (["list"], ["describe", unique]):
        done = await kzconsumer("groups", *words, "--zookeeper", elsewhere)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"kzconsumer: {elsewhere}: no Kafka cluster is registered there")
        assert len(done.err.splitlines()) == 1
