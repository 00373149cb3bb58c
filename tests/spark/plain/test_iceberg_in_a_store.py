"""An Iceberg table in an object store of files. Real stores: `servers/test_tables_in_a_store.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from kzconsumer_files.private_directory import local_attempts
from kzconsumer_spark.destinations.iceberg_log import TableError
from kzconsumer_spark.destinations.iceberg_table import IcebergTarget
from kzconsumer_spark.worker_protocol.messages import ToIceberg
from tests.support.delta import OWNER, Writer
from tests.support.range_data import range_data
from tests.support.store_of_files import StoreOfFiles

TABLE = "lake.orders"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in ("tmp", "objects"):
        (tmp_path / name).mkdir()
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": "s3://bucket/lake",
        "py-io-impl": f"{StoreOfFiles.__module__}.{StoreOfFiles.__name__}",
        "directory": str(tmp_path / "objects"),
    }


def marked(options: dict[str, str]) -> IcebergTarget:
    target = IcebergTarget(ToIceberg(table=TABLE, catalog_options=options))
    target.mark(OWNER)
    return target


def data_of(target: IcebergTarget, folder: Path) -> Path:
    return folder / "objects" / target.open().location().removeprefix("s3://") / "data"


@pytest.mark.long
def test_rows_are_put_into_the_store_and_counted_there(options: dict[str, str], tmp_path: Path) -> None:
    target = marked(options)
    assert not list((tmp_path / "objects").rglob("*probe*"))
    assert target.attempts == local_attempts()
    writer = Writer(target, tmp_path / "scratch")
    assert writer.publish(writer.stage(range_data("t", 1, 0, 2, []))) == 1
    first = writer.stage(range_data("t", 0, 0, 3))
    assert (writer.publish(first), writer.publish(first)) == (1, 0)
    put = target.put(target.open())
    assert put is not None
    ((file, _),) = first[0].files
    put(file, "put.parquet")
    assert (data_of(target, tmp_path) / "put.parquet").read_bytes() == file.read_bytes()
    assert marked(options).set_aside(range_data("t", 2, 0, 4).identity, 4)
    table = load_catalog("default", **options).load_table(TABLE)
    rows = table.scan(selected_fields=("offset", "value")).to_arrow().to_pylist()
    assert sorted(row["offset"] for row in rows) == [0, 1, 2]
    held = target.held(True)
    assert sorted((each.records_in, each.rows) for each in held.ranges) == [(0, 0), (3, 3)]
    assert len(held.leftovers) == 1
    for each in (tmp_path / "objects").rglob("data/t*"):
        each.unlink()
    (lost,) = [each for each in target.held(True).ranges if each.records_in]
    assert (lost.rows, len(lost.faults)) == (None, 1)


def test_a_store_that_cannot_be_written(options: dict[str, str], tmp_path: Path) -> None:
    place = data_of(marked(options), tmp_path)
    place.rmdir()
    place.write_bytes(b"in the way")
    with pytest.raises(TableError, match=r"Iceberg table lake.orders: s3://.* cannot be written: .*; set catalog_opt"):
        marked(options)
