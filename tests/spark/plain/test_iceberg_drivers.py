"""What an Iceberg catalog needs is looked for before it is asked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer_spark.destinations import iceberg_log
from kzconsumer_spark.destinations.iceberg_log import SUPPORTED, require_drivers
from kzconsumer_spark.worker_protocol.messages import ToIceberg

SQLITE = {"type": "sql", "uri": "sqlite:////lake.db"}


@pytest.mark.parametrize(
    ("options", "missing", "fault"),
    [
        (
            {"type": "sql", "uri": "sqlite:////lake.db"},
            "sqlalchemy",
            'needs sqlalchemy: pip install "pyiceberg[sql-sqlite]"',
        ),
        ({"uri": "postgresql+psycopg2://h/d"}, "psycopg2", 'needs psycopg2: pip install "pyiceberg[sql-postgres]"'),
        ({"type": "hive", "uri": "thrift://h:9083"}, "thrift", 'needs thrift: pip install "pyiceberg[hive]"'),
        ({"type": "rest", "uri": "http://h"}, "sqlalchemy", None),
        (SQLITE, "thrift", None),
        ({"py-catalog-impl": "module.Catalog"}, "sqlalchemy", None),
    ],
)
def test_a_missing_package_is_a_fault_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], missing: str, fault: str | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    to = ToIceberg(table="lake.orders", catalog="lake", catalog_options=options)
    if fault is None:
        require_drivers(to)
        return
    with pytest.raises(ConfigError) as caught:
        require_drivers(to)
    assert str(caught.value).startswith("[sink.options] catalog: lake, of type ")
    assert str(caught.value).endswith(fault)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (
            {"type": "sql"},
            "a-b is without uri: use catalog_options, the variable PYICEBERG_CATALOG__A_B__URI or ~/.pyiceberg.yaml",
        ),
        ({"warehouse": "file:///lake"}, "a-b is without uri: use catalog_options,"),
        ({"uri": "jdbc:postgresql://h/d"}, "a-b: type is missing, and its uri does not say it: one of rest, sql, hive"),
        ({"type": "Glue"}, 'a-b is of type "glue": supported are rest, sql, hive'),
        ({"type": "in-memory", "warehouse": "file:///lake"}, 'a-b is of type "in-memory": supported are'),
    ],
)
def test_a_catalog_that_is_not_configured_or_not_supported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: dict[str, str], fault: str
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        require_drivers(ToIceberg(table="lake.orders", catalog="a-b", catalog_options=options))
    assert str(caught.value).startswith(f"[sink.options] catalog: {fault}")


def test_supported_catalogs_are_those_of_the_table() -> None:
    assert {f"{kind.capitalize()}Catalog" for kind in SUPPORTED} == set(iceberg_log.CATALOGS)
