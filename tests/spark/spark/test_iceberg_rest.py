"""An Iceberg table behind a REST catalog: the contract of sinks, two writers, and a Spark that is killed."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
from pyiceberg.catalog import load_catalog

from kzconsumer.sinks.interface import Sink
from kzconsumer_sandbox.servers.cluster import Cluster
from kzconsumer_sandbox.servers.topics import create_topic
from kzconsumer_spark.iceberg.target import IcebergTarget
from kzconsumer_spark.pipe.messages import ToIceberg
from tests.support.chaos import IcebergFiles, SparkGroup, kill_worker
from tests.support.delta import OWNER, Writer
from tests.support.extent import only_nightly
from tests.support.flow import flow
from tests.support.range_data import range_data
from tests.support.rest_catalog import RestCatalog, rest_catalog
from tests.support.sink_contract import OurSinkContract
from tests.support.table_sink import TableSink

pytestmark = [pytest.mark.timeout(900), only_nightly]
PARTITIONS = 4


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as running:
        yield running


def claimed(options: dict[str, str], table: str) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=table, catalog_options=options))
    target.claim(OWNER)
    return target


def values(options: dict[str, str], table: str) -> list[bytes | None]:
    rows = load_catalog("default", **options).load_table(table).scan(selected_fields=("value",)).to_arrow()
    found: list[bytes | None] = rows["value"].to_pylist()
    return found


class TestContract(OurSinkContract):
    """Its members are processes, which find the catalog's address in the contract's directory."""

    stack: ClassVar[ExitStack]
    sets_aside = True
    kills = 10
    zombies = 5

    @classmethod
    def setup_class(cls) -> None:
        cls.stack = ExitStack()
        folder = cls.stack.enter_context(tempfile.TemporaryDirectory())
        running = cls.stack.enter_context(rest_catalog(Path(folder)))
        super().setup_class()
        (cls.group.directory / "catalog.json").write_text(json.dumps(running.options))

    @classmethod
    def teardown_class(cls) -> None:
        super().teardown_class()
        cls.stack.close()

    def sink(self, directory: Path) -> Sink:
        return TableSink(claimed(options(directory), "lake.orders"), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return values(options(directory), "lake.orders")


def options(directory: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((directory / "catalog.json").read_text())
    return found


def test_one_of_two_writers_wins(catalog: RestCatalog, unique: str, tmp_path: Path) -> None:
    """They have the same ranges; each knows how many of them it wrote."""
    table = f"lake.{unique}"
    writers = [Writer(claimed(catalog.options, table), tmp_path / name) for name in "ab"]
    with ThreadPoolExecutor(2) as threads:
        for first in range(30):
            start = threading.Barrier(2)

            def write(writer: Writer[IcebergTarget], first: int = first, start: threading.Barrier = start) -> int:
                staged = writer.stage(range_data("t", 0, first, first + 1))
                start.wait()
                return writer.publish(staged)

            assert sum(threads.map(write, writers)) == 1
    assert sorted(filter(None, values(catalog.options, table))) == sorted(b"v%d" % offset for offset in range(30))


async def test_kill_of_the_worker(catalog: RestCatalog, cluster: Cluster, unique: str, tmp_path: Path) -> None:
    """With `destination = "iceberg"`: each record is in the table once."""
    await create_topic(cluster.connect, unique, PARTITIONS)
    table = IcebergFiles(tmp_path / "out", catalog.options)
    with (
        SparkGroup(None, cluster, unique, PARTITIONS, tmp_path, table) as group,
        flow(cluster, unique, PARTITIONS) as sent,
    ):
        group.start("a")
        await group.whole(1)
        await group.past([1] * PARTITIONS)
        await kill_worker(group, "a", Random(0))
        await group.past([at + 1 for at in await group.committed()])
        await asyncio.to_thread(sent.end)
        ends = [sent.sent[partition] for partition in range(PARTITIONS)]
        await group.past(ends)
        await group.stop("a")
        assert await group.committed() == ends
        assert await group.verdict() == ([], [])
        assert sum(table.rows().values()) == sum(ends)
