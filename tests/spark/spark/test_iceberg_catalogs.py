"""Iceberg tables behind a REST catalog and in Hive's metastore: the contract of sinks, and a Spark that is killed."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from random import Random
from typing import ClassVar, TypeAlias

import pytest
from pyiceberg.catalog import load_catalog

from kzconsumer.sinks.interface import Sink
from kzconsumer_sandbox.servers.kafka_servers import Cluster
from kzconsumer_sandbox.servers.topic_creation import create_topic
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.worker_protocol.messages import ToIceberg
from tests.support.chaos import LIMIT, IcebergFiles, SparkGroup, kill_worker
from tests.support.delta import OWNER, Writer, race
from tests.support.extent import only_nightly
from tests.support.flow import flow
from tests.support.hive_metastore import die_with_lock, hive_metastore
from tests.support.rest_catalog import rest_catalog
from tests.support.sink_contract import OurSinkContract
from tests.support.table_sink import TableSink
from tests.support.zookeeper_sessions import until

pytestmark = [pytest.mark.timeout(900), only_nightly]
PARTITIONS = 4
Options: TypeAlias = dict[str, str]
"""With which pyiceberg connects to a catalog."""

SERVERS: dict[str, Callable[[Path], AbstractContextManager[Options]]] = {"rest": rest_catalog, "hive": hive_metastore}


def claimed(options: Options, table: str) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=table, catalog_options=options))
    target.mark(OWNER)
    return target


def values(options: Options, table: str) -> list[bytes | None]:
    rows = load_catalog("default", **options).load_table(table).scan(selected_fields=("value",)).to_arrow()
    found: list[bytes | None] = rows["value"].to_pylist()
    return found


class CatalogContract(OurSinkContract):
    """Its members are processes, which find the catalog's address in the contract's directory."""

    server: ClassVar[str]
    stack: ClassVar[ExitStack]
    sets_aside = True
    kills = 10
    zombies = 5

    @classmethod
    def setup_class(cls) -> None:
        cls.stack = ExitStack()
        folder = cls.stack.enter_context(tempfile.TemporaryDirectory())
        options = cls.stack.enter_context(SERVERS[cls.server](Path(folder)))
        super().setup_class()
        (cls.group.directory / "catalog.json").write_text(json.dumps(options))

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.stack.close()

    def sink(self, directory: Path) -> Sink:
        return TableSink(claimed(options(directory), "lake.orders"), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return values(options(directory), "lake.orders")


class TestRestContract(CatalogContract):
    server = "rest"


class TestHiveContract(CatalogContract):
    server = "hive"


def options(directory: Path) -> Options:
    found: Options = json.loads((directory / "catalog.json").read_text())
    return found


def test_one_of_two_writers_wins_behind_rest(unique: str, tmp_path: Path) -> None:
    table = f"lake.{unique}"
    with rest_catalog(tmp_path / "rest") as catalog:
        expected = race([Writer(claimed(catalog, table), tmp_path / name) for name in "ab"], 30)
        assert sorted(filter(None, values(catalog, table))) == expected


@pytest.mark.parametrize("server", SERVERS)
async def test_kill_of_the_worker(server: str, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """With `destination = "iceberg"`: each record is in the table once. In Hive, another writer dies with the table's
    lock, and the member waits until the lock expires.
    """
    said = "table locked by another writer table=lake.rows seconds=10.0"
    running = hive_metastore(tmp_path / server, lock=25) if server == "hive" else rest_catalog(tmp_path / server)
    await create_topic(cluster.connect, unique, PARTITIONS)
    with (
        running as catalog,
        SparkGroup(None, cluster, unique, PARTITIONS, tmp_path, IcebergFiles(tmp_path / "out", catalog)) as group,
        flow(cluster, unique, PARTITIONS) as sent,
    ):
        group.start("a")
        await group.whole(1)
        await group.past([1] * PARTITIONS)
        if server == "hive":
            await asyncio.to_thread(die_with_lock, catalog, "lake.rows")
            await until(lambda: said in (tmp_path / "a" / "err").read_text(), LIMIT)
            await group.past([at + 1 for at in await group.committed()])
        await kill_worker(group, "a", Random(0))
        await group.past([at + 1 for at in await group.committed()])
        await asyncio.to_thread(sent.end)
        ends = [sent.sent[partition] for partition in range(PARTITIONS)]
        await group.past(ends)
        await group.stop("a")
        assert await group.committed() == ends
        assert await group.verdict() == ([], [])
        assert sum(group.destination.rows().values()) == sum(ends)
