"""The source by a client of Spark Connect."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.daemon.worker_process import java_environment
from tests.spark.spark.test_group_source import send
from tests.support.extent import only_nightly
from tests.support.members import stored_offsets
from tests.support.plans import planned

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.timeout(900), only_nightly]


async def test_a_stream_with_prompt_commits_and_a_batch_read_by_spark_connect(
    cluster: Cluster, unique: str, tmp_path: Path
) -> None:
    await create_topic(cluster.connect, unique, 2)
    await send(cluster, unique, 0, 1000)
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-m", "tests.support.connect_query", str(out), cluster.connect, unique]
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment = {**java_environment(os.environ), **own}
    done = await asyncio.to_thread(
        subprocess.run, command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert not done.returncode, done.stderr[-3000:]
    expected = [f"{n % 2} {n}" for n in range(1000)]
    written = [file.read_text().splitlines() for file in sorted(out.iterdir(), key=lambda file: int(file.name))]
    assert sorted(row for batch in written for row in batch) == sorted(expected)
    assert len(written) > 2
    assert sorted(done.stdout.split()) == sorted(str(n) for n in range(1000))
    assert await stored_offsets(cluster.connect, unique, unique, 2) == [500, 500]
    assert not await planned(cluster, unique)
