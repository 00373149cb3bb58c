"""Iceberg tables in Hive's metastore, without Spark: writers that race, that outlive their lock, that died with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import EnvironmentContext
from pyiceberg.catalog import load_catalog
from structlog.testing import capture_logs

from kzconsumer.sinks.interface import RangeData
from kzconsumer_files.range_names import NotOurs
from kzconsumer_spark.destinations import iceberg_hive
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.worker_protocol.messages import ToIceberg
from tests.support.delta import OWNER, Writer, race
from tests.support.duckdb_reader import iceberg_by_duckdb as by_duckdb
from tests.support.extent import only_nightly
from tests.support.hive_metastore import die_with_lock, hive_metastore
from tests.support.range_data import range_data

# With a metastore in memory: tests/spark/plain/test_hive_comparison.py; races of tables: test_iceberg_target.py there.
pytestmark = [pytest.mark.timeout(180), only_nightly]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with hive_metastore(tmp_path_factory.mktemp("hive")) as options:
        yield options


@pytest.fixture
def table(unique: str) -> str:
    return f"lake.{unique.replace('-', '_')}"


def claimed(options: dict[str, str], table: str) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=table, catalog_options=options))
    target.mark(OWNER)
    return target


def values(options: dict[str, str], table: str) -> list[bytes | None]:
    """In order, by `pyiceberg`, and the same by DuckDB."""
    found = load_catalog("default", **options).load_table(table)
    rows, same = (each.sort_by("value")["value"].to_pylist() for each in (found.scan().to_arrow(), by_duckdb(found)))
    assert rows == same
    return rows


def one(partition: int, offset: int) -> RangeData:
    return range_data("t", partition, offset, offset + 1)


def test_it_listens_on_loopback_only(options: dict[str, str]) -> None:
    port = f"{urlsplit(options['uri']).port:04X}"
    sockets = [
        line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    addresses = {local for _, local, _, state, *_ in sockets if state == "0A" and local.endswith(f":{port}")}
    assert addresses
    assert addresses <= {f"0100007F:{port}", f"0000000000000000FFFF00000100007F:{port}"}


def test_one_of_two_writers_wins(options: dict[str, str], table: str, tmp_path: Path) -> None:
    expected = race([Writer(claimed(options, table), tmp_path / name) for name in "ab"], 40)
    assert values(options, table) == expected


@pytest.mark.parametrize("compares", [True, False])  # False: the control
def test_a_writer_that_outlives_its_lock(
    options: dict[str, str], table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compares: bool
) -> None:
    """It is suspended after it has compared; its lock expires, and another one commits. With `pyiceberg` alone, the
    rows of the other one are lost.
    """
    if not compares:
        for name in ("compare_and_set", "require_comparison"):
            monkeypatch.setattr(iceberg_hive, name, lambda *ignored: None)
        options = {**options, "lock-check-max-wait-time": "0.5", "lock-check-retries": "100"}
    late, other = (Writer(claimed(options, table), tmp_path / name) for name in ("late", "other"))
    late.publish(late.stage(one(0, 0)))  # the table gets its columns
    change, left = Client.alter_table_with_environment_context, [True]

    def suspended(*request: Any, **named: Any) -> None:
        if left:
            left.pop()
            assert other.publish(other.stage(one(1, 10))) == 1
        change(*request, **named)

    monkeypatch.setattr(Client, "alter_table_with_environment_context", suspended)
    assert late.publish(late.stage(one(0, 1))) == 1
    assert values(options, table) == ([b"v0", b"v1", b"v10"] if compares else [b"v0", b"v1"])


def test_others_go_on_when_the_lock_of_a_dead_writer_expires(
    options: dict[str, str], table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_hive, "PATIENCE", 0.5)
    writer = Writer(claimed(options, table), tmp_path)
    writer.publish(writer.stage(one(0, 0)))
    staged, leases = writer.stage(one(0, 1)), list[bool]()
    die_with_lock(options, table)
    with capture_logs() as logs:
        assert writer.publish(staged, lambda: leases.append(True)) == 1
    waits = [each for each in logs if each["event"] == "table locked by another writer"]
    assert waits[0] == {"event": waits[0]["event"], "log_level": "warning", "table": table, "seconds": 0.5}
    assert len(leases) == len(waits) + 1  # it looks at the lease again after each of them
    assert values(options, table) == [b"v0", b"v1"]


@pytest.mark.parametrize("server", ["not asked to", "before 2.3.10"])
def test_a_metastore_that_does_not_compare_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    change = Client.alter_table_with_environment_context

    def without_comparison(client: Client, database: str, name: str, changed: Any, context: Any) -> None:
        change(client, database, name, changed, EnvironmentContext({}))

    said = "cannot compare and set, as Hive 2.3.10 and 4.0.1 can: it said partition keys can not be changed."
    message = f"^the metastore of the catalog default {re.escape(said)}$"
    with ExitStack() as stack:
        if server == "not asked to":
            options = request.getfixturevalue("options")
            monkeypatch.setattr(Client, "alter_table_with_environment_context", without_comparison)
        else:
            options = stack.enter_context(hive_metastore(tmp_path, compares=False))
        with pytest.raises(NotOurs, match=message):
            claimed(options, table)
