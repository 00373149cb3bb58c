"""Packages of Iceberg catalogs are looked for before a catalog is asked."""

from __future__ import annotations

import importlib.util

import pytest

from kzconsumer.errors import ConfigError
from kzconsumer_spark.daemon.destination import require_usable
from kzconsumer_spark.pipe.messages import ToIceberg

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
    ],
)
def test_a_missing_package_is_a_fault_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], missing: str, fault: str | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else object())
    to = ToIceberg(table="lake.orders", catalog="lake", catalog_options=options)
    if fault is None:
        require_usable(to)
        return
    with pytest.raises(ConfigError) as caught:
        require_usable(to)
    assert str(caught.value).startswith("[sink.options] catalog: lake, of type ")
    assert str(caught.value).endswith(fault)
