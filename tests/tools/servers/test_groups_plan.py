"""`kzconsumer groups plan` on a live group: its prediction is what happens, and it changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine, Done
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


class Planning:
    """`kzconsumer groups plan` with a file, in the process of members, whose events are on standard error as well."""

    def __init__(self, kzconsumer: CommandLine) -> None:
        self._kzconsumer = kzconsumer

    async def __call__(self, file: Path, *words: str) -> Done:
        return await self._kzconsumer("groups", "plan", "--config", str(file), *words)

    async def json(self, file: Path, *words: str) -> Any:
        done = await self(file, *words, "-o", "json")
        assert done.status == 0, done
        return json.loads(done.out)


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Planning:
    return Planning(CommandLine(capsys))


def shares(answer: dict[str, Any], when: str) -> dict[int, str]:
    return {each["partition"]: each[when] for each in answer["partitions"]}


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky"])
async def test_the_prediction_is_what_happens(
    cluster: Cluster, unique: str, tmp_path: Path, plan: Planning, assignor: str
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 2 }}", assignor)

    def member(name: str) -> Any:
        return settings(cluster.connect, unique, group={"id": unique, "assignor": assignor, "consumer_id": name})

    async with session(cluster.connect) as zookeeper, reader(member("aa"), {unique: 1}) as first:
        assert len(first.owned) == PARTITIONS
        before = await owners(zookeeper, unique, unique, PARTITIONS)
        foretold = await plan.json(file)
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


async def test_a_group_before_anyone_joins(cluster: Cluster, unique: str, tmp_path: Path, plan: Planning) -> None:
    await create_topic(cluster.connect, unique, 4)
    file = group_file(tmp_path, cluster.connect, unique, f'include = "{unique}.*"')
    answer = await plan.json(file, "--member", "2", "1")
    assert sorted(each["streams"] for each in answer["members"]) == [1, 2]
    assert answer["changes"] == {"stays": 0, "stream": 0, "moves": 0, "claimed": 4}
    assert (answer["idle_streams"], answer["missing_topics"]) == ([], [])
    empty = await plan.json(file, "--members", "0")
    assert (empty["members"], empty["partitions"]) == ([], [])
    shown = await plan(file, "--members", "3")
    assert (shown.status, shown.err) == (0, "")
    assert "Of 4 partitions, 0 would move to another member, 0 to another stream." in shown.out.splitlines()
    async with session(cluster.connect) as zookeeper:
        assert await zookeeper.exists(f"/consumers/{unique}") is None


async def test_members_with_another_assignor_are_reported(
    cluster: Cluster, unique: str, tmp_path: Path, plan: Planning
) -> None:
    await create_topic(cluster.connect, unique, PARTITIONS)
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 1 }}", "roundrobin")
    async with reader(settings(cluster.connect, unique), {unique: 2}):
        answer = await plan.json(file, "--members", "0")
        assert not answer["as_assigned"]
        shown = await plan(file)
        assert "The present owner is not the one that roundrobin computes" in shown.out


async def test_an_unreadable_member(cluster: Cluster, unique: str, tmp_path: Path, plan: Planning) -> None:
    file = group_file(tmp_path, cluster.connect, unique, f"topics = {{ {unique} = 1 }}")
    path = f"/consumers/{unique}/ids/{unique}_x"
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/ids")
        await zookeeper.create(path, b"{", ephemeral=True)
        done = await plan(file)
        assert (done.status, done.out) == (1, "")
        assert done.err.startswith(f"kzconsumer: {path}: not JSON")
        file.write_text(file.read_text().replace("[subscription]", 'unreadable_members = "ignore"\n[subscription]'))
        done = await plan(file, "-o", "json")
        assert done.status == 0
        assert "member registration unreadable, ignored" in done.err
        assert [each["joins"] for each in json.loads(done.out)["members"]] == [True]


async def test_a_group_without_a_file(cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Members join as most of those that are there: here originals, whose file nobody has."""
    await create_topic(cluster.connect, unique, 4)
    registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1"}' % unique.encode()
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/ids")
        nobody = await kzconsumer("groups", "plan", unique)
        assert (nobody.status, "has no members, so" in nobody.err) == (1, True)
        await zookeeper.create(f"/consumers/{unique}/ids/a_original", registration, ephemeral=True)
        answer = await kzconsumer.json("groups", "plan", unique, "--members", "1")
        assert answer["assignor"] == "range"
        assert [each["then"] for each in answer["members"]] == [2, 2]
