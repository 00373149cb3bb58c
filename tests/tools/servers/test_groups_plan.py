"""`kzconsumer groups plan` on a live group: its prediction is what happens, and it changes nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.readiness import create_topic
from tests.support.members import owners, reader, settings
from tests.support.zookeeper_sessions import session, until

PARTITIONS = 12


def group_file(folder: Path, connect: str, group: str, subscription: str, assignor: str = "range") -> Path:
    file = folder / "group.toml"
    file.write_text(
        f'[zookeeper]\nconnect = "{connect}"\n[group]\nid = "{group}"\nassignor = "{assignor}"\n'
        f'consumer_id = "zz"\n[subscription]\n{subscription}\n'
    )
    return file


async def plan(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kzconsumer", "groups", "plan", "--config", str(file), *words]
    return await anyio.to_thread.run_sync(
        lambda: subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    )


async def plan_json(file: Path, *words: str) -> dict[str, Any]:
    done = await plan(file, *words, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def shares(answer: dict[str, Any], when: str) -> dict[int, str]:
    return {each["partition"]: each[when] for each in answer["partitions"]}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
async def test_the_prediction_is_what_happens(cluster: Cluster, unique: str, tmp_path: Path, assignor: str) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 2 }}", assignor)

    def member(name: str) -> Any:
        return settings(cluster.connect, unique, group={"id": unique, "assignor": assignor, "consumer_id": name})

    async with session(cluster.connect) as zookeeper, reader(member("aa"), {unique: 1}) as first:
        assert len(first.owned) == PARTITIONS
        before = await owners(zookeeper, unique, unique, PARTITIONS)
        foretold = await plan_json(file)
        assert (foretold["as_assigned"], foretold["assignor"]) == (True, assignor)
        assert shares(foretold, "owner") == shares(foretold, "now") == before
        assert [(each["consumer"], each["joins"], each["streams"]) for each in foretold["members"]] == [
            (f"{unique}_aa", False, 1),
            (f"{unique}_zz", True, 2),
        ]
        # The command itself has changed nothing.
        assert await zookeeper.children(f"/consumers/{unique}/ids") == [f"{unique}_aa"]
        assert await owners(zookeeper, unique, unique, PARTITIONS) == before
        async with reader(member("zz"), {unique: 2}) as second:
            await until(lambda: len(first.owned) + len(second.owned) == PARTITIONS and len(second.owned) == 8)
            assert await owners(zookeeper, unique, unique, PARTITIONS) == shares(foretold, "then")
            moved = sum(each["change"] == "moves" for each in foretold["partitions"])
            assert moved == foretold["changes"]["moves"] == 8


async def test_a_group_before_anyone_joins(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, 4)
    file = group_file(tmp_path, cluster.connect, unique, f'include = "{unique}.*"')
    answer = await plan_json(file, "--member", "2", "1")
    assert sorted(each["streams"] for each in answer["members"]) == [1, 2]
    assert answer["changes"] == {"stays": 0, "stream": 0, "moves": 0, "claimed": 4}
    assert (answer["idle_streams"], answer["missing_topics"]) == ([], [])
    empty = await plan_json(file, "--members", "0")
    assert (empty["members"], empty["partitions"]) == ([], [])
    shown = await plan(file, "--members", "3")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Of 4 partitions, 0 would move to another member, 0 to another stream." in shown.stdout.splitlines()
    async with session(cluster.connect) as zookeeper:
        assert await zookeeper.exists(f"/consumers/{unique}") is None


async def test_members_with_another_assignor_are_reported(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 1 }}", "roundrobin")
    async with reader(settings(cluster.connect, unique), {unique: 2}):
        answer = await plan_json(file, "--members", "0")
        assert not answer["as_assigned"]
        shown = await plan(file)
        assert "The present owner is not the one that roundrobin computes" in shown.stdout


async def test_an_unreadable_member(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 1 }}")
    path = f"/consumers/{unique}/ids/{unique}_x"
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/ids")
        await zookeeper.create(path, b"{", ephemeral=True)
        done = await plan(file)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"kzconsumer: {path}: not JSON")
        file.write_text(file.read_text().replace("[subscription]", 'unreadable_members = "ignore"\n[subscription]'))
        done = await plan(file, "-o", "json")
        assert done.returncode == 0
        assert "member registration unreadable, ignored" in done.stderr
        assert [each["joins"] for each in json.loads(done.stdout)["members"]] == [True]


async def test_a_group_without_a_file(cluster: Cluster, unique: str) -> None:
    """Members join as most of those that are there: here originals, whose file nobody has."""
    await create_topic(cluster.connect, unique, 4)
    registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % unique.encode()
    command = [
        sys.executable,
        "-m",
        "kzconsumer",
        "groups",
        "plan",
        unique,
        "--zookeeper",
        cluster.connect,
        "-o",
        "json",
    ]

    async def planned(*words: str) -> subprocess.CompletedProcess[str]:
        return await anyio.to_thread.run_sync(
            lambda: subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=60)
        )

    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/ids")
        nobody = await planned()
        assert (nobody.returncode, "has no members whose subscription" in nobody.stderr) == (1, True)
        await zookeeper.create(f"/consumers/{unique}/ids/a_original", registration, ephemeral=True)
        done = await planned("--members", "1")
        assert (done.returncode, done.stderr) == (0, "")
        answer = json.loads(done.stdout)
        assert answer["assignor"] == "range"
        assert [each["then"] for each in answer["members"]] == [2, 2]
