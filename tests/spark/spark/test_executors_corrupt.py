"""Corrupt batches that Spark's tasks meet: the member sets them aside, and everything else is written once."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import pyarrow.dataset as ds
import pytest

from tests.core.servers.test_corrupt_batches import LOST, damaged
from tests.support.extent import only_nightly
from tests.support.members import daemon, stored_offsets
from tests.support.servers import Servers

pytestmark = [pytest.mark.timeout(600), only_nightly]
LIMIT = 300.0


@pytest.mark.parametrize("version", ["0.8.2.2", "3.9.1"])
async def test_everything_else_is_written_once(servers: Servers, unique: str, tmp_path: Path, version: str) -> None:
    """The records are no JSON, so they are quarantined, each with its bytes."""
    cluster, bad = await damaged(servers, version, unique)
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
read = "executors"
value = {{ format = "json", schema = "n BIGINT", on_error = "quarantine" }}
"""
    with daemon(tmp_path / "member", cluster.connect, unique, {unique: 1}, tables) as member:
        with anyio.fail_after(LIMIT):
            while await stored_offsets(cluster.connect, unique, unique, 2) != [30, 30]:
                await anyio.sleep(0.1)
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
