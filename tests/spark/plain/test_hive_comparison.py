"""Commits to Hive's metastore that compare and set, over Thrift, with a metastore in memory that does so or does not.

`servers/test_iceberg_hive.py` has the same of a real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hive_metastore.ThriftHiveMetastore import Client, Iface, Processor
from hive_metastore.ttypes import (
    CheckLockRequest,
    EnvironmentContext,
    GetTableRequest,
    GetTableResult,
    InvalidOperationException,
    LockComponent,
    LockRequest,
    LockResponse,
    LockState,
    MetaException,
    Table,
    UnlockRequest,
)
from pyiceberg.catalog.hive import HiveCatalog
from pyiceberg.exceptions import CommitFailedException
from structlog.testing import capture_logs
from thrift.protocol.TBinaryProtocol import TBinaryProtocol  # type: ignore[import-untyped]
from thrift.transport.TTransport import TMemoryBuffer, TTransportBase  # type: ignore[import-untyped]

from kzconsumer_files.range_names import NotOurs
from kzconsumer_spark.destinations import iceberg_hive
from kzconsumer_spark.destinations.iceberg_hive import PATIENCE, compare_and_set, require_comparison

AT = "metadata_location"


class Metastore(Iface):  # type: ignore[misc]  # generated, without types
    """One table. `compares` as Hive does: with the change, or only before it, in another transaction (4.0.0)."""

    def __init__(self, compares: str = "with the change") -> None:
        self.compares = compares
        self.table = Table("t", "lake", parameters={AT: "m0"}, partitionKeys=[])
        self.fault: Exception | None = None
        self.waits = 0
        self.unlocked: list[int] = []

    def get_table_req(self, req: GetTableRequest) -> GetTableResult:
        assert (req.dbName, req.tblName) == ("lake", "t")
        return GetTableResult(self.table)

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Table, environment_context: EnvironmentContext
    ) -> None:
        if self.fault is not None:
            raise self.fault
        asked = environment_context.properties
        key, value = asked.get("expected_parameter_key"), asked.get("expected_parameter_value")
        if self.compares == "with the change" and key and key not in new_tbl.parameters:
            raise MetaException(f"New value for expected key {key} is not set")
        if self.compares != "never" and key and self.table.parameters.get(key) != value:
            raise MetaException(f"The table has been modified. The parameter value for key '{key}' is another")
        if new_tbl.partitionKeys != self.table.partitionKeys:
            raise InvalidOperationException("partition keys can not be changed.")
        self.table = new_tbl

    def lock(self, rqst: LockRequest) -> LockResponse:
        return self.check_lock(CheckLockRequest(lockid=7))

    def check_lock(self, rqst: CheckLockRequest) -> LockResponse:
        assert rqst.lockid == 7
        self.waits -= 1
        return LockResponse(7, LockState.WAITING if self.waits >= 0 else LockState.ACQUIRED)

    def unlock(self, rqst: UnlockRequest) -> None:
        self.unlocked.append(rqst.lockid)


class Wire(TTransportBase):  # type: ignore[misc]
    """Each request is answered when it is flushed."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._request, self._answer = TMemoryBuffer(), TMemoryBuffer()

    def write(self, data: bytes) -> None:
        self._request.write(data)

    def read(self, size: int) -> bytes:
        return bytes(self._answer.read(size))

    def flush(self) -> None:
        request, self._request, self._answer = TMemoryBuffer(self._request.getvalue()), TMemoryBuffer(), TMemoryBuffer()
        self._processor.process(TBinaryProtocol(request), TBinaryProtocol(self._answer))
        self._answer = TMemoryBuffer(self._answer.getvalue())


