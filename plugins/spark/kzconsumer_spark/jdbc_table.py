"""A table in PostgreSQL that ranges are inserted into: its owner, its ledger, and the transaction that publishes.

Owns three kinds of tables beside the user's, in the same schema: `kzconsumer_owners` (the id of each group in each
table), `kzconsumer_ledger` (a row for each published range) and `kzconsumer_stage_<key>` (a worker's, while it holds
the advisory lock of that key). The daemon claims and asks, the worker stages and publishes, both by psycopg: what they
know of a range is one query here, and the daemon need not wait for a JVM to ask it.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
import psycopg
from psycopg.sql import SQL, Composed, Identifier

from kzconsumer.errors import ConfigError
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer.security.secret import read_secret
from kzconsumer_files.fold_plan import Span
from kzconsumer_files.names import AnyRange, NotOurs, Owner, fingerprint, identity_of, range_name
from kzconsumer_files.overlap import Overlap, require_apart
from kzconsumer_files.publication import KeptAside
from kzconsumer_spark.messages import SpooledRange, ToJdbc
from kzconsumer_spark.range_tags import RANGE_PARTITION, RANGE_TOPIC, STAGED_ROW

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
_Range = TypeVar("_Range", bound=AnyRange)

OWNERS: Final = "kzconsumer_owners"
LEDGER: Final = "kzconsumer_ledger"
STAGE: Final = "kzconsumer_stage_"
_SETUP_LOCK: Final = 0x6B7A636F6E73  # one process at a time makes tables: CREATE IF NOT EXISTS is no protection
# A zombie that is stopped in the middle of its transaction must not hold up its successor for long.
_SETTINGS: Final = "SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '5s'"
_RANGE: Final = SQL('topic, "partition", incarnation, epoch, first, until')
_RANGE_ARRAYS: Final = SQL("%s::text[], %s::int[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]")
_IDENTITY: Final = SQL("owner, {}").format(_RANGE)
_LOOK_BACK: Final = 1000  # ranges
_COUNTS: Final = SQL("records_in, records_out, records_quarantined")
_ROW_IN_TASK: Final = SQL(str((1 << 33) - 1))  # the bits of a row's id that count rows within a task
_TEN: Final = SQL(", ").join([SQL("%s")] * 10)


class JdbcTable:
    """Blocking, and safe to use from several threads. What the database refuses is raised as OSError."""

    remembers = True

    def __init__(self, to: ToJdbc) -> None:
        self._to = to
        *schema, name = to.table.split(".")
        self._schema = schema[0] if schema else None
        self._table = self._name(name)

    def __repr__(self) -> str:
        return f"JdbcTable({self._to.table} at {urlsplit(self._to.url.removeprefix('jdbc:')).netloc})"

    @property
    def to(self) -> ToJdbc:
        """What the worker is told: with the id that `claim` has found."""
        return self._to

    @property
    def fingerprint(self) -> str:
        """The id in the database stands for its address, under which members may know it by different names."""
        return fingerprint("jdbc", self._to.owner_id)

    def password(self) -> str | None:
        """Read anew each time, so that it may be renewed. Raises ConfigError."""
        faults: list[str] = []
        found = read_secret(self._to.password_file, self._to.password_env, "password", "[sink.options]", faults)
        if faults:
            raise ConfigError(faults)
        return None if found is None else found.decode()

    def connect(self) -> Connection:
        with database_errors():
            connection = psycopg.connect(
                self._to.url.removeprefix("jdbc:"),
                user=self._to.user,
                password=self.password(),
                autocommit=True,
                application_name="kzconsumer",
                connect_timeout=10,
                keepalives_idle=10,
                keepalives_interval=5,
                keepalives_count=3,
            )
            connection.execute(_SETTINGS)
        return connection

    def claim(self, owner: Owner) -> None:
        """Make the ledger if there is none, and find the id under which this group's ranges are in it."""
        told = owner.cluster, owner.group, owner.sink
        with self.connect() as connection, database_errors(), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            for name, columns in _TABLES.items():
                if not self._exists(connection, self._name(name)):
                    connection.execute(SQL("CREATE TABLE {} ({})").format(self._name(name), columns))
            connection.execute(
                SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING").format(self._name(OWNERS)),
                [uuid.uuid4(), self._to.table, *told],
            )
        self.find(owner)

    def find(self, owner: Owner) -> None:
        """The id alone. Raises NotOurs where the table's ledger does not know this group."""
        told = self._to.table, owner.cluster, owner.group, owner.sink
        query = SQL('SELECT id FROM {} WHERE "table" = %s AND cluster = %s AND "group" = %s AND sink = %s')
        with self.connect() as connection, database_errors():
            known = self._exists(connection, self._name(OWNERS))
            found = _rows(connection, query.format(self._name(OWNERS)), told) if known else []
        if not found:
            raise NotOurs(f"table {self._to.table} has nothing of {owner}")
        self._to = msgspec.structs.replace(self._to, owner_id=str(found[0][0]))

    def has(self, ranges: Sequence[RangeIdentity]) -> list[RangeIdentity]:
        with self.connect() as connection:
            found = self._kept_aside(connection, ranges)
        return [each for each in ranges if found[each] is False]

    def set_aside(self, part: RangeIdentity, records: int) -> bool:
        """Of two that enter a range's row the first one wins, as in `publish`: it waits for a writer that is at it."""
        enter = SQL("INSERT INTO {} ({}, {}, kept_aside) VALUES ({}, true) ON CONFLICT DO NOTHING").format(
            self._name(LEDGER), _IDENTITY, _COUNTS, _TEN
        )
        with self.connect() as connection, database_errors(), connection.transaction():
            self._require_apart(connection, part)
            connection.execute(enter, [*self._identity(part), records, 0, 0])
            return self._kept_aside(connection, [part])[part] is True

    def _require_apart(self, connection: Connection, part: RangeIdentity) -> None:
        """In a transaction: nobody else publishes anything of the partition until it ends. Raises Overlap.

        Of ranges that lie apart only the last one that begins before this one's end can reach into it. An older ledger
        may have some that do not, so more are looked at; all of them would be too many.
        """
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_partition_key(self._to.owner_id, part)])
        own = SQL('(owner, topic, "partition", incarnation, epoch) = (%s, %s, %s, %s, %s)')
        query = SQL(
            "SELECT first, until FROM (SELECT first, until FROM {} WHERE {} AND first < %s"
            " ORDER BY first DESC LIMIT %s) AS before WHERE until > %s AND (first, until) <> (%s, %s)"
        ).format(self._name(LEDGER), own)
        line = self._identity(part)[:5]
        found = _rows(connection, query, [*line, part.until, _LOOK_BACK, part.first, part.first, part.until])
        if found:
            last = SQL("SELECT first, until FROM {} WHERE {} ORDER BY until DESC LIMIT 1")
            found += _rows(connection, last.format(self._name(LEDGER), own), line)
            require_apart(part, (Span(*row) for row in found))

    def missing(self, connection: Connection, ranges: Sequence[_Range]) -> list[_Range]:
        """Those without a row in the ledger. Raises KeptAside for one that is not to be published."""
        found = self._kept_aside(connection, ranges)
        for part, kept_aside in found.items():
            if kept_aside:
                raise KeptAside(range_name(part))
        return [part for part, kept_aside in found.items() if kept_aside is None]

    def _kept_aside(self, connection: Connection, ranges: Sequence[_Range]) -> dict[_Range, bool | None]:
        """What the ledger says of ranges; None: it has no row of it, so that it is neither aside nor published."""
        query = SQL("SELECT {}, kept_aside FROM {} JOIN unnest({}) AS asked ({}) USING ({}) WHERE owner = %s").format(
            _RANGE, self._name(LEDGER), _RANGE_ARRAYS, _RANGE, _RANGE
        )
        identities = [identity_of(part) for part in ranges]
        with database_errors():
            arrays: list[object] = [list(each) for each in zip(*identities, strict=True)]
            rows = _rows(connection, query, [*arrays, self._to.owner_id]) if identities else []
        found = {RangeIdentity(*row[:-1]): bool(row[-1]) for row in rows}
        return {part: found.get(identity) for part, identity in zip(ranges, identities, strict=True)}

    def create(self, connection: Connection, columns: Mapping[str, str]) -> None:
        """Make the user's table, of these columns and types, if there is none."""
        with database_errors(), connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            if self._exists(connection, self._table):
                return
            parts = [SQL("{} {}").format(Identifier(name), SQL(kind)) for name, kind in columns.items()]
            if self._to.unique_key:
                parts.append(SQL("UNIQUE ({})").format(_names(self._to.unique_key)))
            connection.execute(SQL("CREATE TABLE {} ({})").format(self._table, SQL(", ").join(parts)))

    def own_stage(self, connection: Connection) -> str:
        """Remove the stages of dead workers; the name of a new one, which is ours as long as the connection lives."""
        stages = SQL(
            "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) AND tablename ~ %s"
        )
        with database_errors():
            for (name,) in _rows(connection, stages, [self._schema, f"^{STAGE}[0-9a-f]{{16}}$"]):
                key = _lock_key(name)
                ((free,),) = _rows(connection, SQL("SELECT pg_try_advisory_lock(%s)"), [key])
                if free:
                    self.drop_stage(connection, name)
                    connection.execute("SELECT pg_advisory_unlock(%s)", [key])
            own = f"{STAGE}{secrets.randbits(64):016x}"
            connection.execute("SELECT pg_advisory_lock(%s)", [_lock_key(own)])
        return own

    def make_stage(self, connection: Connection, stage: str, columns: Sequence[str]) -> str:
        """An empty table with these columns of the user's table, and those that tell the range; its name as in SQL.

        Not logged: it is written once and read once. Its only constraint is that each task's first row is there once:
        a task that Spark runs again, since it did not hear of the commit of the first run, fails. The others are those
        of the user's table.
        """
        query = SQL(
            "CREATE UNLOGGED TABLE {} AS SELECT {}, ''::text AS {}, 0 AS {}, 0::bigint AS {} FROM {} WITH NO DATA"
        )
        tags = Identifier(RANGE_TOPIC), Identifier(RANGE_PARTITION), Identifier(STAGED_ROW)
        each_task_once = SQL("CREATE UNIQUE INDEX {} ON {} ({}) WHERE {} & {} = 0")
        with database_errors(), connection.transaction():
            connection.execute(query.format(self._name(stage), _names(columns), *tags, self._table))
            index, row = Identifier(f"{stage}_each_task_once"), Identifier(STAGED_ROW)
            connection.execute(each_task_once.format(index, self._name(stage), row, row, _ROW_IN_TASK))
        return self._name(stage).as_string(connection)

    def drop_stage(self, connection: Connection, stage: str) -> None:
        with database_errors():
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(self._name(stage)))

    def staged_rows(self, connection: Connection, stage: str) -> dict[tuple[str, int], int]:
        """How many rows of each partition there are in a stage."""
        tags = _names((RANGE_TOPIC, RANGE_PARTITION))
        query = SQL("SELECT {}, count(*) FROM {} GROUP BY {}").format(tags, self._name(stage), tags)
        with database_errors():
            return {(topic, partition): count for topic, partition, count in _rows(connection, query, [])}

    def publish(
        self,
        connection: Connection,
        rows: Mapping[SpooledRange, int],
        quarantined: Mapping[OffsetRange, int],
        stage: str,
        columns: Sequence[str],
        require_lease: Callable[[], None],
    ) -> int:
        """Ledger rows and the staged rows of those ranges that nobody published before; how many ranges these are.

        One transaction. Whoever inserts a range's ledger row second waits for the first, and inserts nothing if that
        one commits. A key that is in the table already is counted as a row: readers see it. Raises KeptAside, and
        Overlap where a range is cut otherwise than one that is published, when all others are published.
        """
        enter = SQL("INSERT INTO {} ({}, {}) VALUES ({}) ON CONFLICT DO NOTHING").format(
            self._name(LEDGER), _IDENTITY, _COUNTS, _TEN
        )
        conflict = (
            SQL(" ON CONFLICT ({}) DO NOTHING").format(_names(self._to.unique_key)) if self._to.unique_key else SQL("")
        )
        insert = SQL(
            "INSERT INTO {} ({}) SELECT {} FROM {} WHERE ({}) IN (SELECT * FROM unnest(%s::text[], %s::int[])){}"
        ).format(
            self._table,
            _names(columns),
            _names(columns),
            self._name(stage),
            _names((RANGE_TOPIC, RANGE_PARTITION)),
            conflict,
        )
        require_lease()
        with database_errors(), connection.transaction():
            # In one order, or two writers of the same ranges might wait for each other.
            ordered = sorted(rows, key=lambda part: part.range)
            overlaps: dict[SpooledRange, Overlap] = {}
            for part in ordered:
                try:
                    self._require_apart(connection, identity_of(part))
                except Overlap as error:
                    overlaps[part] = error
            ours = [
                part
                for part in ordered
                if part not in overlaps
                and connection.execute(
                    enter, [*self._identity(part), part.records, rows[part], quarantined.get(part.range, 0)]
                ).rowcount
            ]
            if any(rows[part] for part in ours):
                connection.execute(insert, [[part.topic for part in ours], [part.partition for part in ours]])
            require_lease()
        self.missing(connection, [part for part in rows if part not in ours and part not in overlaps])
        for overlap in overlaps.values():
            raise overlap
        return len(ours)

    def _identity(self, part: AnyRange) -> list[object]:
        return [self._to.owner_id, *(getattr(part, field) for field in RangeIdentity._fields)]

    def _name(self, name: str) -> Identifier:
        return Identifier(self._schema, name) if self._schema is not None else Identifier(name)

    def _exists(self, connection: Connection, name: Identifier) -> bool:
        return _rows(connection, SQL("SELECT to_regclass(%s)"), [name.as_string(connection)]) != [(None,)]


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


@contextmanager
def database_errors() -> Iterator[None]:
    """Make one line of what the database, or the way to it, has to say. Raises OSError."""
    try:
        yield
    except psycopg.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise OSError(f"PostgreSQL: {lines[0] if lines else type(error).__name__}") from error


def _rows(connection: Connection, query: SQL | Composed, values: Sequence[object]) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def _names(names: Sequence[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


def _lock_key(stage: str) -> int:
    """A stage's 64 bits as PostgreSQL takes them."""
    key = int(stage.removeprefix(STAGE), 16)
    return key - (1 << 64) if key >> 63 else key


def _partition_key(owner: str, part: RangeIdentity) -> int:
    """A lock's name for a partition in a group's ledger."""
    name = msgspec.json.encode([owner, part.topic, part.partition])
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big", signed=True)
