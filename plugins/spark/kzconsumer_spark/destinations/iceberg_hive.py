"""Hive's metastore as a catalog whose commits compare and set.

`pyiceberg` compares under a lock, which the metastore gives to another writer while its owner is suspended. Here a
commit also names the metadata that it replaces, and the metastore carries it out only if the table still has that one
(HIVE-26882 and HIVE-28121: Hive 2.3.10, 4.0.1 and later). The lock is taken nevertheless, for writers that compare
under it only.
"""

from __future__ import annotations

import time
from typing import Any, Final

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    CheckLockRequest,
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    InvalidOperationException,
    LockState,
    MetaException,
    UnlockRequest,
)
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import CommitFailedException

from kzconsumer import clock
from kzconsumer.logs.logger import get_logger
from kzconsumer_files.range_names import NotOurs

_EXPECTED: Final = "metadata_location"
_MODIFIED: Final = "The table has been modified"  # of all metastores that compare
_NOTHING_NEW: Final = f"New value for expected key {_EXPECTED}"  # of those that also set by comparing (HIVE-28121)
PATIENCE: Final = 10.0
"""Seconds to wait for the lock; then the caller looks at the lease before it tries again."""
_PAUSE: Final = 0.1
_log = get_logger("kzconsumer.spark")


class _Comparing(Client):  # type: ignore[misc]  # generated, without types
    def get_table(self, dbname: str, tbl_name: str) -> Any:
        """By the request that Hive 4 has kept."""
        return self.get_table_req(GetTableRequest(dbName=dbname, tblName=tbl_name)).table

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        """Raises CommitFailedException if the table has other metadata than those that are replaced."""
        replaced = new_tbl.parameters["previous_metadata_location"]
        comparison = {"expected_parameter_key": _EXPECTED, "expected_parameter_value": replaced}
        compared = EnvironmentContext({**environment_context.properties, **comparison})
        try:
            super().alter_table_with_environment_context(dbname, tbl_name, new_tbl, compared)
        except MetaException as error:
            if _MODIFIED in (error.message or ""):
                raise CommitFailedException(error.message) from error
            raise

    def lock(self, rqst: Any) -> Any:
        """Raises CommitFailedException while another writer holds the lock, or has died with it."""
        found, until = super().lock(rqst), clock.now() + PATIENCE
        while found.state == LockState.WAITING:
            if clock.now() > until:
                self.unlock(UnlockRequest(lockid=found.lockid))
                (of,) = rqst.component
                _log.warning("table locked by another writer", table=f"{of.dbname}.{of.tablename}", seconds=PATIENCE)
                raise CommitFailedException("locked by another writer")
            time.sleep(_PAUSE)
            found = self.check_lock(CheckLockRequest(lockid=found.lockid))
        return found


class _Connection:
    """A connection of `pyiceberg`, with our client on it."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def __enter__(self) -> _Comparing:
        client = self._plain.__enter__()
        return _Comparing(client._iprot)

    def __exit__(self, *error: object) -> None:
        self._plain.__exit__(*error)


def compare_and_set(catalog: Catalog) -> None:
    """From now on, in all commits of this catalog."""
    assert isinstance(catalog, HiveCatalog)
    catalog._client = _Connection(catalog._client)  # type: ignore[assignment]


def require_comparison(catalog: Catalog, name: str) -> None:
    """Raises NotOurs if the metastore changes a table without comparing, or sets it in another transaction (4.0.0).

    It is asked for changes that every one refuses; the reasons show what it compared first.
    """
    assert isinstance(catalog, HiveCatalog)
    database, table = catalog.identifier_to_database_and_table(name)
    with catalog._client as client:
        found = client.get_table(database, table)
        found.partitionKeys = [*found.partitionKeys, FieldSchema("kzconsumer", "string", "")]
        found.parameters["previous_metadata_location"] = "-"
        for reason in (_MODIFIED, _NOTHING_NEW):
            if reason not in (said := _refusal(client, found)):
                raise NotOurs(
                    f"the metastore of the catalog {catalog.name} cannot compare and set, as Hive 2.3.10 and 4.0.1 can:"
                    f" it said {said}"
                )
            found.parameters.pop(_EXPECTED, None)


def _refusal(client: Client, changed: Any) -> str:
    try:
        client.alter_table_with_environment_context(changed.dbName, changed.tableName, changed, EnvironmentContext({}))
    except CommitFailedException as error:
        return str(error)
    except (InvalidOperationException, MetaException) as error:
        return str(error.message)
    raise AssertionError("the metastore has changed the columns by which a table is partitioned")
