"""Offsets copied from ZooKeeper to the brokers and back, undone, refused; and the output of the commands for both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.cluster import Cluster
from tests.core.servers.test_offset_storage import DUAL, KAFKA, VERSIONS, consume, fill
from tests.support.command_line import CommandLine
from tests.support.consuming import member, stored_offset
from tests.support.kafka_offsets import kafka_offset
from tests.support.zookeeper_sessions import session

ZOOKEEPER = {"storage": "zookeeper"}
TO_KAFKA = ("--from", "zookeeper", "--to", "kafka")
TO_ZOOKEEPER = ("--from", "kafka", "--to", "zookeeper")


@pytest.mark.parametrize("version", VERSIONS)
async def test_there_and_back(
    cluster_of: Callable[[str], Cluster], unique: str, version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = cluster_of(version)
    name = unique.replace(".", "-")
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    await fill(cluster, name)
    assert await consume(cluster, name, 7, ZOOKEEPER) == list(range(7))

    async def both() -> tuple[int | None, int | None]:
        return await kafka_offset(cluster, name, name), await stored_offset(cluster, name, name)

    async def copy(*words: str) -> None:
        done = await kzconsumer("offsets", "copy", name, *words)
        assert done.status == 0, done

    async def shown(storage: str) -> tuple[object, ...]:
        words = (name, "--storage", storage)
        (offsets,) = (await kzconsumer.json("offsets", "show", *words))["partitions"]
        (lag,) = (await kzconsumer.json("lag", *words))["partitions"]
        (described,) = (await kzconsumer.json("groups", "describe", *words))["partitions"]
        assert offsets["stored"] == lag["stored"] == described["stored"]
        assert lag["lag"] == (None if lag["stored"] is None else 30 - lag["stored"])
        return offsets["stored"], offsets["brokers"], offsets["zookeeper"], offsets["epoch"]

    await copy(*TO_KAFKA)
    assert await both() == (None, 7)
    await copy(*TO_KAFKA, "--execute", "--undo", str(tmp_path / "first"))
    assert await both() == (7, 7)
    assert await consume(cluster, name, 5, KAFKA) == list(range(7, 12))
    assert await shown("kafka") == (12, 12, 7, 0)
    assert await shown("both") == (12, 12, 7, 0)
    assert await shown("zookeeper") == (7, None, 7, 0)
    for form, more in (("table", []), ("wide", ["WRITTEN"])):
        table = (await kzconsumer("offsets", "show", name, "--storage", "both", "-o", form)).out.splitlines()
        assert table[2].split() == ["PARTITION", "STORED", "ZOOKEEPER", "BROKERS", "EPOCH", "PLAN", "TOPIC", *more]
        number, *offsets, _, _, topic, written = [*table[3].split(), "-"][:8]
        assert (number, offsets, topic, written[-1]) == ("0", ["12", "7", "12"], name, "Z" if more else "-")

    await copy(*TO_ZOOKEEPER, "--execute", "--undo", str(tmp_path / "second"))
    assert await both() == (12, 12)
    assert await shown("kafka") == (12, 12, 12, 1)
    assert await consume(cluster, name, 2, ZOOKEEPER) == [12, 13]
    assert await consume(cluster, name, 1, DUAL) == [14]
    assert await both() == (15, 15)

    # Before the first copy there was nothing.
    undone = await kzconsumer("offsets", "import", str(tmp_path / "first"), "--execute", "--undo", str(tmp_path / "3"))
    assert undone.status == 0, undone
    assert await both() == (None, 15)
    assert await shown("kafka") == (None, None, 15, 1)
    redone = await kzconsumer("offsets", "import", str(tmp_path / "3"), "--execute", "--undo", str(tmp_path / "4"))
    assert redone.status == 0, redone
    assert await both() == (15, 15)
    assert await consume(cluster, name, 1, KAFKA) == [15]


async def test_copying_is_refused_while_the_group_has_members(
    cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    await fill(cluster, unique)
    assert await consume(cluster, unique, 3, KAFKA) == [0, 1, 2]
    async with session(cluster.connect) as zookeeper:
        await zookeeper.ensure(f"/consumers/{unique}/offsets/{unique}/0")
        await zookeeper.set(f"/consumers/{unique}/offsets/{unique}/0", b"9", -1)
    async with member(cluster, unique, {unique: 1}, offsets=KAFKA):
        for way in (TO_KAFKA, TO_ZOOKEEPER):
            undo = tmp_path / "undo"
            refused = await kzconsumer("offsets", "copy", unique, *way, "--execute", "--undo", str(undo))
            assert (refused.status, "stop it first" in refused.err, undo.exists()) == (1, True, False), refused
    assert await kafka_offset(cluster, unique, unique) == 3
    assert await stored_offset(cluster, unique, unique) == 9


async def test_a_reset_applies_to_members_with_offsets_in_the_brokers_alone(
    cluster: Cluster, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the brokers have expired the offset: reset, then copy. An offset outside the log is clamped."""
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    await fill(cluster, unique)
    assert await consume(cluster, unique, 20, KAFKA) == list(range(20))
    words = ("--to-offset", "5", "--topic", unique, "--execute", "--undo", str(tmp_path / "reset"))
    assert (await kzconsumer("offsets", "reset", unique, *words)).status == 0
    copied = await kzconsumer.json("offsets", "copy", unique, *TO_KAFKA, "--execute", "--undo", str(tmp_path / "copy"))
    (move,) = copied["groups"][0]["partitions"]
    assert (move["old"], move["new"], move["repeated"], move["epoch"]) == (20, 5, 15, 1)
    assert await consume(cluster, unique, 2, KAFKA) == [5, 6]
    async with session(cluster.connect) as zookeeper:
        await zookeeper.set(f"/consumers/{unique}/offsets/{unique}/0", b"99", -1)
    copied = await kzconsumer.json("offsets", "copy", unique, *TO_KAFKA, "--execute", "--undo", str(tmp_path / "end"))
    (move,) = copied["groups"][0]["partitions"]
    assert (move["asked"], move["new"], move["skipped"]) == (99, 30, 23)
    assert await kafka_offset(cluster, unique, unique) == 30
