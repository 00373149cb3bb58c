"""Exactly once into a destination under random faults of members, their Sparks and ZooKeeper.

A producer never stops; two daemons write, into files or into a database. `KZCONSUMER_CHAOS=30` (`make chaos-spark`)
plays so many rounds, from a seed that is printed, or that `KZCONSUMER_CHAOS_SEED` gives: each round adds one to the
seed. `make nightly` plays five into each destination. `make test` plays none: test_replay_after_kill.py kills members
that write Parquet, test_spark_sink.py the worker that writes into a database, and tests/spark/plain has the differences
of the others' targets from those without Spark.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import anyio
import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from tests.support.chaos import (
    FAULTS,
    PASSWORD,
    DeltaFiles,
    Destination,
    IcebergFiles,
    PostgresTable,
    SparkGroup,
    StoredFiles,
    appended,
    kill_daemon,
    published,
)
from tests.support.chaos_rounds import play
from tests.support.ensemble import Ensemble
from tests.support.extent import NIGHTLY, extent
from tests.support.flow import flow
from tests.support.object_store import ObjectStore
from tests.support.postgres import Postgres
from tests.support.spark_functions import FUNCTION_DIRECTORY

ROUNDS = int(os.environ.get("KZCONSUMER_CHAOS", extent("0", "5")))
_RANDOM = str(NIGHTLY or time.time_ns() // 1_000_000 % 1_000_000)
SEED = int(os.environ.get("KZCONSUMER_CHAOS_SEED", "0" if ROUNDS <= 3 else _RANDOM))
CONTROL = os.environ.get("KZCONSUMER_CHAOS_CONTROL")
PARTITIONS = 4

pytestmark = pytest.mark.timeout(500 + 200 * ROUNDS)


DESTINATIONS = [
    pytest.param(name, marks=pytest.mark.skipif(not ROUNDS, reason=f"make chaos-spark DESTINATION={name}"))
    for name in ("postgresql", "parquet", "delta", "iceberg", "store")
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with ObjectStore.running(tmp_path / "store") as server:
        yield server


@pytest.fixture(params=DESTINATIONS)
def target(request: pytest.FixtureRequest, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Destination:
    if request.param == "parquet":
        return published(tmp_path / "out")
    if request.param == "delta":
        return DeltaFiles(tmp_path / "out")
    if request.param == "iceberg":
        return IcebergFiles(tmp_path / "out")
    if request.param == "store":
        store: ObjectStore = request.getfixturevalue("store")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return StoredFiles(store)
    database: Postgres = request.getfixturevalue("database")
    monkeypatch.setenv(PASSWORD, database.password)
    return PostgresTable(database, unique)


async def test_every_record_is_written_exactly_once(
    three: Ensemble, cluster_of_three: Cluster, unique: str, tmp_path: Path, target: Destination
) -> None:
    await create_topic(cluster_of_three.connect, unique, PARTITIONS)
    with (
        SparkGroup(three, cluster_of_three, unique, PARTITIONS, tmp_path, target) as group,
        flow(cluster_of_three, unique, PARTITIONS) as sent,
    ):
        await play(group, sent, ROUNDS, SEED, FAULTS)
        await asyncio.to_thread(sent.end)
        ends = [sent.sent[partition] for partition in range(PARTITIONS)]
        await group.past(ends)
        await group.stop("a")
        await group.stop("b")
        assert await group.committed() == ends
        assert await group.verdict() == ([], [])
        assert sum(target.rows().values()) == sum(ends)
        print(f"in the end {sum(ends)} records, each of them once")


@pytest.mark.skipif(CONTROL is None, reason="the negative control: make chaos-spark-control")
async def test_appending_without_a_plan_doubles_records(
    three: Ensemble, cluster_of_three: Cluster, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    target = appended(tmp_path)
    await create_topic(cluster_of_three.connect, unique, PARTITIONS)
    with (
        SparkGroup(three, cluster_of_three, unique, PARTITIONS, tmp_path, target) as group,
        flow(cluster_of_three, unique, PARTITIONS),
    ):
        group.start("a")
        group.start("b")
        chance = Random(SEED)
        for number in range(10):
            await group.whole(2)
            await group.past([at + 1 for at in await group.committed()])
            await anyio.sleep(chance.uniform(0.0, 1.5))
            await kill_daemon(group, "a", chance)
            await group.past([at + 1 for at in await group.committed()])
            missing, twice = await group.verdict()
            print(f"kill {number + 1}: {len(missing)} missing, {len(twice)} twice", flush=True)
            assert not missing
            if twice:
                return
        raise AssertionError("ten kills, and nothing is there twice")
