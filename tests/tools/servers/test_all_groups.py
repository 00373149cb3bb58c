"""`groups list` and `lag --all`: every group, also one that may not be read, and many that were left behind."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from kzconsumer.registry import cluster as short_sessions
from kzconsumer.settings.settings import Settings
from kzconsumer.zookeeper.operations import Create
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_tools.exporter.exporter import Exporter
from kzconsumer_tools.groups.group_nodes import GroupNodes
from kzconsumer_tools.groups.group_reader import nodes_of
from tests.support.command_line import CommandLine
from tests.support.extent import extent, only_nightly
from tests.support.producing import Sent, produce
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import session, until

GROUPS = extent(400, 10_000)
PAUSE = extent(0.3, 0.0)
"""Seconds by which ZooKeeper answers for a group later, so that few groups take longer than the limit."""
MANY = 10_000


async def offset(zookeeper: ZooKeeperSession, group: str, topic: str, data: bytes) -> None:
    await zookeeper.ensure(f"/consumers/{group}/offsets/{topic}/0")
    await zookeeper.set(f"/consumers/{group}/offsets/{topic}/0", data, -1)


async def test_every_group_is_listed_with_its_lag_and_its_last_commit(
    cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_topic(cluster.connect, unique, 1)
    produce(cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"x", timestamp=n) for n in range(10)])
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect, "--include", f"{unique}-.*")
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    digest = {"username": "other", "password_file": str(tmp_path / "password")}
    other = {"connect": cluster.connect, "digest": digest, "acl": "creator-only"}
    owner = Settings.from_dict({"zookeeper": other, "group": {"id": "unused"}})
    async with session(cluster.connect) as zookeeper, short_sessions.open_session(owner.zookeeper) as of_another:
        for name, data in (("late", b"3"), ("done", b"10"), ("odd", b"x"), ("beyond", b"99")):
            await offset(zookeeper, f"{unique}-{name}", unique, data)
        await offset(zookeeper, f"{unique}-gone", f"{unique}-deleted", b"3")
        registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static"}' % unique.encode()
        await zookeeper.ensure(f"/consumers/{unique}-done/ids")
        await zookeeper.create(f"/consumers/{unique}-done/ids/m", registration, ephemeral=True)
        await of_another.ensure(f"/consumers/{unique}-closed/ids")
        rows = {each["group"].removeprefix(f"{unique}-"): each for each in await kzconsumer.json("groups", "list")}
        assert {name: (row["lag"], row["lag_at_least"], row["unknown"]) for name, row in rows.items()} == {
            "late": (7, 7, {}),
            "done": (0, 0, {}),
            "odd": (None, 0, {"offset unreadable": 1}),
            "beyond": (None, 0, {"offset after the log's end": 1}),
            "gone": (0, 0, {}),
            "closed": (None, 0, {}),
        }
        assert "not permitted" in rows["closed"]["not_read"]
        assert rows["gone"]["gone"] == 1
        assert all(row["last_commit"] for name, row in rows.items() if name != "closed")
        worst = [each["group"].removeprefix(f"{unique}-") for each in await kzconsumer.json("lag", "--all", status=3)]
        assert worst[:2] == ["closed", "late"]
        dead = [each["group"] for each in await kzconsumer.json("lag", "--all", "--without-members", status=3)]
        assert f"{unique}-done" not in dead
        assert len(dead) == 5
        shown = (await kzconsumer("lag", "--all", "--exclude", ".*-closed")).out
        assert "closed" not in shown


async def test_the_age_is_known_of_many_groups_that_stopped_at_different_records(
    cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each asks for another record of one partition; the oldest comes first."""
    await create_topic(cluster.connect, unique, 1)
    produce(
        cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"x", timestamp=1000 * (n + 1)) for n in range(30)]
    )
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect, "--include", f"{unique}-.*")
    async with session(cluster.connect) as zookeeper:
        for number in range(30):
            await offset(zookeeper, f"{unique}-{number:02}", unique, b"%d" % number)
    rows = await kzconsumer.json("lag", "--all")
    assert [each["group"] for each in rows] == [f"{unique}-{number:02}" for number in range(30)]
    ages = [each["seconds"] for each in rows]
    assert None not in ages
    assert len(set(ages)) == 30


