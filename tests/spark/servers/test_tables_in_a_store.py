"""Delta and Iceberg tables in an object store, as the Spark sink writes them, without Spark: the contract of sinks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Sink, SinkContext
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import NotOurs
from kzconsumer_spark.daemon.marked_destination import mark
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.destinations.delta_table import DeltaTarget
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.worker_protocol.messages import ToDelta, ToIceberg
from tests.support.batch_ranges import SETTINGS
from tests.support.copied import copied
from tests.support.delta import OWNER, Writer, race
from tests.support.duckdb_reader import delta_by_duckdb, iceberg_by_duckdb
from tests.support.extent import extent, only_nightly
from tests.support.object_store import AmazonStore, ObjectStore
from tests.support.range_data import range_data
from tests.support.store_contract import Reach, StoreContract
from tests.support.table_sink import TableSink

pytestmark = pytest.mark.timeout(extent(600, 3600))
TABLE = "lake.orders"


KINDS = ("delta", "iceberg")
# By day Google's store has files: tests/files/servers/test_object_target.py.
EACH_BY_NIGHT = pytest.mark.parametrize(
    "store", ["s3", *(pytest.param(each, marks=only_nightly) for each in ("gs", "abfss"))], indirect=True
)


def delta(reach: Reach | ObjectStore) -> DeltaTarget:
    target = DeltaTarget(ToDelta(path=table_place(reach), store_options=reach.options))
    target.mark(OWNER)
    return target


def table_place(reach: Reach | ObjectStore) -> str:
    return reach.lake if isinstance(reach, Reach) else reach.uri("lake")


def delta_rows(reach: Reach | ObjectStore) -> list[bytes | None]:
    table = DeltaTable(table_place(reach), storage_options={**reach.options, "allow_http": "true"})
    found: list[bytes | None] = table.to_pyarrow_table(columns=["value"])["value"].to_pylist()
    return found


def catalog_options(directory: Path, reach: Reach | ObjectStore) -> dict[str, str]:
    """A catalog in a file, tables in the store."""
    warehouse = reach.warehouse if isinstance(reach, Reach) else reach.uri("warehouse")
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": warehouse, **reach.properties}


def iceberg(directory: Path, reach: Reach | ObjectStore) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=catalog_options(directory, reach)))
    target.mark(OWNER)
    return target


def iceberg_rows(directory: Path, reach: Reach | ObjectStore) -> list[bytes | None]:
    table = load_catalog("default", **catalog_options(directory, reach)).load_table(TABLE)
    found: list[bytes | None] = table.scan(selected_fields=("value",)).to_arrow()["value"].to_pylist()
    return found


@only_nightly  # a slice of it: the races below, and the contract with tables in directories
class TestDeltaContract(StoreContract):
    sets_aside = True
    kills = 10  # each takes ten seconds and more
    zombies = 5

    def sink(self, directory: Path) -> Sink:
        return TableSink(delta(self.reach(directory)), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return delta_rows(self.reach(directory))


class TestDeltaContractGoogle(TestDeltaContract):
    scheme = "gs"


class TestDeltaContractAzure(TestDeltaContract):
    scheme = "abfss"


@only_nightly
class TestIcebergContract(StoreContract):
    sets_aside = True
    kills = 10
    zombies = 5

    def sink(self, directory: Path) -> Sink:
        return TableSink(iceberg(directory, self.reach(directory)), directory / "scratch")

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        return iceberg_rows(directory, self.reach(directory))

    def copy(self, directory: Path) -> Callable[[], None]:
        parts = super().copy(directory), copied(directory)

        def restore() -> None:
            for each in parts:
                each()

        return restore


class TestIcebergContractGoogle(TestIcebergContract):
    scheme = "gs"


class TestIcebergContractAzure(TestIcebergContract):
    scheme = "abfss"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    scheme, _, conditions = request.param.partition(" ")
    with ExitStack() as stack:
        if request.param == "s3":
            server = request.getfixturevalue("amazon")
        else:
            server = stack.enter_context(ObjectStore.running(tmp_path / "store", conditions or "all", scheme))
        for key, value in server.environment.items():
            monkeypatch.setenv(key, value)
        yield server


@pytest.mark.parametrize("kind", KINDS)
@EACH_BY_NIGHT
def test_a_table_in_a_store_is_verified(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    target: DeltaTarget | IcebergTarget
    target = delta(store) if kind == "delta" else iceberg(tmp_path, store)
    writer = Writer(target, tmp_path / "scratch")
    assert writer.publish(writer.stage(range_data("t", 1, 0, 2, []))) == (0 if kind == "delta" else 1)
    first = range_data("t", 0, 0, 3)
    assert writer.publish(writer.stage(first)) == 1
    assert writer.publish(writer.stage(first)) == 0
    assert writer.publish(writer.stage(range_data("t", 0, 3, 5))) == 1
    values = delta_rows(store) if kind == "delta" else iceberg_rows(tmp_path, store)
    assert sorted(filter(None, values)) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    if store.scheme == "s3":
        if isinstance(target, DeltaTarget):
            table = delta_by_duckdb(table_place(store), store)
        else:
            table = iceberg_by_duckdb(target.open(), store)
        assert Counter(table["value"].to_pylist()) == Counter(values)
    found = target.held(True)
    assert [each.rows for each in found.ranges if each.records_in] == [3, 2]
    assert not [each for each in found.ranges if each.faults]


@EACH_BY_NIGHT
def test_ranges_of_long_topics_that_an_earlier_version_settled_before_there_was_a_table(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the whole topic in the keys of a store."""
    aside, empty = range_data("t" * 220, 0, 0, 3), range_data("t" * 220, 1, 0, 3, [])
    target = delta(store)
    writer = Writer(target, tmp_path / "scratch")
    with monkeypatch.context() as before:
        before.setattr("kzconsumer_files.range_names.named_after", lambda topic, name, most=0: name(topic))
        assert target.set_aside(aside.identity, 3)
        assert writer.publish(writer.stage(empty)) == 0
    assert target.has([aside.identity, empty.identity]) == [empty.identity]
    with pytest.raises(SetAside):
        writer.publish(writer.stage(aside, range_data("t", 2, 0, 3)))
    assert len(delta_rows(store)) == 3


