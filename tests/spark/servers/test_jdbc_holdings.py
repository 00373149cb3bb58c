"""What the Spark sink reports about a PostgreSQL table: the ledger, and the existing rows, counted by range."""

from __future__ import annotations

import msgspec
import pytest

from kzconsumer.model import RangeIdentity
from kzconsumer_files.range_names import NotOurs, TargetOwner
from kzconsumer_spark.destinations.jdbc_database import STAGE
from kzconsumer_spark.destinations.jdbc_table import JdbcHoldings, JdbcTable
from kzconsumer_spark.ranges.batch import RANGE_PARTITION, RANGE_TOPIC
from kzconsumer_spark.worker_protocol.messages import ToJdbc
from tests.support.batch_ranges import batch_range
from tests.support.postgres import Postgres

OWNER = TargetOwner(cluster="c", group="g")
COLUMNS = ["topic", "partition", "offset"]


@pytest.fixture
def to(database: Postgres, monkeypatch: pytest.MonkeyPatch, unique: str) -> ToJdbc:
    monkeypatch.setenv("DATABASE_PASSWORD", database.password)
    database.query(f'CREATE TABLE "{unique}" (topic text, "partition" int, "offset" int)')
    return ToJdbc(url=database.url, table=unique, user=database.user, password_env="DATABASE_PASSWORD")


def publish(to: ToJdbc, first: int, partition: int = 0, epoch: int = 0, owner: TargetOwner = OWNER) -> None:
    """Three records, published like a worker does."""
    table = JdbcTable(to)
    table.mark(owner)
    part = batch_range("t", partition, first, first + 3, incarnation=-5, epoch=epoch)
    with table.connect() as connection:
        stage = table.stages.own(connection)
        name = table.stages.make(connection, stage, COLUMNS)
        tags = f"{RANGE_TOPIC}, {RANGE_PARTITION}"
        query = f'INSERT INTO {name} (topic, "partition", "offset", {tags}) SELECT %s, %s, n, %s, %s FROM'
        values = ["t", partition, "t", partition, first, first + 2]
        connection.execute(f"{query} generate_series(%s::int, %s::int) AS n".encode(), values)
        table.publish(connection, {part: 3}, {}, stage, COLUMNS, lambda: None)
        table.stages.drop(connection, stage)


def found(to: ToJdbc, owner: TargetOwner = OWNER) -> JdbcHoldings:
    table = JdbcHoldings(to)
    table.find(owner)
    return table


def counted(to: ToJdbc, owner: TargetOwner = OWNER) -> list[tuple[int, int, int | None]]:
    return [(each.identity.partition, each.identity.first, each.rows) for each in found(to, owner).held(True).ranges]


def test_rows_are_counted_by_range_and_foreign_rows_are_reported(to: ToJdbc, database: Postgres) -> None:
    with pytest.raises(NotOurs, match="has nothing of group g"):
        found(to)
    for first in (0, 3, 10):
        publish(to, first)
    publish(to, 0, partition=1)
    held = found(to).held(True)
    assert counted(to) == [(0, 0, 3), (0, 3, 3), (0, 10, 3), (1, 0, 3)]
    assert held.ranges[1].identity == RangeIdentity("t", 0, -5, 0, 3, 6)
    assert (held.strays, held.leftovers) == ((), ())
    assert {each.rows for each in found(to).held(False).ranges} == {None}
    # Deleted, duplicated, of no range: each is reported for its range.
    database.query(f'DELETE FROM "{to.table}" WHERE "partition" = 1')
    database.query(f'DELETE FROM "{to.table}" WHERE "offset" = 4')
    database.query(f'INSERT INTO "{to.table}" VALUES (%s, 0, 10), (%s, 0, 7), (%s, 0, 13), (%s, 5, 1)', ["t"] * 4)
    assert counted(to) == [(0, 0, 3), (0, 3, 2), (0, 10, 4), (1, 0, 0)]
    assert found(to).held(True).strays == (
        "t-0: 1 rows from offset 6 on are of no range of the ledger",
        "t-0: 1 rows from offset 13 on are of no range of the ledger",
    )


def test_rows_of_ambiguous_ranges_are_not_counted(to: ToJdbc, database: Postgres) -> None:
    publish(to, 0)
    publish(to, 0, epoch=1)
    publish(to, 0, partition=1)
    publish(to, 0, partition=2)
    publish(to, 3, partition=2, owner=TargetOwner(cluster="c", group="h"))
    assert counted(to) == [(0, 0, None), (0, 0, None), (1, 0, 3), (2, 0, None)]
    assert counted(to, TargetOwner(cluster="c", group="h")) == [(2, 3, None)]
    keyed = msgspec.structs.replace(to, unique_key=("id",))
    assert {rows for _, _, rows in counted(keyed)} == {None}
    database.query(f'ALTER TABLE "{to.table}" RENAME "offset" TO at')
    assert {rows for _, _, rows in counted(to)} == {None}


def test_a_range_that_was_set_aside_is_not_held(to: ToJdbc) -> None:
    publish(to, 0)
    table = JdbcTable(to)
    table.find(OWNER)
    assert JdbcTable(table.to).set_aside(RangeIdentity("t", 0, -5, 0, 3, 6), 3)
    held = found(to).held(True)
    assert counted(to) == [(0, 0, 3)]
    assert (held.strays, held.leftovers) == (
        (),
        ("t-0[3..6) was set aside, as a member could not write it or its log was cut off: it is never written",),
    )


def test_stages_of_dead_workers_are_leftovers(to: ToJdbc) -> None:
    publish(to, 0)
    table = JdbcTable(to)
    with table.connect() as connection:
        stage = table.stages.own(connection)
        table.stages.make(connection, stage, COLUMNS)
        assert not [each for each in found(to).held(True).leftovers if stage in each]
    assert f"{stage} was left by a dead worker; the next start removes it" in found(to).held(True).leftovers
    assert stage.startswith(STAGE)
