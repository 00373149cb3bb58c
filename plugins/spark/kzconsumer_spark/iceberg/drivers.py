"""What `pyiceberg` needs to reach a catalog, checked before one is asked: its type, address and packages."""

from __future__ import annotations

import importlib.util
from typing import Final

from pyiceberg.utils.config import Config

from kzconsumer.errors import ConfigError
from kzconsumer_spark.pipe.messages import ToIceberg

_WHERE: Final = "[sink.options] catalog"
SUPPORTED: Final = ("rest", "sql", "hive")
_OF_TYPES: Final = {"sql": "sqlalchemy", "hive": "thrift"}
#: By what a URI begins with: its type, the package beside that of the type, and the extra of pyiceberg.
_OF_URIS: Final = {
    "sqlite": ("sql", "sqlite3", "sql-sqlite"),
    "postgresql+psycopg2": ("sql", "psycopg2", "sql-postgres"),
    "postgresql": ("sql", "psycopg2", "sql-postgres"),
    "thrift": ("hive", "thrift", "hive"),
}


def require_drivers(to: ToIceberg) -> None:
    """Raises ConfigError for a package that is missing, or a catalog that is not configured or not supported."""
    if "py-catalog-impl" in to.catalog_options:
        return
    known = {**(Config().get_catalog_config(to.catalog) or {}), **to.catalog_options}
    uri = str(known.get("uri") or "")
    scheme = uri.partition(":")[0]
    kind, driver, extra = _OF_URIS.get(scheme, (None, None, None))
    kind = str(known.get("type") or kind or "").lower()
    if not kind and scheme.startswith("http"):
        kind = "rest"
    if kind and kind not in SUPPORTED:
        raise ConfigError([f'{_WHERE}: {to.catalog} is of type "{kind}": supported are {", ".join(SUPPORTED)}'])
    if not uri:
        variable = f"PYICEBERG_CATALOG__{to.catalog}__URI".upper().replace(".", "__").replace("-", "_")
        places = f"catalog_options, the variable {variable} or ~/.pyiceberg.yaml"
        raise ConfigError([f"{_WHERE}: {to.catalog} is without uri: use {places}"])
    if not kind:
        raise ConfigError(
            [f"{_WHERE}: {to.catalog}: type is missing, and its uri does not say it: one of {', '.join(SUPPORTED)}"]
        )
    packages = [_OF_TYPES.get(kind), driver if kind in _OF_TYPES else None]
    if missing := [each for each in packages if each is not None and importlib.util.find_spec(each) is None]:
        raise ConfigError(
            [f'{_WHERE}: {to.catalog}, of type "{kind}", needs {missing[0]}: pip install "pyiceberg[{extra or kind}]"']
        )
