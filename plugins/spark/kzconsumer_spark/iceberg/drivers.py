"""The packages by which `pyiceberg` reaches a catalog, checked before one is asked."""

from __future__ import annotations

import importlib.util
from typing import Final

from pyiceberg.utils.config import Config

from kzconsumer.errors import ConfigError
from kzconsumer_spark.pipe.messages import ToIceberg

_OF_TYPES: Final = {"sql": "sqlalchemy", "hive": "thrift"}
#: By what a URI begins with: its type, the package beside that of the type, and the extra of pyiceberg.
_OF_URIS: Final = {
    "sqlite": ("sql", "sqlite3", "sql-sqlite"),
    "postgresql+psycopg2": ("sql", "psycopg2", "sql-postgres"),
    "postgresql": ("sql", "psycopg2", "sql-postgres"),
    "thrift": ("hive", "thrift", "hive"),
}


def require_drivers(to: ToIceberg) -> None:
    """Raises ConfigError for a package that is missing. What is not known is left to `pyiceberg`."""
    known = {**(Config().get_catalog_config(to.catalog) or {}), **to.catalog_options}
    scheme = str(known.get("uri", "")).partition(":")[0]
    kind, driver, extra = _OF_URIS.get(scheme, (None, None, None))
    kind = str(known.get("type") or kind or "")
    packages = [_OF_TYPES.get(kind), driver if kind in _OF_TYPES else None]
    if missing := [each for each in packages if each is not None and importlib.util.find_spec(each) is None]:
        raise ConfigError(
            [
                f'[sink.options] catalog: {to.catalog}, of type "{kind}", needs {missing[0]}:'
                f' pip install "pyiceberg[{extra or kind}]"'
            ]
        )
