"""The ranges that a table holds by its ledger, and how many of its rows are in each, all in one snapshot.

Rows can only be counted if the table has the columns `topic`, `partition` and `offset`, and if the offsets of a
partition are unambiguous: no other group and no earlier epoch has written any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from psycopg.sql import SQL

from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer.sinks.reports import HeldRange
from kzconsumer_files.holdings import Held, kept_aside
from kzconsumer_spark.jdbc.database import Connection, database_errors
from kzconsumer_spark.jdbc.stage import STAGE
from kzconsumer_spark.jdbc.table import LEDGER, OWNERS, JdbcTable

_POSITION: Final = frozenset({"topic", "partition", "offset"})
_Partition = tuple[str, int]


class JdbcHoldings(JdbcTable):
    """Looks at a table whose `owner_id` has been found."""

    def held(self, count_rows: bool) -> Held:
        """Raises OSError."""
        with self.connect() as connection, database_errors(), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            ours, shared = self._ledger(connection)
            found = {each.identity: each for each in ours}
            strays: list[str] = []
            if count_rows and self._countable(connection):
                lines: dict[_Partition, list[RangeIdentity]] = {}
                for identity in found:
                    lines.setdefault(identity[:2], []).append(identity)
                clear = {at: all_of for at, all_of in lines.items() if at not in shared and _one_line(all_of)}
                counted = self._rows_between(connection)
                for at, identities in clear.items():
                    rows = counted.get(at, {})
                    strays += _strays(at, rows, identities)
                    for identity in identities:
                        inside = sum(n for first, n in rows.items() if identity.first <= first < identity.until)
                        found[identity] = msgspec.structs.replace(found[identity], rows=inside)
            leftovers = [*self._aside(connection), *self._dead_stages(connection)]
        return Held(tuple(found.values()), tuple(strays), tuple(leftovers))

    def _ledger(self, connection: Connection) -> tuple[list[HeldRange], set[_Partition]]:
        """Our ranges; and the partitions that another group of the same table has ranges of."""
        query = SQL(
            'SELECT owner = %s, topic, "partition", incarnation, epoch, first, until,'
            " records_in, records_out, records_quarantined FROM {}"
            ' WHERE owner IN (SELECT id FROM {} WHERE "table" = %s) AND NOT kept_aside ORDER BY 2, 3, 4, 5, 6'
        ).format(self._name(LEDGER), self._name(OWNERS))
        ours: list[HeldRange] = []
        shared: set[_Partition] = set()
        for own, *identity, records_in, records_out, aside in connection.execute(
            query, [self.to.owner_id, self.to.table]
        ):
            if not own:
                shared.add((identity[0], identity[1]))
                continue
            ours.append(
                HeldRange(
                    identity=RangeIdentity(*identity),
                    records_in=records_in,
                    records_out=records_out,
                    records_quarantined=aside,
                )
            )
        return ours, shared

    def _aside(self, connection: Connection) -> list[str]:
        query = SQL('SELECT topic, "partition", first, until FROM {} WHERE owner = %s AND kept_aside ORDER BY 1, 2, 3')
        found = connection.execute(query.format(self._name(LEDGER)), [self.to.owner_id]).fetchall()
        return [kept_aside(OffsetRange(*each)) for each in found]

    def _countable(self, connection: Connection) -> bool:
        """A unique key of other columns lets rows of two ranges be one."""
        query = "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"
        there = connection.execute(query, [self._table.as_string(connection)]).fetchall()
        key = set(self.to.unique_key)
        return {name for (name,) in there} >= _POSITION and (not key or key >= _POSITION)

    def _rows_between(self, connection: Connection) -> Mapping[_Partition, Mapping[int, int]]:
        """How many rows there are from each bound of our ranges up to the next; below the first one at -1."""
        query = SQL(
            'WITH bounds AS (SELECT topic, "partition", array_agg(DISTINCT bound ORDER BY bound) AS at'
            " FROM {} CROSS JOIN LATERAL (VALUES (first), (until)) AS ends (bound) WHERE owner = %s GROUP BY 1, 2)"
            ' SELECT b.topic, b."partition", coalesce(b.at[found.bucket], -1), found.rows FROM bounds b JOIN'
            ' (SELECT t.topic, t."partition", width_bucket(t."offset"::bigint, bounds.at) AS bucket, count(*) AS rows'
            ' FROM {} t JOIN bounds ON (bounds.topic, bounds."partition") = (t.topic, t."partition") GROUP BY 1, 2, 3)'
            ' found ON (b.topic, b."partition") = (found.topic, found."partition")'
        ).format(self._name(LEDGER), self._table)
        found: dict[_Partition, dict[int, int]] = {}
        for topic, partition, bound, rows in connection.execute(query, [self.to.owner_id]):
            found.setdefault((topic, partition), {})[bound] = rows
        return found

    def _dead_stages(self, connection: Connection) -> list[str]:
        """Stages whose worker's connection, and with it the advisory lock, is gone."""
        locks = (
            "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1"
        )
        held = {key % (1 << 64) for (key,) in connection.execute(locks).fetchall()}
        query = "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) AND tablename ~ %s"
        names = connection.execute(query, [self._schema, f"^{STAGE}[0-9a-f]{{16}}$"]).fetchall()
        return [
            f"{name} was left by a dead worker; the next start removes it"
            for (name,) in names
            if int(name.removeprefix(STAGE), 16) not in held
        ]


def _one_line(identities: list[RangeIdentity]) -> bool:
    return len({each[2:4] for each in identities}) == 1


def _strays(at: _Partition, rows: Mapping[int, int], ranges: list[RangeIdentity]) -> Iterator[str]:
    """Rows of offsets that no range has."""
    for first, count in sorted(rows.items()):
        if not any(each.first <= first < each.until for each in ranges):
            where = f"from offset {first} on" if first >= 0 else "before our first range"
            yield f"{at[0]}-{at[1]}: {count} rows {where} are of no range of the ledger"