async def test_many_groups_are_read_in_pages(
    cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than can be read in the limit for one answer, which each page has for itself."""

    async def slowly(*asked: Any) -> GroupNodes:
        await anyio.sleep(PAUSE)
        return await nodes_of(*asked)

    connect = f"{cluster.connect}/{unique}"
    async with session(connect) as zookeeper:
        for path in ("/brokers/ids", "/brokers/topics", "/consumers"):
            await zookeeper.ensure(path)
        for first in range(0, GROUPS, 100):
            names = [f"/consumers/console-consumer-{n}" for n in range(first, first + 100)]
            await zookeeper.multi([Create(f"{name}{at}", b"") for name in names for at in ("", "/ids", "/owners")])
    monkeypatch.setattr(short_sessions, "LIMIT", 2.0)
    monkeypatch.setattr("kzconsumer_tools.offsets.all_groups.nodes_of", slowly)
    kzconsumer = CommandLine(capsys, "--zookeeper", connect)
    assert len(await kzconsumer.json("groups", "list")) == GROUPS
    monkeypatch.setattr("kzconsumer_tools.offsets.all_groups.LIMIT", 0.001)
    slow = await kzconsumer("groups", "list")
    assert slow.status == 1
    assert "ZooKeeper answers, but not to all requests within" in slow.err


@only_nightly
@pytest.mark.timeout(1200)
async def test_ten_thousand_groups_with_offsets_are_listed(servers: Servers, unique: str) -> None:
    """What console consumers leave behind: ten nodes each, which the exporter watches. The times are printed."""
    server = servers.own_zookeeper(f"zookeeper-{unique}", heap="512m")
    cluster = servers.cluster(unique, "1.1.1", zookeeper=server)
    await create_topic(cluster.connect, unique, 4)
    records = [Sent(n % 4, None, b"x") for n in range(160)]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, records)
    async with session(cluster.connect) as zookeeper:
        for first in range(0, MANY, 50):
            made: list[Create] = []
            for number in range(first, first + 50):
                root = f"/consumers/console-consumer-{number}"
                above = ("", "/ids", "/owners", f"/owners/{unique}", "/offsets", f"/offsets/{unique}")
                made += [Create(root + path, b"") for path in above]
                made += [Create(f"{root}/offsets/{unique}/{n}", b"%d" % (number % 40)) for n in range(4)]
            await zookeeper.multi(made)
    for words in (("groups", "list"), ("lag", "--all")):
        began = time.monotonic()
        command = [sys.executable, "-m", "kzconsumer", *words, "--zookeeper", cluster.connect, "-o", "json"]
        listed = json.loads((await anyio.run_process(command)).stdout)
        print(f"{' '.join(words)}: {time.monotonic() - began:.1f} s")
        assert (len(listed), {each["lag"] is None for each in listed}) == (MANY, {False})
    zookeeper_settings = {"connect": cluster.connect, "session_timeout": "6s"}
    settings = Settings.from_dict({"zookeeper": zookeeper_settings, "group": {"id": "unused"}})
    exporter = Exporter(settings, "c", 1.0, 300.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(exporter.run)
        await until(lambda: exporter.present is not None, 300)
        once = exporter.present
        await until(lambda: exporter.present not in (None, once), 60)
        second = exporter.present
        tasks.cancel_scope.cancel()
    assert once is not None
    assert second is not None
    print(f"exporter: {once.took:.1f} s, then {second.took:.1f} s")
    assert (len(second.groups), second.took < once.took / 5) == (MANY, True), "in one session"


async def test_top_shows_a_group_without_a_daemon(
    cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await create_topic(cluster.connect, unique, 1)
    produce(cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"x")] * 10)
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect, "--once")
    async with session(cluster.connect) as zookeeper:
        await offset(zookeeper, unique, unique, b"3")
        left = await kzconsumer("top", "--of", unique)
        assert left.status == 3
        assert "no members, and records are left to read" in left.out
        assert "lag 7 " in left.out
        await offset(zookeeper, unique, unique, b"10")
        assert (await kzconsumer("top", "--of", unique)).status == 0
        missing = await kzconsumer("top", "--of", f"{unique}-none")
        assert (missing.status, "there is no group" in missing.out) == (3, True)
