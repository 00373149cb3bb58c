"""What only members could fetch before, fetched by tasks: damaged logs, undecodable records, rows for PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.core.servers.test_corrupt_batches import LOST, damaged
from tests.support.chaos import PASSWORD, PostgresTable
from tests.support.extent import only_nightly
from tests.support.members import committed, daemon
from tests.support.postgres import Postgres
from tests.support.producing import Sent, produce

pytestmark = [pytest.mark.timeout(600), only_nightly]
LIMIT = 300.0


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_everything_else_is_written_once(
    cluster_of: Callable[[str], Cluster], unique: str, tmp_path: Path, version: str
) -> None:
    """The records are no JSON, so they are quarantined, each with its bytes."""
    cluster = cluster_of(version)
    bad = await damaged(cluster, version, unique)
    lost = {0: (15, 16), 1: (25, 26)} if version.startswith("0.8") else {0: (10, 20), 1: (20, 30)}
    kept, out = tmp_path / "kept", tmp_path / "out"
    tables = f"""[fetch]
on_corrupt = "quarantine"
quarantine = "{kept}"
rate_limit = "1MiB"
[sink]
plugin = "spark"
[sink.options]
destination = "parquet"
path = "{out}"
value = {{ format = "json", schema = "n BIGINT", on_error = "quarantine" }}
"""
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, tables) as member:
        await committed(cluster.connect, unique, unique, [30, 30], LIMIT)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    assert {event["partition"]: (event["first"], event["until"]) for event in member.events(LOST)} == lost
    assert {file.name: file.read_bytes() for file in kept.iterdir()} == {
        f"{unique}-{p}-{lost[p][0]}.bin": bad[p] for p in lost
    }
    bad_records = ds.dataset(
        sorted((out / "_kzconsumer" / "quarantine").glob("*.parquet")), format="parquet"
    ).to_table()
    found = sorted((row["partition"], row["offset"], row["value"]) for row in bad_records.to_pylist())
    assert found == [(p, n, b"record %d" % n) for p in lost for n in range(30) if not lost[p][0] <= n < lost[p][1]]
    assert not [*out.glob("*.parquet")]


async def test_rows_of_postgresql_are_fetched_by_tasks(
    cluster: Cluster, database: Postgres, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, although a worker is killed; the ledger counts them, and not offsets."""
    monkeypatch.setenv(PASSWORD, database.password)
    table = PostgresTable(database, unique)
    await create_topic(cluster.connect, unique, 2)

    async def send(first: int, until: int) -> None:
        sent = [Sent(n % 2, None, b"%d" % n) for n in range(first, until)]
        await asyncio.to_thread(produce, cluster.bootstrap, cluster.version, unique, sent)

    await send(0, 2000)
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, table.tables) as member:
        await committed(cluster.connect, unique, unique, [1000, 1000], LIMIT)
        os.kill(member.events("spark ready")[0]["pid"], signal.SIGKILL)
        await send(2000, 2100)
        await committed(cluster.connect, unique, unique, [1050, 1050], LIMIT)
        member.signal(signal.SIGTERM)
        assert await member.ended() == 0
    found = table.rows()
    assert (len(found), found.total()) == (2100, 2100)
    counts = database.query(
        "SELECT sum(records_in), sum(records_out) FROM kzconsumer_ledger WHERE topic = %s", [unique]
    )
    assert [tuple(map(int, row)) for row in counts] == [(2100, 2100)]
