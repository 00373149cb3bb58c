"""The Spark sink on a standalone cluster without a shared directory: spool files go through an object store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer_spark.daemon.sink import SparkSink
from tests.support.object_store import ObjectStore, client_jars
from tests.support.range_data import range_data
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = pytest.mark.timeout(600)
CONTEXT = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    server = ObjectStore(tmp_path / "store")
    server.start()
    try:
        server.wait_ready()
        server.make_bucket()
        yield server
    finally:
        server.kill()


def options(store: ObjectStore, cluster: SparkCluster, tmp_path: Path) -> dict[str, object]:
    return {
        "destination": "function",
        "function": "tests.support.spark_functions:note_files",
        "master": cluster.master,
        "spool": f"s3a://{store.bucket}/spool",
        "scratch": str(tmp_path / "scratch"),
        "start_timeout": "240s",
        "attempts": 1,
        "conf": {
            **store.conf,
            "spark.jars": client_jars(),
            "spark.cores.max": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
        },
    }


async def test_executors_read_the_spool_files_of_the_member(
    store: ObjectStore, standalone: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those written ahead; and none is left behind."""
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    first = (range_data("t", 0, 0, 3), range_data("t", 1, 5, 7))
    second = (range_data("t", 0, 3, 5),)
    async with SparkSink(options(store, standalone, tmp_path), CONTEXT) as sink:
        await sink.prepare(Batch(first))
        assert len([name for name in store.objects() if name.endswith(".parquet") and "warm" not in name]) == 2
        await sink.write(Batch(first))
        await sink.write(Batch(second))
    assert store.objects() == []
    seen = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("seen-*"))]
    assert [[row[:2] for row in batch["rows"]] for batch in seen] == [
        [[0, 0], [0, 1], [0, 2], [1, 5], [1, 6]],
        [[0, 3], [0, 4]],
    ]
    assert all(file.startswith(f"s3a://{store.bucket}/spool/") for batch in seen for file in batch["files"])
    assert [len(batch["files"]) for batch in seen] == [2, 1]


async def test_an_unusable_store_is_reported_before_spark_starts(store: ObjectStore, tmp_path: Path) -> None:
    output = options(store, SparkCluster(tmp_path / "none"), tmp_path) | {"spool": "s3a://nobodys/spool"}
    with pytest.raises(ConfigError, match=r"\[sink\.options\] spool: s3a://nobodys/spool: .*[Bb]ucket"):
        async with SparkSink(output, CONTEXT):
            pass
    assert not list((tmp_path / "scratch").rglob("spark.log"))
