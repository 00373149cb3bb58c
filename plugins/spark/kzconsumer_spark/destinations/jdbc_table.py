"""A table in PostgreSQL that ranges are inserted into: its owner, its ledger, and the transaction that publishes.

Beside the user's table, in the same schema: `kzconsumer_owners` (the id of each group in each table),
`kzconsumer_ledger` (a row for each published range) and the staging tables of `jdbc_database.Stages`. The daemon marks
and queries, the worker stages and publishes, both by psycopg: the state of a range is one query, and the daemon does
not wait for a JVM.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeVar

import msgspec
from psycopg.sql import SQL, Composed, Identifier

from kzconsumer.display import some
from kzconsumer.errors import DestinationWentBackError
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer.sinks.interface import HeldRange
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.holdings import Held, kept_aside
from kzconsumer_files.publication import SetAside
from kzconsumer_files.range_names import (
    AnyRange,
    NotOurs,
    RangeOverlap,
    RecordRange,
    TargetOwner,
    fingerprint,
    identity_of,
    range_name,
    require_apart,
)
from kzconsumer_spark.destinations.jdbc_database import (
    STAGE,
    Connection,
    Stages,
    columns_of,
    connect,
    database_errors,
    fetch,
    in_schema,
    require_driver,
    require_secrets,
)
from kzconsumer_spark.ranges.batch import RANGE_PARTITION, RANGE_TOPIC, tag_of
from kzconsumer_spark.worker_protocol.messages import ToJdbc

_log = get_logger("kzconsumer.spark")
_Range = TypeVar("_Range", bound=AnyRange)
_Records = TypeVar("_Records", bound=RecordRange)

OWNERS: Final = "kzconsumer_owners"
LEDGER: Final = "kzconsumer_ledger"
_SETUP_LOCK: Final = 0x6B7A636F6E73  # one process at a time makes tables: CREATE IF NOT EXISTS is no protection
_RANGE: Final = SQL('topic, "partition", incarnation, epoch, first, until')
_RANGE_ARRAYS: Final = SQL("%s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]")
_IDENTITY: Final = SQL("owner, {}").format(_RANGE)
_PARTITION: Final = SQL('(owner, topic, "partition", incarnation) = (%s, %s, %s, %s)')
_LOOK_BACK: Final = 1000  # ranges
_COUNTS: Final = SQL("records_in, records_out, records_quarantined")
_TEN: Final = SQL(", ").join([SQL("%s")] * 10)


class LedgerRow(IntEnum):
    """Why a row of the ledger is looked up."""

    OVERLAPS = 0
    FOLLOWED = 1
    LATER = 2
    """It overlaps, too, and is of a later epoch."""


class JdbcTable:
    """Blocking, and safe to use from several threads. Errors of the database are raised as OSError."""

    remembers = True

    def __init__(self, to: ToJdbc) -> None:
        self._to = to
        *schema, name = to.table.split(".")
        self._schema = schema[0] if schema else None
        self._table = self._name(name)
        self.stages = Stages(self._schema, self._table)

    @property
    def to(self) -> ToJdbc:
        """With the id that `mark` has found."""
        return self._to

    @property
    def fingerprint(self) -> str:
        """Contains the group's id in the database instead of an address: members may use different names for one."""
        return fingerprint("jdbc", self._to.owner_id)

    def connect(self) -> Connection:
        """Raises OSError, ConfigError."""
        return connect(self._to)

    def mark(self, owner: TargetOwner) -> None:
        """Make the ledger if there is none, and find or make the id of this group's ranges in it.

        Raises NotOurs if they may be there under another name of the cluster.
        """
        ours = owner.cluster, owner.group, owner.sink
        with self.connect() as connection, database_errors(), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            for name, columns in _TABLES.items():
                if not self._exists(connection, self._name(name)):
                    connection.execute(SQL("CREATE TABLE {} ({})").format(self._name(name), columns))
            self._require_known(connection, owner)
            connection.execute(
                SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING").format(self._name(OWNERS)),
                [uuid.uuid4(), self._to.table, *ours],
            )
            for table in (self._name(OWNERS), self._name(LEDGER), self._table):
                if self._exists(connection, table):
                    self._require_logged(connection, table)
            if fetch(connection, SQL("SHOW fsync"), []) == [("off",)]:
                _log.warning("PostgreSQL runs without fsync", table=self._to.table)
        self.find(owner)

    def _require_known(self, connection: Connection, owner: TargetOwner) -> None:
        """A range that a cluster has under its former name would be written again under another one."""
        query = SQL('SELECT id, cluster FROM {} WHERE "table" = %s AND "group" = %s AND sink = %s')
        found = fetch(connection, query.format(self._name(OWNERS)), [self._to.table, owner.group, owner.sink])
        if owner.cluster in (cluster for _, cluster in found):
            return
        for identity, cluster in found:
            former = msgspec.structs.replace(owner, cluster=cluster)
            if owner.may_have_been(former):
                owners = self._name(OWNERS).as_string(connection)
                raise NotOurs(
                    f"table {self._to.table} has rows of {former}; this is {owner}: give the group another id; or if"
                    " that is the same cluster, which had no id before Kafka 0.10.1,"
                    f" UPDATE {owners} SET cluster = '{owner.cluster}' WHERE id = '{identity}'"
                )

    def find(self, owner: TargetOwner) -> None:
        """Find the id. Raises NotOurs if the ledger has none of this group."""
        key = self._to.table, owner.cluster, owner.group, owner.sink
        query = SQL('SELECT id FROM {} WHERE "table" = %s AND cluster = %s AND "group" = %s AND sink = %s')
        with self.connect() as connection, database_errors():
            known = self._exists(connection, self._name(OWNERS))
            found = fetch(connection, query.format(self._name(OWNERS)), key) if known else []
        if not found:
            raise NotOurs(f"table {self._to.table} has nothing of {owner}")
        self._to = msgspec.structs.replace(self._to, owner_id=str(found[0][0]))

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        with self.connect() as connection:
            found = self._kept_aside(connection, ranges)
        return [each for each in ranges if found[each] is False]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Waits for a writer that is publishing the range: as in `publish`, the first one to insert its row wins."""
        enter = SQL("INSERT INTO {} ({}, {}, kept_aside) VALUES ({}, true) ON CONFLICT DO NOTHING").format(
            self._name(LEDGER), _IDENTITY, _COUNTS, _TEN
        )
        with self.connect() as connection, database_errors(), connection.transaction():
            self._require_apart(connection, part)
            connection.execute(enter, [*self._identity(part), records, 0, 0])
            return self._kept_aside(connection, [part])[part] is True

    def _require_apart(
        self, connection: Connection, part: RangeIdentity, followed: RangeIdentity | None = None
    ) -> None:
        """In a transaction: no other writer publishes ranges of the partition until it ends.

        Raises RangeOverlap; DestinationWentBackError if `followed`, a range of the same partition, has no row. Of
        ranges that do not overlap, only the last one that begins before this one's end can reach into it. A ledger of
        an earlier version may have some that overlap, so more than one are checked. Of later epochs, all are: there are
        none, unless the group's nodes are of before a reset.
        """
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_partition_key(self._to.owner_id, part)])
        ledger, own = self._name(LEDGER), SQL("{} AND epoch = %s").format(_PARTITION)
        query = SQL(
            "SELECT first, until, {} FROM (SELECT first, until FROM {} WHERE {} AND first < %s"
            " ORDER BY first DESC LIMIT %s) AS before WHERE until > %s AND (first, until) <> (%s, %s)"
            " UNION ALL SELECT first, until, {} FROM {} WHERE {} AND first = %s AND until = %s"
            " UNION ALL SELECT first, until, {} FROM {} WHERE {} AND epoch > %s AND first < %s AND until > %s"
        ).format(
            LedgerRow.OVERLAPS.value,
            ledger,
            own,
            LedgerRow.FOLLOWED.value,
            ledger,
            own,
            LedgerRow.LATER.value,
            ledger,
            _PARTITION,
        )
        line = self._identity(part)[:5]
        before = (followed.first, followed.until) if followed is not None else (None, None)
        values = [*line, part.until, _LOOK_BACK, part.first, part.first, part.until, *line, *before]
        values += [*line, part.until, part.first]
        last = SQL("SELECT first, until FROM {} WHERE {} AND epoch >= %s ORDER BY until DESC LIMIT 1")
        found = [(first, until, LedgerRow(what)) for first, until, what in fetch(connection, query, values)]
        require_place(
            part,
            followed,
            found,
            lambda: [Span(*row) for row in fetch(connection, last.format(ledger, _PARTITION), line)],
        )

    def missing(self, connection: Connection, ranges: Sequence[_Range]) -> list[_Range]:
        """Those without a row in the ledger. Raises SetAside."""
        found = self._kept_aside(connection, ranges)
        for part, is_aside in found.items():
            if is_aside:
                raise SetAside(range_name(part))
        return [part for part, is_aside in found.items() if is_aside is None]

    def _kept_aside(self, connection: Connection, ranges: Sequence[_Range]) -> dict[_Range, bool | None]:
        """Whether ranges are set aside; None for a range without a row in the ledger."""
        query = SQL("SELECT {}, kept_aside FROM {} JOIN unnest({}) AS asked ({}) USING ({}) WHERE owner = %s").format(
            _RANGE, self._name(LEDGER), _RANGE_ARRAYS, _RANGE, _RANGE
        )
        identities = [identity_of(part) for part in ranges]
        with database_errors():
            arrays: list[object] = [list(each) for each in zip(*identities, strict=True)]
            rows = fetch(connection, query, [*arrays, self._to.owner_id]) if identities else []
        found = {RangeIdentity(*row[:-1]): bool(row[-1]) for row in rows}
        return {part: found.get(identity) for part, identity in zip(ranges, identities, strict=True)}

    def create(self, connection: Connection, columns: Mapping[str, str]) -> None:
        """Make the user's table with these columns and types if there is none."""
        with database_errors(), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            if self._exists(connection, self._table):
                self._require_logged(connection, self._table)
                return
            parts = [SQL("{} {}").format(Identifier(name), SQL(kind)) for name, kind in columns.items()]
            if self._to.unique_key:
                parts.append(SQL("UNIQUE ({})").format(columns_of(self._to.unique_key)))
            connection.execute(SQL("CREATE TABLE {} ({})").format(self._table, SQL(", ").join(parts)))

    def publish(
        self,
        connection: Connection,
        rows: Mapping[_Records, int],
        quarantined: Mapping[OffsetRange, int],
        stage: str,
        columns: Sequence[str],
        require_lease: Callable[[], None],
        follows: Sequence[RangeIdentity] = (),
    ) -> int:
        """Insert ledger rows and staged rows of the ranges that are not published yet; returns how many these are.

        One transaction, at the end of which `require_lease` is called. It must not wait, since the server ends a
        transaction that is idle, and locks are held. A writer that inserts the ledger row of a range second waits for
        the first one, and inserts nothing if that commits. A row whose unique key is in the table already is counted.
        How many these are is logged: the row in the table may be another one, of an earlier topic or another cluster.
        Raises DestinationWentBackError, with nothing inserted, if the ledger lacks one of `follows`; SetAside and, when
        all others are published, RangeOverlap for a range that overlaps a published one.
        """
        enter = SQL("INSERT INTO {} ({}, {}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            self._name(LEDGER), _IDENTITY, _COUNTS, _TEN
        )
        insert = self._insert(stage, columns)
        skipped = 0
        with database_errors(), connection.transaction():
            # In a fixed order: otherwise two writers of the same ranges could deadlock.
            ordered = sorted(rows, key=lambda part: part.range)
            overlaps: dict[_Records, RangeOverlap] = {}
            before = {each.topic_partition: each for each in follows}
            for part in ordered:
                try:
                    self._require_apart(connection, identity_of(part), before.get(part.range.topic_partition))
                except RangeOverlap as error:
                    overlaps[part] = error
            ours = [
                part
                for part in ordered
                if part not in overlaps
                and connection.execute(
                    enter, [*self._identity(part), part.records, rows[part], quarantined.get(part.range, 0)]
                ).rowcount
            ]
            if staged := sum(rows[part] for part in ours):
                skipped = staged - connection.execute(insert, _tags(ours)).rowcount
            require_lease()
        if skipped and self._to.unique_key:
            about = {"table": self._to.table, "rows": skipped, "ranges": some(str(part.range) for part in ours)}
            _log.info("rows skipped, the table has their unique key", **about)
        self.missing(connection, [part for part in rows if part not in ours and part not in overlaps])
        for overlap in overlaps.values():
            raise overlap
        return len(ours)

    def try_rows(self, connection: Connection, ranges: Sequence[AnyRange], stage: str, columns: Sequence[str]) -> None:
        """Insert staged rows, check all constraints, and take it back. Raises OSError."""
        with database_errors(), connection.transaction(force_rollback=True):
            connection.execute(self._insert(stage, columns), _tags(ranges))
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")

    def _insert(self, stage: str, columns: Sequence[str]) -> Composed:
        """The insertion of the staged rows of some partitions, `_tags`."""
        conflict = (
            SQL(" ON CONFLICT ({}) DO NOTHING").format(columns_of(self._to.unique_key))
            if self._to.unique_key
            else SQL("")
        )
        return SQL(
            "INSERT INTO {} ({}) SELECT {} FROM {} WHERE ({}) IN (SELECT * FROM unnest(%s::text[], %s::int[])){}"
        ).format(
            self._table,
            columns_of(columns),
            columns_of(columns),
            self._name(stage),
            columns_of((RANGE_TOPIC, RANGE_PARTITION)),
            conflict,
        )

    def _identity(self, part: AnyRange) -> list[object]:
        return [self._to.owner_id, *(getattr(part, field) for field in RangeIdentity._fields)]

    def _name(self, name: str) -> Identifier:
        return in_schema(self._schema, name)

    def _require_logged(self, connection: Connection, table: Identifier) -> None:
        """Raises NotOurs for a table that PostgreSQL empties after a crash, of which the ledger knows nothing."""
        query = SQL(
            "SELECT oid::regclass::text FROM pg_class WHERE relpersistence <> 'p' AND oid IN"
            " (SELECT %s::regclass UNION SELECT relid FROM pg_partition_tree(%s::regclass))"
        )
        name = table.as_string(connection)
        for (found,) in fetch(connection, query, [name, name]):
            raise NotOurs(f"table {found} is not logged: a crash of the server empties it. ALTER TABLE ... SET LOGGED")

    def _exists(self, connection: Connection, name: Identifier) -> bool:
        return fetch(connection, SQL("SELECT to_regclass(%s)"), [name.as_string(connection)]) != [(None,)]


