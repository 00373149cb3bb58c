"""DuckDB as a reader of Delta and Iceberg tables. Its extensions come from PyPI: nothing else is downloaded."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
from pyiceberg.table import Table

from tests.support.object_store import ObjectStore


def delta_by_duckdb(uri: object, store: ObjectStore | None = None) -> pa.Table:
    """All rows of the table in a directory, or at `s3://...` in `store`, in the order of their columns."""
    return _rows("delta_scan", str(uri), store)


def iceberg_by_duckdb(table: Table, store: ObjectStore | None = None) -> pa.Table:
    return _rows("iceberg_scan", table.metadata_location, store)


def _rows(scan: str, place: str, store: ObjectStore | None) -> pa.Table:
    with _database().cursor() as reader:
        if store is not None:
            address = urlsplit(store.endpoint).netloc
            access = f"KEY_ID 'tester', SECRET '{store.secret}', ENDPOINT '{address}', REGION 'us-east-1'"
            reader.execute(f"CREATE OR REPLACE SECRET store (TYPE s3, {access}, URL_STYLE 'path', USE_SSL false)")
        found: pa.Table = reader.execute(f"FROM {scan}($1) ORDER BY ALL", [place]).to_arrow_table()
        return found


@cache
def _database() -> Any:
    alone: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": 2,
    }
    database = duckdb.connect(config=alone)
    for name in ("avro", "iceberg", "delta", "httpfs"):
        folder = files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
        database.load_extension(str(folder / f"{name}.duckdb_extension"))
    return database
