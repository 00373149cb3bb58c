"""`kzconsumer offsets` and the newer verbs of `groups` on a real cluster: what they do, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import anyio
import anyio.to_thread
import pytest

from kzconsumer.errors import GroupInUseError, NotDoneError
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import ClaimRecord, decode_claim_record, encode_claim_record
from kzconsumer.registry.nodes import decode_topic_id
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.sections import BrokersSettings, ZooKeeperSettings
from kzconsumer.zookeeper.operations import Operation
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_tools.commands.cluster_option import ClusterOption
from kzconsumer_tools.groups.group_reader import NodeTopicsRead, apply_changes, nodes_of, tree_of
from kzconsumer_tools.node_changes import ChangeProgress
from kzconsumer_tools.offsets.offset_changes import OffsetChange
from kzconsumer_tools.offsets.prepare import OffsetChanges, nodes_at
from tests.support.command_line import CommandLine
from tests.support.members import reader, settings
from tests.support.plans import plan_of
from tests.support.proxy import FaultProxy
from tests.support.zookeeper_sessions import session, until


async def put(zookeeper: ZooKeeperSession, path: str, data: bytes) -> None:
    await zookeeper.ensure(path)
    await zookeeper.set(path, data, -1)


async def store(zookeeper: ZooKeeperSession, group: str, topic: str, offsets: Mapping[int, bytes]) -> None:
    for number, data in offsets.items():
        await put(zookeeper, f"/consumers/{group}/offsets/{topic}/{number}", data)


async def topic_in_files(zookeeper: ZooKeeperSession, topic: str) -> str:
    node = await zookeeper.get(f"/brokers/topics/{topic}")
    return decode_topic_id(node.data) or f"{node.stat.czxid:#x}"


async def contents(zookeeper: ZooKeeperSession, path: str) -> dict[str, bytes]:
    return {path: node.data for path, node in (await tree_of(zookeeper, path)).items()}


async def offsets(zookeeper: ZooKeeperSession, group: str, topic: str) -> dict[int, bytes]:
    found = await contents(zookeeper, f"/consumers/{group}/offsets/{topic}")
    return {int(path.rpartition("/")[2]): data for path, data in found.items() if path.count("/") == 5}


def planned(first: int, until: int, epoch: int = 0, incarnation: str = "0x2a") -> ClaimRecord:
    others = {"isolation": "read_uncommitted", "fingerprint": "parquet", "incarnation": incarnation}
    plan = plan_of(first, until, epoch=epoch, **others)
    return ClaimRecord(1, "range", incarnation, epoch, "parquet", plan)


@pytest.mark.parametrize(
    ("words", "new"),
    [
        (["--to-earliest"], [0, 0, 0, 0]),
        (["--to-latest"], [10, 10, 10, 10]),
        (["--to-current"], [3, 10, 0, 10]),
        (["--to-offset", "7"], [7, 7, 7, 7]),
        (["--to-offset", "70"], [10, 10, 10, 10]),
        (["--to-datetime", "2026-01-01T00:00:00.000"], [5, 5, 5, 5]),
        (["--to-datetime", "2026-01-01T01:00:02+01:00"], [7, 7, 7, 7]),
        (["--to-datetime", "2030-01-01T00:00:00Z"], [10, 10, 10, 10]),
        (["--by-duration", "P0DT1S"], [10, 10, 10, 10]),
        (["--by-duration", "P{days}D"], [0, 0, 0, 0]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each[0], str) else None,
)
async def test_the_targets_of_a_reset(
    filled: tuple[Cluster, str],
    kzconsumer: CommandLine,
    zookeeper: ZooKeeperSession,
    unique: str,
    words: list[str],
    new: list[int],
) -> None:
    """Stored are: an offset, one beyond the log, an unreadable one, none. Without --execute nothing changes."""
    topic = filled[1]
    await store(zookeeper, unique, topic, {0: b"3", 1: b"5000", 2: b"0"})
    before = await contents(zookeeper, f"/consumers/{unique}")
    days = (datetime.now(UTC) - datetime(2025, 1, 1, tzinfo=UTC)).days
    chosen = [word.format(days=days) for word in words]
    answer = await kzconsumer.json("offsets", "reset", unique, *chosen, "--all-topics")
    (group,) = answer["groups"]
    assert (answer["executed"], answer["undo"], group["in_use"]) == (False, None, None)
    assert [each["old"] for each in group["partitions"]] == [3, 5000, 0, None]
    assert [each["new"] for each in group["partitions"]] == new
    assert [(each["log_start"], each["log_end"]) for each in group["partitions"]] == [(0, 10)] * 4
    assert await contents(zookeeper, f"/consumers/{unique}") == before


async def test_a_reset_and_its_undo(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str, folder: Path
) -> None:
    """Exactly the selected partitions; the undo restores all of them byte for byte, including invalid and missing
    nodes.
    """
    topic = filled[1]
    was = {0: b"3", 1: b"007", 2: b"\xffnonsense"}
    await store(zookeeper, unique, topic, was)
    await put(zookeeper, f"/consumers/{unique}/claims/{topic}/1", encode_claim_record(ClaimRecord(1, "range", "0x2a")))
    shown = await kzconsumer("offsets", "reset", unique, "--to-offset", "70", "--topic", f"{topic}:1,2,3", "--execute")
    assert shown.status == 0, shown
    assert sum(line.startswith(f"{topic} ") for line in shown.out.splitlines()) == 3
    (undo,) = folder.iterdir()
    assert shown.out.endswith(f"offsets import {undo.name} --execute --zookeeper {filled[0].connect}\n")
    assert await offsets(zookeeper, unique, topic) == {0: b"3", 1: b"10", 2: b"10", 3: b"10"}
    record = await zookeeper.get(f"/consumers/{unique}/claims/{topic}/1")
    created = (await zookeeper.get(f"/brokers/topics/{topic}")).stat.czxid
    assert decode_claim_record(record.data) == ClaimRecord(1, "range", f"{created:#x}", epoch=1)
    again = await kzconsumer.json("offsets", "reset", unique, "--to-latest", "--topic", f"{topic}:1", "--execute")
    assert (again["executed"], again["groups"][0]["partitions"][0]["changes"]) == (False, False)

    undone = await kzconsumer("offsets", "import", undo.name, "--execute")
    assert undone.status == 0, undone
    assert await offsets(zookeeper, unique, topic) == was
    record = await zookeeper.get(f"/consumers/{unique}/claims/{topic}/1")
    assert decode_claim_record(record.data).epoch == 2  # never back: the ranges of epoch 1 remain those of epoch 1


async def test_shifts(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    topic = filled[1]
    await store(zookeeper, unique, topic, {0: b"3", 1: b"9"})
    partitions = ["--topic", f"{topic}:0", "--topic", f"{topic}:1"]
    for by, new in ((2, [5, 10]), (-4, [0, 5])):
        answer = await kzconsumer.json("offsets", "reset", unique, "--shift-by", str(by), *partitions)
        assert [each["new"] for each in answer["groups"][0]["partitions"]] == new
    refused = await kzconsumer("offsets", "reset", unique, "--shift-by", "1", "--all-topics")
    assert (refused.status, refused.out) == (1, "")
    assert "offset-commands-2 has no stored offset to shift; nothing was changed" in refused.err
    for scope, output in ((f"{topic}:4", "has no partition 4 (it has 4)"), ("nowhere", "there is no topic nowhere")):
        refused = await kzconsumer("offsets", "reset", unique, "--to-latest", "--topic", scope)
        assert (refused.status, output in refused.err) == (1, True)


async def test_a_replayable_sink_needs_confirmation(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    """Below what it has published or planned, --republish is required; forwards not; plans are cleared either way."""
    topic = filled[1]
    claims = f"/consumers/{unique}/claims/{topic}"
    await store(zookeeper, unique, topic, {0: b"3", 1: b"3"})
    record = planned(3, 6, incarnation=f"{(await zookeeper.get(paths.topic(topic))).stat.czxid:#x}")
    for number in range(2):
        await put(zookeeper, f"{claims}/{number}", encode_claim_record(record))
    before = await contents(zookeeper, f"/consumers/{unique}")
    for words in (["--to-offset", "5"], ["--to-current"]):
        refused = await kzconsumer("offsets", "reset", unique, *words, "--topic", f"{topic}:0,1", "--execute")
        assert (refused.status, refused.out) == (1, "")
        assert f"in {topic}-0, {topic}-1 would be consumed again" in refused.err
        assert "use --republish if that is meant" in refused.err
    assert await contents(zookeeper, f"/consumers/{unique}") == before
    done = await kzconsumer("offsets", "reset", unique, "--to-offset", "6", "--topic", f"{topic}:0", "--execute")
    assert done.status == 0, done
    assert "plan 3-6 cleared" in done.out
    words = ["--to-current", "--topic", f"{topic}:1", "--execute", "--republish"]
    answer = await kzconsumer.json("offsets", "reset", unique, *words)
    (move,) = answer["groups"][0]["partitions"]
    assert (move["new"], move["plan"], move["republished"], move["epoch"]) == (3, [3, 6], 3, 1)
    for number in range(2):
        record = decode_claim_record((await zookeeper.get(f"{claims}/{number}")).data)
        assert (record.plan, record.epoch, record.fingerprint) == (None, 1, "parquet")


async def test_a_live_group_is_not_changed(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str, folder: Path
) -> None:
    """Every change of its nodes is refused and leaves no file; `clean` removes only what nobody can own."""
    cluster, topic = filled
    other = f"{unique}-other"
    await store(zookeeper, unique, topic, dict.fromkeys(range(4), b"3"))  # so that the member stores nothing
    await store(zookeeper, unique, "gone", {0: b"3"})
    await store(zookeeper, other, topic, {0: b"4"})
    path = f"/consumers/{unique}/offsets/{topic}/0"
    (folder / "offsets").write_text(f"{path}:5\n")
    (folder / "nodes").write_text(json.dumps({"path": f"{path}9", "data": "5"}) + "\n")
    configured = settings(cluster.connect, unique, offsets={"commit_interval": "1h"})
    async with reader(configured, {topic: 1}) as member:
        await until(lambda: len(member.owned) == 4)
        before = await contents(zookeeper, f"/consumers/{unique}")
        for words in (
            ["offsets", "reset", unique, "--to-earliest", "--all-topics"],
            ["offsets", "reset", unique, "--from-file", "offsets"],
            ["offsets", "import", "offsets"],
            ["offsets", "clone", other, unique],
            ["groups", "delete", unique],
            ["groups", "delete", unique, "--topic", "gone"],
            ["groups", "restore", "nodes"],
        ):
            plan = await kzconsumer(*words)
            assert plan.status == 0, plan
            output = f"The group has 1 member ({member.consumer.consumer}): stop it first."
            assert output in " ".join(plan.out.split())
            refused = await kzconsumer(*words, "--execute")
            assert (refused.status, refused.out) == (1, "")
            output = f"group {unique} has 1 member ({member.consumer.consumer}): stop it first; nothing was changed\n"
            assert refused.err == f"kzconsumer: {output}"
        cleaned = await kzconsumer.json("groups", "clean", unique, "--execute")
        gone = f"/consumers/{unique}/offsets/gone/0"
        assert (cleaned["executed"], [each["path"] for each in cleaned["nodes"]]) == (True, [gone])
        del before[gone]
        assert await contents(zookeeper, f"/consumers/{unique}") == before
    assert sorted(each.name for each in folder.iterdir()) == ["nodes", "offsets", cleaned["undo"]]


@pytest.mark.parametrize("what", ["member", "owner", "offset"])
async def test_changes_between_plan_and_execution(
    filled: tuple[Cluster, str], zookeeper: ZooKeeperSession, unique: str, what: str
) -> None:
    """The transaction is refused after a member, an owner or another offset appeared since it was read."""
    cluster, topic = filled
    root = f"/consumers/{unique}"
    await store(zookeeper, unique, topic, {0: b"3", 1: b"3"})
    await zookeeper.ensure(f"{root}/owners/{topic}")
    target = ClusterOption(ZooKeeperSettings(connect=cluster.connect), BrokersSettings(), unique, "test")
    async with target.access() as access:
        nodes = await access.nodes(unique)
        moves = [OffsetChange(nodes_at(nodes, TopicPartition(topic, number)), b"9") for number in range(3)]
        match what:
            case "member":
                await zookeeper.ensure(f"{root}/ids")
                await zookeeper.create(f"{root}/ids/{unique}_m", b"{}", ephemeral=True)
            case "owner":
                await zookeeper.create(f"{root}/owners/{topic}/2", b"m-0", ephemeral=True)
            case "offset":
                await zookeeper.set(f"{root}/offsets/{topic}/1", b"4", -1)
        before = await contents(zookeeper, root)
        with pytest.raises(NotDoneError if what == "offset" else GroupInUseError):
            await OffsetChanges(nodes, moves).apply(access, ChangeProgress("partition"))
    assert await contents(zookeeper, root) == before
    assert (await zookeeper.get(f"{root}/offsets/{topic}/0")).data == b"3"


async def test_a_reply_that_is_lost(zookeeper: ZooKeeperSession, cluster: Cluster, unique: str) -> None:
    """The nodes show that the transaction was executed: it is neither repeated nor reported as refused."""
    await store(zookeeper, unique, "t", {0: b"3", 1: b"3"})
    servers, _, chroot = cluster.connect.partition("/")
    host, _, port = servers.partition(":")
    group = GroupPaths(unique)
    # The session is long, so that the next reply is the transaction's.
    async with FaultProxy(host, int(port)) as proxy, session(f"{proxy.connect}/{chroot}", 40) as cut:
        nodes = await nodes_of(cut, NodeTopicsRead(cut), unique)
        moves = [OffsetChange(nodes_at(nodes, TopicPartition("t", number)), b"9") for number in range(2)]
        multi = cut.multi

        async def without_reply(operations: Sequence[Operation]) -> object:
            proxy.cut_reply_after = 0
            return await multi(operations)

        changes = [move.changed(group) for move in moves]
        with mock.patch.object(cut, "multi", without_reply):
            await apply_changes(cut, group, changes, ChangeProgress("partition"), with_members=True)
        assert proxy.accepted == 2
    stats = [(await zookeeper.get(group.offset(TopicPartition("t", number)))) for number in range(2)]
    assert [(each.data, each.stat.version) for each in stats] == [(b"9", 2)] * 2


async def test_a_group_of_many_partitions(
    kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str, folder: Path
) -> None:
    """More than one transaction can hold, claim records with plans among them; no broker is contacted for nodes."""
    record = encode_claim_record(planned(3, 6))
    for kind, data in (("offsets", b"3"), ("claims", record)):
        await zookeeper.ensure(f"/consumers/{unique}/{kind}/many")
        async with anyio.create_task_group() as tasks:
            for number in range(400):
                tasks.start_soon(zookeeper.create, f"/consumers/{unique}/{kind}/many/{number}", data)
    lines = [json.dumps({"path": f"/consumers/{unique}/offsets/many/{n}", "data": "9"}) for n in range(700)]
    (folder / "nodes").write_text("\n".join(lines))
    done = await kzconsumer("offsets", "import", "nodes", "--execute", "--undo", "undo")
    assert done.status == 0, done.err
    assert await offsets(zookeeper, unique, "many") == dict.fromkeys(range(700), b"9")
    undone = await kzconsumer("offsets", "import", "undo", "--execute", "--republish")
    assert undone.status == 0, undone.err
    assert await offsets(zookeeper, unique, "many") == dict.fromkeys(range(400), b"3")
    node = await zookeeper.get(f"/consumers/{unique}/claims/many/399")
    assert decode_claim_record(node.data) == ClaimRecord(1, "range", "0x2a", 2, "parquet")


async def test_export_import_and_clone(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str, folder: Path
) -> None:
    topic = filled[1]
    await store(zookeeper, unique, topic, {0: b"3", 1: b"9", 2: b"-1"})
    await store(zookeeper, unique, "gone", {0: b"8"})
    exported = await kzconsumer("offsets", "export", unique, "--topic", topic)
    root = f"/consumers/{unique}/offsets/{topic}"
    of = await topic_in_files(zookeeper, topic)
    assert (exported.status, exported.out) == (0, f"{root}/0:3:{of}\n{root}/1:9:{of}\n{root}/2:-1\n")
    csv = await kzconsumer("offsets", "export", unique, "--format", "csv", "--output-file", "csv", "--topic", topic)
    assert (csv.status, (folder / "csv").read_text()) == (0, f"{topic},0,3\n{topic},1,9\n")
    twice = await kzconsumer("offsets", "export", unique, "--output-file", "csv")
    assert (twice.status, "csv: cannot be written (File exists)" in twice.err) == (1, True)

    other = f"{unique}-other"
    unnamed = await kzconsumer("offsets", "import", "csv", "--group", other, "--execute")
    assert unnamed.status == 0, unnamed
    assert await offsets(zookeeper, other, topic) == {0: b"3", 1: b"9"}
    await store(zookeeper, unique, topic, {1: b"90"})
    cloned = await kzconsumer.json("offsets", "clone", unique, other, "--execute")
    assert [
        (each["partition"], each["old"], each["new"], each["asked"]) for each in cloned["groups"][0]["partitions"]
    ] == [
        (0, 3, 3, None),
        (1, 9, 10, 90),
    ]
    assert await offsets(zookeeper, other, topic) == {0: b"3", 1: b"10"}
    assert sorted(await zookeeper.children(f"/consumers/{other}/offsets")) == [topic]

    shown = await kzconsumer.json("offsets", "show", unique, "--topic", f"{topic}:0,2")
    assert [(each["partition"], each["stored"], each["epoch"]) for each in shown["partitions"]] == [
        (0, 3, None),
        (2, None, None),
    ]
    written = datetime.fromisoformat(shown["partitions"][0]["written"])
    assert abs((datetime.now(UTC) - written).total_seconds()) < 300
    nobody = await kzconsumer("offsets", "clone", unique, other, "--topic", "gone")
    assert (nobody.status, "has no stored offset of a chosen partition that exists" in nobody.err) == (1, True)


async def test_nodes_of_kafka_0_7_are_shown_and_exported_and_never_written(
    cluster: Cluster, kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str, folder: Path
) -> None:
    root = f"/consumers/{unique}/offsets/old"
    for leaf, data in (("10-0", b"700"), ("2-0", b"7"), ("2-1", b"x"), ("3", b"5")):
        await put(zookeeper, f"{root}/{leaf}", data)
    shown = await kzconsumer.json("offsets", "show", unique)
    assert [(each["partition"], each["stored"]) for each in shown["partitions"]] == [(3, 5)]
    left = [(each["broker"], each["partition"], each["stored"]) for each in shown["left_by_0_7"]]
    assert left == [(2, 0, 7), (2, 1, None), (10, 0, 700)]
    table = await kzconsumer("offsets", "show", unique)
    assert "left by a consumer of Kafka 0.7, unused:" in table.out
    exported = await kzconsumer("offsets", "export", unique, "--output-file", "all")
    assert exported.status == 0, exported
    assert (folder / "all").read_text() == f"{root}/3:5\n{root}/2-0:7\n{root}/2-1:x\n{root}/10-0:700\n"
    csv = await kzconsumer("offsets", "export", unique, "--format", "csv")
    assert (csv.status, "--format nodes also writes invalid nodes" in csv.err) == (1, True)
    before = await contents(zookeeper, root)
    refused = await kzconsumer("offsets", "import", "all", "--execute")
    assert (refused.status, f"{root}/2-0 is an offset of Kafka 0.7" in refused.err) == (1, True)
    assert await contents(zookeeper, root) == before


async def test_delete_and_restore(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    topic = filled[1]
    root = f"/consumers/{unique}"
    await store(zookeeper, unique, topic, {0: b"3", 1: b"\xff"})
    await store(zookeeper, unique, "gone", {0: b"8"})
    await put(zookeeper, f"{root}/claims/{topic}/0", encode_claim_record(planned(3, 6, epoch=2)))
    await zookeeper.ensure(f"{root}/owners/{topic}")
    before = await contents(zookeeper, root)
    for words, left in (
        (["--topic", topic], [root, f"{root}/claims", f"{root}/offsets", f"{root}/offsets/gone"]),
        ([], []),
    ):
        planned_only = await kzconsumer("groups", "delete", unique, *words)
        assert planned_only.out.endswith(
            "Nothing was changed. Add --execute to do it; an undo file is written first.\n"
        )
        assert await contents(zookeeper, root) == before
        answer = await kzconsumer.json("groups", "delete", unique, *words, "--execute")
        after = await contents(zookeeper, root)
        assert set(left) <= set(after)
        assert not [path for path in after if f"/{topic}" in path]
        if not words:
            assert after == {}
        restored = await kzconsumer("groups", "restore", answer["undo"], "--execute")
        assert restored.status == 0, restored
        assert await contents(zookeeper, root) == before
    await zookeeper.set(f"{root}/offsets/{topic}/0", b"4", -1)
    refused = await kzconsumer("groups", "restore", answer["undo"], "--execute")
    assert (refused.status, f"{root}/offsets/{topic}/0 has other content now" in refused.err) == (1, True)


async def test_clean_and_restore(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    """Nodes without a session are deleted, even beside a live member, and so are offsets of deleted topics."""
    cluster, topic = filled
    root = f"/consumers/{unique}"
    await store(zookeeper, unique, "gone", {0: b"8"})
    await put(zookeeper, f"{root}/owners/{topic}/2", b"dead-0")
    async with reader(settings(cluster.connect, unique), {topic: 1}) as member:
        await until(lambda: len(member.owned) == 3)
        verified = await kzconsumer.json("groups", "verify", unique, status=3)
        assert [(each["id"], each["path"]) for each in verified["findings"]] == [
            ("unregistered_owner", f"{root}/owners/{topic}/2")
        ]
        answer = await kzconsumer.json("groups", "clean", unique, "--execute")
        assert [(each["path"], each["old"]) for each in answer["nodes"]] == [
            (f"{root}/owners/{topic}/2", "dead-0"),
            (f"{root}/offsets/gone/0", "8"),
        ]
        await until(lambda: len(member.owned) == 4, 20)
        assert (await kzconsumer.json("groups", "verify", unique))["rebalanced"]
    await store(zookeeper, unique, "gone", {0: b"8"})
    before = await contents(zookeeper, root)
    answer = await kzconsumer.json("groups", "clean", unique, "--execute")
    assert [each["path"] for each in answer["nodes"]] == [f"{root}/offsets/gone/0"]
    assert set(before) - set(await contents(zookeeper, root)) == {f"{root}/offsets/gone/0"}
    restored = await kzconsumer("groups", "restore", answer["undo"], "--execute")
    assert restored.status == 0, restored
    assert await contents(zookeeper, root) == before


async def test_an_owner_without_registration_may_be_alive(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    """An owner node without registration belongs to a session that has not expired: it may still store offsets."""
    topic = filled[1]
    await store(zookeeper, unique, topic, {0: b"3"})
    await zookeeper.ensure(f"/consumers/{unique}/owners/{topic}")
    await zookeeper.create(f"/consumers/{unique}/owners/{topic}/0", b"zombie-0", ephemeral=True)
    refused = await kzconsumer("offsets", "reset", unique, "--to-latest", "--all-topics", "--execute")
    assert refused.status == 1
    assert "has owner nodes of zombie-0, not registered but alive: the session has to expire" in refused.err