# Iceberg's commits are its catalog's, wherever the files are: tests/spark/plain/test_iceberg_target.py.
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=only_nightly)])
@EACH_BY_NIGHT
def test_one_of_two_writers_wins(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    targets: list[DeltaTarget | IcebergTarget]
    targets = [delta(store) if kind == "delta" else iceberg(tmp_path, store) for _ in "ab"]
    writers = [Writer(target, tmp_path / name) for target, name in zip(targets, "ab", strict=True)]
    expected = race(writers, extent(2, 50))
    values = delta_rows(store) if kind == "delta" else iceberg_rows(tmp_path, store)
    assert sorted(filter(None, values)) == expected


@EACH_BY_NIGHT
def test_an_endpoint_in_the_environment(store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With plain HTTP, and without options."""
    for key, value in store.options.items():
        monkeypatch.setenv(key.upper(), value)
    monkeypatch.setattr(store, "options", {})
    writer = Writer(delta(store), tmp_path / "scratch")
    assert writer.publish(writer.stage(range_data("t", 0, 0, 3))) == 1


@pytest.mark.parametrize("store", extent(["s3 none"], ["s3 none", "gs none", "abfss none"]), indirect=True)
def test_a_store_without_conditional_puts_is_refused_for_delta(store: ObjectStore) -> None:
    """An Iceberg table's commits are the catalog's."""
    with pytest.raises(NotOurs, match=f"{store.uri('lake')}: this store does not honour conditional writes"):
        delta(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_start_without_leave_to_write_names_the_store_before_there_is_a_worker(
    amazon: AmazonStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Everything can be read, also that the table is there."""
    for key, value in amazon.environment.items():
        monkeypatch.setenv(key, value)
    place, options = TABLE, {"table": TABLE, "catalog_options": catalog_options(tmp_path, amazon)}
    if kind == "delta":
        place, options = amazon.uri("lake"), {"path": amazon.uri("lake"), "store_options": amazon.options}
    context = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    sink = SparkSink({"destination": kind, **options}, context)
    mark(sink.target, OWNER)
    assert not [name for name in amazon.objects() if "probe" in name]
    amazon.deny_writes()
    with pytest.raises(ConfigError, match=rf"^\[sink.options\]: .*{place}.*(AccessDenied|ACCESS_DENIED)") as caught:
        await sink.__aenter__()
    assert "\n" not in str(caught.value)
    assert sink.workers is None
