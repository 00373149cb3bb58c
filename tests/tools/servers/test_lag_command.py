"""kzconsumer lag, and what groups doctor says of lag, with real servers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from kzconsumer.registry.claim_record import ClaimRecord, encode_claim_record
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.members import reader, settings
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session, until
from tests.tools.servers.conftest import NEW_YEAR
from tests.tools.servers.test_offset_commands import (
    offsets,
    planned,
    put,
    store,
)


async def test_lag(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    """Unknown values are null, also in the sum; seconds are those since the time of the next record."""
    topic = filled[1]
    await store(zookeeper, unique, topic, {0: b"3", 1: b"10", 2: b"50", 3: b"x"})
    await store(zookeeper, unique, "gone", {0: b"8"})
    found = await kzconsumer.json("lag", unique, status=3)
    rows = {(each["topic"], each["partition"]): each for each in found["partitions"]}
    assert {key: each["lag"] for key, each in rows.items()} == {
        ("gone", 0): None,
        (topic, 0): 7,
        (topic, 1): 0,
        (topic, 2): None,
        (topic, 3): None,
    }
    assert (found["lag"], found["lag_at_least"], found["gone"], rows[topic, 1]["seconds"]) == (None, 7, 1, 0)
    assert found["unknown"] == {"offset after the log's end": 1, "offset unreadable": 1}
    assert [rows[topic, n]["why"] for n in range(4)] == [None, None, *found["unknown"]]
    age = datetime.now(UTC).timestamp() - (NEW_YEAR / 1000 - 2)
    assert abs(rows[topic, 0]["seconds"] - age) < 60
    assert [rows[topic, n]["seconds"] for n in (2, 3)] == [None, None]
    shown = await kzconsumer("lag", unique, "--topic", topic)
    head = f"group {unique}: lag at least 7 (2 unknown: 1 offset after the log's end, 1 offset unreadable), "
    assert shown.out.startswith(head)
    assert shown.out.splitlines()[0].endswith("; 4 partitions")
    assert ["3", "-", "10", "-", "-", topic, "offset", "unreadable"] in [
        line.split() for line in shown.out.splitlines()
    ]
    wide = [line.split() for line in (await kzconsumer("lag", unique, "-o", "wide")).out.splitlines()]
    leader = ["1", f"({filled[0].bootstrap})"]
    assert ["3", "-", "10", "-", "-", topic, "offset", "unreadable", "0", "-", *leader, "-", "-"] in wide
    assert ["1", "10", "10", "0", "0", "s", topic, "0", "0.0", *leader, "-", "-"] in wide
    assert ["0", "8", "-", "-", "-", "gone", "topic", "gone", "-", "-", "-", "-", "-"] in wide
    for scope, output in (
        ("nosuch", "there is no topic nosuch"),
        (f"{topic}:7", f"{topic} has no partition 7 (it has 4)"),
    ):
        refused = await kzconsumer("lag", unique, "--topic", scope)
        assert (refused.status, output in refused.err) == (1, True)


async def test_lag_in_seconds_with_batches_above_the_fetch_limit(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    """A batch above the partition's limit is returned only if it is the first in the request, otherwise truncated."""
    cluster = filled[0]
    await create_topic(cluster.connect, unique, 3)
    large = [Sent(partition, None, bytes(40_000), timestamp=NEW_YEAR) for partition in range(3)]
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, large)
    await store(zookeeper, unique, unique, dict.fromkeys(range(3), b"0"))
    found = await kzconsumer.json("lag", unique)
    assert [(each["lag"], each["seconds"] is None) for each in found["partitions"]] == [(1, False)] * 3