class Plain:
    """What `pyiceberg` has of a connection."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        self.open = 0

    def __enter__(self) -> Client:
        self.open += 1
        return Client(TBinaryProtocol(Wire(Processor(self._metastore))))

    def __exit__(self, *error: object) -> None:
        self.open -= 1


def catalog_of(metastore: Metastore) -> HiveCatalog:
    catalog = HiveCatalog("lake of ours", uri="thrift://127.0.0.1:1")
    catalog._client = Plain(metastore)  # type: ignore[assignment]
    return catalog


def comparing(metastore: Metastore) -> Any:
    catalog = catalog_of(metastore)
    compare_and_set(catalog)
    return catalog._client


def commit(connection: Any, replaced: str, location: str) -> None:
    with connection as client:
        table = client.get_table("lake", "t")
        table.parameters = {AT: location, "previous_metadata_location": replaced}
        given = EnvironmentContext({"DO_NOT_UPDATE_STATS": "true"})
        client.alter_table_with_environment_context("lake", "t", table, given)


def test_a_commit_replaces_the_metadata_that_it_was_made_of_or_none() -> None:
    metastore = Metastore()
    connection = comparing(metastore)
    commit(connection, "m0", "m1")
    with pytest.raises(CommitFailedException, match="The table has been modified"):
        commit(connection, "m0", "m2")
    assert metastore.table.parameters[AT] == "m1"
    commit(connection, "m1", "m2")
    assert metastore.table.parameters[AT] == "m2"
    assert connection._plain.open == 0


@pytest.mark.parametrize("message", ["no space left", None])
def test_another_refusal_of_the_metastore_is_no_lost_race(message: str | None) -> None:
    metastore = Metastore()
    metastore.fault = MetaException(message)
    with pytest.raises(MetaException) as raised:
        commit(comparing(metastore), "m0", "m1")
    assert raised.value.message == message


@pytest.mark.parametrize(
    ("compares", "said"),
    [
        ("with the change", None),
        ("before", f"The table has been modified. The parameter value for key '{AT}' is another"),
        ("never", "partition keys can not be changed."),
    ],
)
def test_a_metastore_has_to_compare_in_the_transaction_of_the_change(compares: str, said: str | None) -> None:
    """It is asked by changes that every one refuses: the table stays as it is."""
    metastore = Metastore(compares)
    catalog = catalog_of(metastore)
    compare_and_set(catalog)
    if said is None:
        require_comparison(catalog, "lake.t")
    else:
        with pytest.raises(NotOurs) as raised:
            require_comparison(catalog, "lake.t")
        assert str(raised.value) == (
            "the metastore of the catalog lake of ours cannot compare and set, as Hive 2.3.10 and 4.0.1 can: it said "
            + said
        )
    assert (metastore.table.parameters, metastore.table.partitionKeys) == ({AT: "m0"}, [])


@pytest.mark.parametrize(("waits", "granted"), [(0, True), (3, True), (101, True), (102, False), (10_000, False)])
def test_the_lock_of_another_writer_is_waited_for_up_to_a_limit(
    waits: int, granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the place in the queue is given back, and the caller looks at its lease before it tries again."""
    time = [500.0]
    monkeypatch.setattr(iceberg_hive, "clock", SimpleNamespace(now=lambda: time[0]))
    monkeypatch.setattr(
        iceberg_hive, "time", SimpleNamespace(sleep=lambda seconds: time.__setitem__(0, round(time[0] + seconds, 3)))
    )
    metastore = Metastore()
    metastore.waits = waits
    request = LockRequest(
        component=[LockComponent(type=1, level=2, dbname="lake", tablename="t")], user="u", hostname="h"
    )
    with comparing(metastore) as client, capture_logs() as logs:
        if granted:
            assert client.lock(request).state == LockState.ACQUIRED
            assert (metastore.unlocked, logs) == ([], [])
        else:
            with pytest.raises(CommitFailedException, match="locked by another writer"):
                client.lock(request)
            assert metastore.unlocked == [7]
            (line,) = logs
            assert (line["table"], line["seconds"]) == ("lake.t", PATIENCE)
    assert time[0] - 500.0 <= PATIENCE + 0.2
    assert time[0] - 500.0 == pytest.approx(0.1 * min(waits, 101), abs=0.001)
