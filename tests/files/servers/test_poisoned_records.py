"""One record among a thousand that the sink `parquet` cannot hold: a real broker, each policy, and kills."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.command_line import CommandLine
from tests.support.extent import extent
from tests.support.members import committed, daemon
from tests.support.plans import planned
from tests.support.producing import Sent, produce
from tests.support.zookeeper_sessions import until

pytestmark = pytest.mark.timeout(300)
LIMIT = 120
NANOSECONDS = 1_700_000_000_000_000_000
RECORDS = extent(1_000, 1_000_000, quick=1_000)


async def poisoned(cluster: Cluster, topic: str, records: int, bad: set[int]) -> None:
    await create_topic(cluster.connect, topic, 1)
    made = (Sent(0, None, b"%d" % n, timestamp=NANOSECONDS if n in bad else None) for n in range(records))
    await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, topic, made)


def tables(tmp_path: Path, policy: str) -> str:
    directory = f'directory = "{tmp_path}/letters"\n' if policy == "dead-letter" else ""
    return (
        f'[rejected]\npolicy = "{policy}"\n{directory}'
        f'[sink]\nplugin = "parquet"\n[sink.options]\npath = "{tmp_path}/lake"\n'
    )


def written(tmp_path: Path) -> list[int]:
    files = list(map(str, (tmp_path / "lake").glob("*.parquet")))
    if not files:
        return []
    table = ds.dataset(files, format="parquet").to_table(columns=["offset"])
    return [int(row["offset"]) for row in table.sort_by("offset").to_pylist()]


def letters(tmp_path: Path) -> Counter[int]:
    lines = [line for file in (tmp_path / "letters").glob("*.jsonl") for line in file.read_text().splitlines()]
    return Counter(json.loads(line)["offset"] for line in lines)


@pytest.mark.parametrize("policy", extent(["dead-letter"], ["skip", "dead-letter"]))  # skip: the test of fail
async def test_all_others_are_written(
    cluster: Cluster,
    unique: str,
    tmp_path: Path,
    policy: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KZCONSUMER__BATCH__MAX_RECORDS", "500000")
    bad = RECORDS // 2
    await poisoned(cluster, unique, RECORDS, {bad})
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, tables(tmp_path, policy)) as member:
        await committed(cluster.connect, unique, unique, [RECORDS], LIMIT)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    assert written(tmp_path) == [n for n in range(RECORDS) if n != bad]
    assert letters(tmp_path) == ({bad: 1} if policy == "dead-letter" else {})
    said = {"skip": "rejected record skipped", "dead-letter": "rejected record written as dead letter"}[policy]
    (event,) = member.events(said)
    assert (event["topic"], event["partition"], event["offset"], event["error_class"]) == (unique, 0, bad, "unstorable")
    assert "timestamp is outside of the years 1 to 9999" in event["reason"]
    proof = await CommandLine(capsys, "--config", str(tmp_path / "group.toml")).json("sink", "verify")
    assert proof["healthy"]


async def test_the_policy_fail_names_the_record_in_one_line(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """The batches before it are written; a start with another policy goes on behind it."""
    await poisoned(cluster, unique, 1000, {700})
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, tables(tmp_path, "fail")) as member:
        assert await member.ended() == 1
    reason = f"{unique}-0 at offset 700 was rejected as unstorable: timestamp is outside of the years 1 to 9999"
    assert [line for line in member.err.read_text().splitlines() if reason in line]
    assert 700 not in written(tmp_path)
    assert written(tmp_path) == list(range(len(written(tmp_path))))
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, tables(tmp_path, "skip")) as member:
        await until(lambda: written(tmp_path) == [n for n in range(1000) if n != 700], 60)


async def test_kills_double_no_row_and_lose_no_dead_letter(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """Each time right after a dead letter was written: before the plan has its offset, or before the rest is."""
    bad = {100, 101, 2500, 3999}
    await poisoned(cluster, unique, 4000, bad)
    extra = tables(tmp_path, "dead-letter")
    for known in (set[int](), {100, 101}):
        with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra, session_timeout="2s") as member:
            await until(lambda: letters(tmp_path).keys() > known, 60)  # noqa: B023
            member.signal(signal.SIGKILL)
            await member.ended()
    with daemon(tmp_path, cluster.connect, unique, {unique: 1}, extra, session_timeout="2s") as member:
        await committed(cluster.connect, unique, unique, [4000], LIMIT)
    assert written(tmp_path) == [n for n in range(4000) if n not in bad]
    assert letters(tmp_path).keys() == bad
    assert max(letters(tmp_path).values()) <= 2, "at least once: again for the range in hand when it was killed"
    assert not await planned(cluster, unique, 1)