async def test_without_any_broker(
    zookeeper: ZooKeeperSession, cluster: Cluster, unique: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    """Lag is unknown, not 0; what needs the logs is refused with the reason; an undo needs no broker."""
    connect = f"{cluster.connect}/{unique}"
    kzconsumer = CommandLine(capsys, "--zookeeper", connect)
    async with session(connect) as chroot:
        await put(chroot, "/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')
        await store(chroot, "g", "t", {0: b"3"})
        unknown = "Not examined:\n  the log of 1 partition: "
        done = await kzconsumer("lag", "g", "-o", "json")
        assert (done.status, done.err) == (4, "")
        found = json.loads(done.out)
        assert [(each["stored"], each["lag"], each["seconds"]) for each in found["partitions"]] == [(3, None, None)]
        assert (found["lag"], found["seconds"], found["unknown"]) == (None, None, {"brokers unreachable": 1})
        assert (found["health"], len(found["not_asked"])) == ("not examined", 1)
        assert (await kzconsumer("lag", "--all")).status == 4
        shown = await kzconsumer("lag", "g")
        assert (shown.status, unknown in shown.out) == (4, True)
        head = "group g: lag unknown (brokers unreachable), behind unknown; 1 partition"
        assert shown.out.splitlines()[0] == head
        examined = await kzconsumer("groups", "doctor", "g")
        assert examined.status == 4
        assert "Not examined:\n  the log of 1 partition: " in examined.out
        assert "no broker answers: none is up" in examined.out
        assert "Healthy" not in examined.out
        assert (await kzconsumer.json("groups", "doctor", "g", status=4))["health"] == "not examined"
        refused = await kzconsumer("offsets", "reset", "g", "--to-earliest", "--all-topics", "--execute")
        assert (refused.status, refused.err) == (1, f"kzconsumer: {connect}: no broker answers: none is up\n")
        (folder / "nodes").write_text('{"path":"/consumers/g/offsets/t/0","data":"5"}\n')
        assert (await kzconsumer("offsets", "import", "nodes", "--execute")).status == 0
        assert await offsets(chroot, "g", "t") == {0: b"5"}


async def test_the_oldest_brokers(
    cluster_of: Callable[[str], Cluster], unique: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """They have no timestamps: seconds are unknown, a reset to a time is refused; all else is as with the newest."""
    cluster = cluster_of("0.8.2.2")
    await create_topic(cluster.connect, unique, 1)
    await anyio.to_thread.run_sync(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"x")] * 5)
    kzconsumer = CommandLine(capsys, "--zookeeper", cluster.connect)
    async with session(cluster.connect) as zookeeper:
        await store(zookeeper, unique, unique, {0: b"2"})
        (found,) = (await kzconsumer.json("lag", unique))["partitions"]
        assert (found["log_start"], found["log_end"], found["lag"], found["seconds"]) == (0, 5, 3, None)
        refused = await kzconsumer("offsets", "reset", unique, "--by-duration", "PT1H", "--all-topics")
        assert (refused.status, "brokers before 0.10.1 cannot look up records by time" in refused.err) == (1, True)
        undo = str(tmp_path / "undo.jsonl")
        done = await kzconsumer("offsets", "reset", unique, "--to-latest", "--all-topics", "--execute", "--undo", undo)
        assert done.status == 0, done
        assert await offsets(zookeeper, unique, unique) == {0: b"5"}


async def test_watching_the_lag(filled: tuple[Cluster, str], zookeeper: ZooKeeperSession, unique: str) -> None:
    """One object per line, until a signal ends it."""
    cluster, topic = filled
    await store(zookeeper, unique, topic, {0: b"3"})
    words = ["lag", unique, "--watch", "--interval", "0.1", "-o", "json", "--zookeeper", cluster.connect]
    process = await anyio.open_process([sys.executable, "-m", "kzconsumer", *words])
    async with process:
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        with anyio.fail_after(30):
            assert json.loads(await lines.receive_until(b"\n", 10_000))["lag_at_least"] == 7
            await store(zookeeper, unique, topic, {0: b"5"})
            while json.loads(await lines.receive_until(b"\n", 10_000))["lag_at_least"] != 5:
                pass
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130


async def test_a_member_that_stands_still_is_no_healthy_group(
    filled: tuple[Cluster, str],
    kzconsumer: CommandLine,
    zookeeper: ZooKeeperSession,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It owns its partitions, and stores no offset: doctor, describe, lag and lag --all agree."""
    _, topic = filled
    root = f"/consumers/{unique}"
    registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static"}' % topic.encode()
    await zookeeper.ensure(f"{root}/ids")
    await zookeeper.create(f"{root}/ids/m", registration, ephemeral=True)
    await zookeeper.ensure(f"{root}/owners/{topic}")
    for number in range(4):
        await zookeeper.create(f"{root}/owners/{topic}/{number}", b"m-0", ephemeral=True)
    await store(zookeeper, unique, topic, dict.fromkeys(range(4), b"3"))
    commands: list[tuple[str, ...]] = [("groups", "doctor", unique), ("groups", "describe", unique), ("lag", unique)]
    for words in commands:
        assert (await kzconsumer.json(*words))["health"] == "healthy", "it has had no time"
    for module in ("kzconsumer.lag.partition", "kzconsumer_tools.groups.diagnosis"):
        monkeypatch.setattr(f"{module}.STALLED_FOR_OTHERS", 0.5)
    await anyio.sleep(0.6)
    paths = {f"{root}/offsets/{topic}/{number}" for number in range(4)}
    for words, status in zip(commands, (3, 0, 3), strict=True):
        found = await kzconsumer.json(*words, status=status)
        assert (found["health"], {each["path"] for each in found["findings"]}) == ("unhealthy", paths), words
        assert {each["id"] for each in found["findings"]} == {"stalled"}
    (row,) = await kzconsumer.json("lag", "--all", "--include", unique, status=3)
    assert row["stalled"] == 4
    assert "4 partitions stalled" in (await kzconsumer("lag", "--all", "--include", unique)).out
    assert "m-0 has stored no offset for" in (await kzconsumer("lag", unique)).out


async def test_the_findings_of_groups_doctor(
    filled: tuple[Cluster, str], kzconsumer: CommandLine, zookeeper: ZooKeeperSession, unique: str
) -> None:
    cluster, topic = filled
    root = f"/consumers/{unique}"
    async with reader(settings(cluster.connect, unique), {topic: 1}) as member:
        await until(lambda: len(member.owned) == 4)
        await until(lambda: len(member.messages) == 40)
        healthy = await kzconsumer("groups", "doctor", unique)
        assert (healthy.status, healthy.out) == (0, f"group {unique}: Healthy: no problem was found.\n")
    czxid = (await zookeeper.get(f"/brokers/topics/{topic}")).stat.czxid
    await store(zookeeper, unique, topic, {0: b"11"})
    await put(zookeeper, f"{root}/claims/{topic}/1", encode_claim_record(planned(3, 6)))
    async with session(cluster.connect) as other:
        for opened, name, assignor in ((zookeeper, "a", "range"), (other, "b", "roundrobin")):
            registration = b'{"version":1,"subscription":{"%s":1},"pattern":"static","kzconsumer":"1"}' % topic.encode()
            await opened.create(f"{root}/ids/{name}", registration, ephemeral=True)
            number = 0 if name == "a" else 3
            await opened.create(f"{root}/owners/{topic}/{number}", f"{name}-0".encode(), ephemeral=True)
            record = encode_claim_record(ClaimRecord(1, assignor, f"{czxid:#x}"))
            await put(zookeeper, f"{root}/claims/{topic}/{number}", record)
        await other.create(f"{root}/owners/{topic}/2", b"c-0", ephemeral=True)
        found = await kzconsumer.json("groups", "doctor", unique, status=3)
        assert [(each["id"], each["path"].removeprefix(root)) for each in found["findings"]] == [
            ("different_assignors", f"/claims/{topic}/0"),
            ("different_assignors", f"/claims/{topic}/3"),
            ("offset_after_log", f"/offsets/{topic}/0"),
            ("planned_range", f"/claims/{topic}/1"),
            ("recreated_topic", f"/claims/{topic}/1"),
            ("unowned_partition", f"/owners/{topic}/1"),
            ("unregistered_owner", f"/owners/{topic}/2"),
        ]
        shown = await kzconsumer("groups", "doctor", unique)
        assert shown.status == 3
        assert shown.out.endswith("Not healthy: 7 findings.\n")