_TABLES: Final = {
    OWNERS: SQL(
        'id uuid PRIMARY KEY, "table" text, cluster text, "group" text, sink text,'
        ' UNIQUE ("table", cluster, "group", sink)'
    ),
    LEDGER: SQL(
        'owner uuid, topic text, "partition" int, incarnation bigint, epoch bigint, first bigint, until bigint,'
        " records_in bigint NOT NULL, records_out bigint NOT NULL, records_quarantined bigint NOT NULL,"
        " published timestamptz NOT NULL DEFAULT now(), kept_aside boolean NOT NULL DEFAULT false, PRIMARY KEY ({})"
    ).format(_IDENTITY),
}


def _tags(ranges: Sequence[AnyRange]) -> list[object]:
    return [[tag_of(part.topic) for part in ranges], [part.partition for part in ranges]]


def require_place(
    part: RangeIdentity,
    followed: RangeIdentity | None,
    found: Sequence[tuple[int, int, LedgerRow]],
    last: Callable[[], Sequence[Span]],
) -> None:
    """Raises DestinationWentBackError if `followed` is not among the rows `found` in the ledger, RangeOverlap.

    Each row has the first and the end offset of a range. `last` looks up the range that ends last, of this epoch or a
    later one, if there is any.
    """
    rows: dict[LedgerRow, list[Span]] = {each: [] for each in LedgerRow}
    for first, until, what in found:
        rows[what].append(Span(first, until))
    if followed is not None and not rows[LedgerRow.FOLLOWED]:
        ends = [each.until for each in last()]
        raise DestinationWentBackError(followed, ends[0] if ends else None)
    if rows[LedgerRow.OVERLAPS] or rows[LedgerRow.LATER]:
        end = max((each.until for each in last()), default=0)
        require_apart(part, rows[LedgerRow.OVERLAPS], later=rows[LedgerRow.LATER], end=end)


def _partition_key(owner: str, part: RangeIdentity) -> int:
    """A lock's name for a partition in a group's ledger."""
    name = msgspec.json.encode([owner, part.topic, part.partition])
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big", signed=True)


# What a table holds by its ledger, and how many of its rows are in each range, all in one snapshot. Rows can only be
# counted if the table has the columns `topic`, `partition` and `offset`, and if the offsets of a partition are
# unambiguous: no other group and no earlier epoch has written any.

_POSITION: Final = frozenset({"topic", "partition", "offset"})
_Partition = tuple[str, int]


class JdbcHoldings(JdbcTable):
    """The table as the daemon has it: it can also say what it holds."""

    def require_usable(self, conf: Mapping[str, str]) -> None:
        require_secrets(self.to)
        require_driver(conf)

    def finish(self) -> None:
        return None

    def held(self, count_rows: bool) -> Held:
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
