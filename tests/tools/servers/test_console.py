"""`kzconsumer consume` on real brokers: its output, what it stores, and its exit status."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from kzconsumer.cli.main import main
from kzconsumer.model import TopicPartition
from kzconsumer.registry.claim_record import StoredPosition, decode_claim_record, encode_claim_record
from kzconsumer.registry.paths import GroupPaths
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.extent import extent
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import session

pytestmark = pytest.mark.timeout(240)

NEW_YEAR = 1_767_225_600_000


def command(cluster: Cluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "kzconsumer", "consume", "--zookeeper", cluster.connect, *words]


def to_a_full_disk(cluster: Cluster, topic: str) -> subprocess.CompletedProcess[bytes]:
    with open("/dev/full", "wb") as full:
        words = command(cluster, topic, "-e")
        return subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)


async def stored(cluster: Cluster, group: str, topic: str) -> dict[int, int]:
    async with session(cluster.connect) as zookeeper:
        at = f"/consumers/{group}/offsets/{topic}"
        return {int(n): int((await zookeeper.get(f"{at}/{n}")).data or b"") for n in await zookeeper.children(at)}


async def store(cluster: Cluster, path: str, data: bytes) -> None:
    async with session(cluster.connect) as zookeeper:
        await zookeeper.set(path, data, -1)


async def read_in_epoch(cluster: Cluster, group: GroupPaths, partition: TopicPartition, epoch: int) -> None:
    """As if the record before the stored offset had been of this leader epoch."""
    async with session(cluster.connect) as zookeeper:
        record = decode_claim_record((await zookeeper.get(group.claim_record(partition))).data)
    assert record.position == StoredPosition(5, 0)
    later = msgspec.structs.replace(record, position=StoredPosition(5, epoch))
    await store(cluster, group.claim_record(partition), encode_claim_record(later))


@pytest.mark.parametrize("version", extent(["3.9.1"], ["0.8.2.2", "3.9.1"]))  # the oldest: core/servers/test_looking.py
def test_records_are_printed_and_committed(
    cluster_of: Callable[[str], Cluster], version: str, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """In this process, which is quicker than a dozen separate ones."""
    cluster = cluster_of(version)
    asyncio.run(create_topic(cluster.connect, unique, 2))
    new = version != "0.8.2.2"
    records = [
        Sent(n % 2, b"k%d" % n, b"v%d" % n, (("n", b"%d" % n),) if new else (), NEW_YEAR + n if new else None)
        for n in range(10)
    ]
    produce(cluster.bootstrap, cluster.version, unique, records)

    def consume(*words: str, status: int = 0, output: str = "") -> list[str]:
        """The lines printed."""
        capfd.readouterr()
        ended = main(["consume", "--zookeeper", cluster.connect, *words])
        out, err = capfd.readouterr()
        assert (ended, output in err if output else err == "") == (status, True), err
        return out.splitlines()

    def both(*words: str) -> list[str]:
        return sorted(consume(unique, *words))

    assert both("-e") == sorted(f"v{n}" for n in range(10))
    form = r"%t %p %o %k %s %S %T %h\n"
    assert both("-e", "-f", form) == sorted(
        f"{unique} {n % 2} {n // 2} k{n} v{n} 2 {NEW_YEAR + n} n={n}"
        if new
        else f"{unique} {n % 2} {n // 2} k{n} v{n} 2 -1 "
        for n in range(10)
    )
    found = [json.loads(line) for line in consume(f"{unique}:1", "--from", "-3", "-c", "2", "-o", "json")]
    assert [(each["partition"], each["offset"], each["value"]) for each in found] == [(1, 2, "v5"), (1, 3, "v7")]
    assert both("-e", "--key", "[2-6]$", "--value", "^v[^4]") == ["v2", "v3", "v5", "v6"]
    assert both("--from", "1", "--until", "3") == ["v2", "v3", "v4", "v5"]
    if new:
        assert both("--from", f"@{NEW_YEAR + 4}", "--until", f"@{NEW_YEAR + 7}") == ["v4", "v5", "v6"]
        assert both("-e", "--header", "n=[37]") == ["v3", "v7"]
    else:
        output = "brokers before 0.10.1 cannot look up records by time"
        assert consume(unique, "--from", "@1", "-e", status=1, output=output) == []

    group = f"group-{unique}"
    first = consume(unique, "--group", group, "-c", "3")
    assert sum(asyncio.run(stored(cluster, group, unique)).values()) == len(first) == 3
    looked = consume(unique, "--from", f"stored:{group}", "-e")
    rest = consume(unique, "--group", group, "-e")
    assert sorted(first + rest) == sorted(f"v{n}" for n in range(10))
    assert sorted(looked) == sorted(rest)
    assert asyncio.run(stored(cluster, group, unique)) == {0: 5, 1: 5}
    assert consume(unique, "--group", group, "-e") == []
    output = f"group {group} has stored offsets and continues there; leave out --from"
    consume(unique, "--group", group, "--from", "beginning", "-e", status=1, output=output)
    # The log that the group has read was cut off, and this one has grown past the stored offset.
    if new:
        asyncio.run(read_in_epoch(cluster, GroupPaths(group), TopicPartition(unique, 1), 7))
        output = "the log is not the one that was consumed up to 5 (leader epoch 7); it has the same records up to 0: 5"
        assert consume(unique, "--from", f"stored:{group}", "-e", status=1, output=output) == []
        assert consume(f"{unique}:0", "--from", f"stored:{group}", "-e") == []
        # Retention has passed the stored offset of the other one.
        asyncio.run(store(cluster, GroupPaths(group).offset(TopicPartition(unique, 0)), b"2"))
        assert consume(f"{unique}:0", "--from", f"stored:{group}", "-e") == ["v4", "v6", "v8"]
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (deleted,) = admin.delete_records([KafkaPartition(unique, 0, 4)]).values()
        deleted.result(60)
        output = f"records are gone from the log: topic {unique}, partition 0, first 2, until 4"
        assert consume(f"{unique}:0", "--from", f"stored:{group}", "-e", output=output) == ["v8"]
    asyncio.run(store(cluster, GroupPaths(group).offset(TopicPartition(unique, 1)), b"9"))
    output = f"{unique}-1: the log ends at 5, before the stored offset 9; --from OFFSET, or beginning, says where to"
    assert consume(unique, "--from", f"stored:{group}", "-e", status=1, output=output) == []


async def test_how_it_ends(cluster: Cluster, unique: str) -> None:
    """By a signal, or by a reader that exits while there is nothing to write: quietly, after leaving the group."""
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"one")])
    for number in extent((signal.SIGINT, signal.SIGPIPE), (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)):
        group = f"{unique}-{number.name}"
        process = await asyncio.create_subprocess_exec(
            *command(cluster, unique, "--group", group),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"one\n"
            if number is signal.SIGPIPE:
                process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
            else:
                process.send_signal(number)
            assert await process.wait() == -number
            assert await process.stderr.read() == b""
        assert await stored(cluster, group, unique) == {0: 1}, number
        async with session(cluster.connect) as zookeeper:
            assert await zookeeper.children(f"/consumers/{group}/ids") == []


async def test_a_full_disk_is_reported(cluster: Cluster, unique: str) -> None:
    await create_topic(cluster.connect, unique, 1)
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"one")])
    done = await asyncio.to_thread(to_a_full_disk, cluster, unique)
    output = b"kzconsumer: standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (74, output)


async def test_later_records_are_followed(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Also if no record arrives for longer than a broker's longest response time."""
    await create_topic(cluster.connect, unique, 1)
    (tmp_path / "group.toml").write_text(
        f'[zookeeper]\nconnect = "{cluster.connect}"\n[group]\nid = "console"\n[fetch]\nrequest_timeout = "1s"\n'
    )
    words = [sys.executable, "-m", "kzconsumer", "consume", unique, "--config", str(tmp_path / "group.toml")]
    process = await asyncio.create_subprocess_exec(
        *words, "--from", "end", "-c", "1", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = asyncio.create_task(process.stdout.readline())
        await asyncio.wait([line], timeout=3)
        while not line.done():  # there is no event for the lookup of the log end
            await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, b"later")])
            await asyncio.wait([line], timeout=0.5)
        assert line.result() == b"later\n"
        assert await process.wait() == 0
