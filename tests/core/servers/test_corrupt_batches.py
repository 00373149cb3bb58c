"""Batches that were damaged on the broker's disk: consumption stops, skips or keeps them, and always reports it."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.broker_logs import damage, log_directory, segments
from tests.support.extent import only_nightly
from tests.support.members import Daemon, committed, daemon, stored_offsets
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

LOST = "corrupt batch skipped, its records are lost"
# Three batches of ten records each. In partition 0 the second is damaged, in partition 1 the last.
PARTITIONS = 2


def fetch(policy: str, quarantine: Path | None = None, **keys: int) -> str:
    where = f'quarantine = "{quarantine}"\n' if quarantine else ""
    more = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[fetch]\non_corrupt = "{policy}"\n{where}{more}'


def segment_of(cluster: Cluster, topic: str, partition: int) -> Path:
    (segment,) = segments(log_directory(cluster, topic, partition))
    return segment


async def damaged(cluster: Cluster, version: str, topic: str) -> dict[int, bytes]:
    """Each damaged batch (or message) of the topic as it is on the broker's disk."""
    await create_topic(cluster.connect, topic, PARTITIONS)
    ends: dict[int, list[int]] = {partition: [0] for partition in range(PARTITIONS)}
    for first in (0, 10, 20):
        records = [Sent(p, None, b"record %d" % n) for p in range(PARTITIONS) for n in range(first, first + 10)]
        await asyncio.to_thread(produce, cluster.bootstrap, version, topic, records)
        for partition, at in ends.items():
            at.append(segment_of(cluster, topic, partition).stat().st_size)
    bad = {}
    for partition, (_, second, third, end) in ends.items():
        log = damage(segment_of(cluster, topic, partition), b"record 25" if partition else b"record 15")
        bad[partition] = log[third:end] if partition else log[second:third]
        if version.startswith("0.8"):  # each message for itself
            size = len(bad[partition]) // 10
            bad[partition] = bad[partition][5 * size : 6 * size]
    return bad


def offsets(member: Daemon, partition: int) -> list[int]:
    return [record["offset"] for record in member.records() if record["partition"] == partition]


# Damage on a real disk: test_daemon.py; a daemon that sets aside: the test below; what is kept and passed over:
# plain/test_corrupt_policy.py; message sets that are damaged: plain/test_records_faults.py.
@only_nightly
@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_damage_on_the_brokers_disk(
    cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path, version: str
) -> None:
    cluster = cluster_of(version)
    bad = await damaged(cluster, version, unique)
    lost = {0: (15, 16), 1: (25, 26)} if version.startswith("0.8") else {0: (10, 20), 1: (20, 30)}
    good = {p: [n for n in range(30) if not lost[p][0] <= n < lost[p][1]] for p in lost}
    kept = tmp_path / "kept"

    for policy in ("skip", "quarantine"):
        settings = fetch(policy, kept if policy == "quarantine" else None)
        with daemon(tmp_path / policy, cluster.connect, f"{unique}-{policy}", {unique: 1}, settings) as member:
            await until(lambda: len(member.records()) == len(good[0]) + len(good[1]), 60)
            await until(lambda: len(member.events(LOST)) == 2, 10)
            # What is skipped at the very end is not a record that could be waited for.
            await committed(cluster.connect, f"{unique}-{policy}", unique, [30, 30], 60)
            member.signal(signal.SIGTERM)
            assert await member.ended() == 0
            output = {event["partition"]: event for event in member.events(LOST)}
            assert {p: (event["first"], event["until"]) for p, event in output.items()} == lost
            assert all("checksum" in event["reason"] and event["level"] == "error" for event in output.values())
            assert {p: offsets(member, p) for p in lost} == good
            assert not re.search(rb"record \d", member.err.read_bytes()), (
                "records are not for the log, damaged or whole"
            )
        assert await stored_offsets(cluster.connect, f"{unique}-{policy}", unique, 2) == [30, 30]
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == {
        f"{unique}-{p}-{lost[p][0]}.bin": bad[p] for p in lost
    }


async def test_a_message_larger_than_the_largest_fetch(
    cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path
) -> None:
    """Old brokers send only its beginning; it is handled by the policy for corrupt batches."""
    cluster = cluster_of("0.8.2.2")
    await create_topic(cluster.connect, unique, 1)
    values = [b"before", b"x" * 50_000, b"behind"]
    await asyncio.to_thread(
        produce, cluster.bootstrap, cluster.version, unique, [Sent(0, None, value) for value in values]
    )
    settings = fetch("fail", max_bytes=1000, largest_batch=8000)
    with daemon(tmp_path / "fail", cluster.connect, f"{unique}-f", {unique: 1}, settings) as member:
        assert await member.ended(30) == 1
        (stopped,) = member.events("stopped by a failure")
        assert f"{unique}-0: the batch at offset 1 is larger than largest_batch = 8000 bytes" in stopped["reason"]
    kept = tmp_path / "kept"
    settings = fetch("quarantine", kept, max_bytes=1000, largest_batch=8000)
    with daemon(tmp_path / "keep", cluster.connect, f"{unique}-q", {unique: 1}, settings) as member:
        await until(lambda: len(member.records()) == 2, 30)
        assert [record["value"] for record in member.records()] == ["before", "behind"]
        (output,) = member.events(LOST)
        assert (output["first"], output["until"]) == (1, 2)
    (file,) = kept.iterdir()
    assert len(file.read_bytes()) == 8000
