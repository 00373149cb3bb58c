"""The Spark sink on a standalone cluster without a shared directory: spool files go through an object store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer_spark.daemon.sink import SparkSink
from tests.support.extent import only_nightly
from tests.support.object_store import ObjectStore, Scheme, client_jars
from tests.support.range_data import range_data
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = pytest.mark.timeout(600)
# Of tables `make test` has the parts: a store in test_tables_in_a_store.py, a Spark in test_spark_destinations.py.
CONTEXT = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf)


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    scheme: Scheme = getattr(request, "param", "s3")
    if scheme == "s3":
        yield request.getfixturevalue("amazon")
        return
    with ObjectStore.running(tmp_path / "store", scheme=scheme) as server:
        yield server


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


@only_nightly
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


@only_nightly  # what the worker publishes by: tests/files/servers/test_object_target.py
@pytest.mark.parametrize("store", ["s3", "gs", "abfss"], indirect=True)
@pytest.mark.parametrize("destination", ["parquet", "delta", "iceberg"])
async def test_a_local_spark_writes_into_a_store(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, destination: str
) -> None:
    """Needs no jar for the store: the worker puts what Spark wrote."""
    for key, value in store.environment.items():
        monkeypatch.setenv(key, value)
    output: dict[str, object] = {
        "destination": destination,
        "scratch": str(tmp_path / "scratch"),
        "start_timeout": "240s",
        "attempts": 1,
        "partition_by": ["topic"],
        "conf": {"spark.driver.memory": "512m"},
    }
    if destination == "iceberg":
        for key, value in store.properties.items():  # secrets are not for the file
            variable = f"PYICEBERG_CATALOG__DEFAULT__{key.replace('.', '__').replace('-', '_')}"
            monkeypatch.setenv(variable.upper(), value)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads when it is imported
        place = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": store.uri("lake")}
        output |= {"table": "lake.out", "catalog_options": {"type": "sql"} | place}
    else:
        output |= {"path": store.uri("lake").replace("s3://", "s3a://"), "store_options": store.options}
    parts = (range_data("t", 0, 0, 3), range_data("u", 1, 5, 7))
    async with SparkSink(output, CONTEXT) as sink:
        await sink.write(Batch(parts))
        await sink.write(Batch(parts[:1], is_replay=True))
        assert set(await sink.has([part.identity for part in parts])) == {part.identity for part in parts}
        held = await sink.holdings(count_rows=True)
    assert sorted((each.records_in, each.rows, each.faults) for each in held.ranges) == [(2, 2, ()), (3, 3, ())]
    assert (held.strays, held.leftovers) == ((), ())
    files = [name for name in store.objects() if name.endswith(".parquet") and "_kzconsumer" not in name]
    assert len(files) == 2
    if destination == "parquet":
        assert {name.split("/")[1] for name in files} == {"topic=t", "topic=u"}
