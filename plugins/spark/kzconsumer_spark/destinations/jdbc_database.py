"""PostgreSQL: connections, names in it, its errors as OSError, the driver that Spark inserts with, staging tables."""

from __future__ import annotations

import glob
import importlib.util
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import psycopg
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, UndefinedTable
from psycopg.sql import SQL, Composed, Identifier

from kzconsumer.errors import ConfigError
from kzconsumer.settings.layers import read_secret
from kzconsumer_spark.ranges.batch import RANGE_PARTITION, RANGE_TOPIC, STAGED_ROW
from kzconsumer_spark.worker_protocol.messages import ToJdbc

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

# A process that is suspended within its transaction must not block its successor for long. A commit that is reported is
# on disk, whatever the default of the role or the database is; "remote_apply" waits for longer.
_SETTINGS: Final = """
SET lock_timeout = '20s'; SET idle_in_transaction_session_timeout = '5s';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') <> 'remote_apply'
"""


def connect(to: ToJdbc) -> Connection:
    """Raises OSError, ConfigError."""
    with database_errors():
        connection = psycopg.connect(
            to.url.removeprefix("jdbc:"),
            user=to.user,
            password=password(to),
            autocommit=True,
            application_name="kzconsumer",
            connect_timeout=10,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=30_000,  # keepalives do not count while what was sent is not acknowledged
        )
        connection.execute(_SETTINGS)
    return connection


def password(to: ToJdbc) -> str | None:
    """Read at each connection, so that it can be changed while the sink runs. Raises ConfigError."""
    faults: list[str] = []
    found = read_secret(to.password_file, to.password_env, "password", "[sink.options]", faults)
    if faults:
        raise ConfigError(faults)
    return None if found is None else found.decode()


def require_secrets(to: ToJdbc) -> None:
    """Raises ConfigError if the password cannot be read, or a certificate that the URL names."""
    password(to)
    for name, path in parse_qsl(urlsplit(to.url.removeprefix("jdbc:")).query):
        if name == "sslrootcert" and not Path(path).is_file():
            raise ConfigError([f"[sink.options] url: sslrootcert: {path} is not a file"])


@contextmanager
def database_errors() -> Iterator[None]:
    """Turn an error of the database or of the connection into an OSError of one line."""
    try:
        yield
    except psycopg.Error as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise OSError(f"PostgreSQL: {lines[0] if lines else type(error).__name__}") from error


def fetch(connection: Connection, query: SQL | Composed, values: Sequence[object]) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def in_schema(schema: str | None, name: str) -> Identifier:
    return Identifier(schema, name) if schema is not None else Identifier(name)


def columns_of(names: Sequence[str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))


# Spark inserts with PostgreSQL's driver for Java, which is looked for before a Spark is started.

DRIVER: Final = "org.postgresql.Driver"
MISSING: Final = (
    f'[sink.options] conf: Spark has no {DRIVER}: name PostgreSQL\'s driver by conf."spark.jars" (the path of its jar)'
    ' or conf."spark.jars.packages" ("org.postgresql:postgresql:42.7.4")'
)
_CLASS: Final = DRIVER.replace(".", "/") + ".class"
#: Of the environment: a Spark with any of them may have further settings and jars.
_ELSEWHERE: Final = frozenset({"SPARK_HOME", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "PYSPARK_SUBMIT_ARGS"})


def require_driver(conf: Mapping[str, str]) -> None:
    """Raises ConfigError if no jar that Spark will have is the driver. What cannot be known here is left to Spark."""
    jars = [jar.strip() for jar in conf.get("spark.jars", "").split(",") if jar.strip()]
    local = [path for jar in jars if (path := _local(jar)) is not None]
    class_path = filter(None, conf.get("spark.driver.extraClassPath", "").split(os.pathsep))
    if "spark.jars.packages" in conf or len(local) < len(jars) or _ELSEWHERE & os.environ.keys():
        return
    if not any(map(_is_driver, _files([*local, *class_path]))) and not any(map(_is_driver, _of_pyspark())):
        raise ConfigError([MISSING])


def _local(jar: str) -> str | None:
    parts = urlsplit(jar)
    if parts.scheme in ("file", "local"):
        return unquote(parts.path)
    return jar if not parts.scheme else None


def _files(paths: Iterable[str]) -> Iterator[Path]:
    """Of paths with wildcards; a directory in a class path has classes, or `*` behind it."""
    for path in paths:
        yield from map(Path, glob.glob(path))


def _of_pyspark() -> Iterator[Path]:
    found = importlib.util.find_spec("pyspark")
    if found is not None and found.origin is not None:
        yield from Path(found.origin).with_name("jars").glob("*.jar")


def _is_driver(path: Path) -> bool:
    if path.is_dir():
        return (path / _CLASS).exists()
    try:
        with zipfile.ZipFile(path) as jar:
            return _CLASS in jar.NameToInfo
    except (OSError, zipfile.BadZipFile):
        return False


# Staging tables: where Spark's tasks insert the rows of a batch, before one transaction publishes them.
#
# Each worker has one at a time, `kzconsumer_stage_<key>`, and holds the advisory lock of that key as long as it
# lives.

STAGE: Final = "kzconsumer_stage_"
_ROW_IN_TASK: Final = SQL(str((1 << 33) - 1))  # the bits of a row's id that count rows within a task


class Stages:
    """Those beside the user's table `table`, in its schema."""

    def __init__(self, schema: str | None, table: Identifier) -> None:
        self._schema = schema
        self._table = table

    def own(self, connection: Connection) -> str:
        """Remove the stages of dead workers; returns a new name, which is ours as long as the connection lives.

        A stage stays if it cannot be removed: a task may still be writing it, or it may be another role's.
        """
        stages = SQL(
            "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) AND tablename ~ %s"
        )
        with database_errors():
            for (name,) in fetch(connection, stages, [self._schema, f"^{STAGE}[0-9a-f]{{16}}$"]):
                key = _lock_key(name)
                ((free,),) = fetch(connection, SQL("SELECT pg_try_advisory_lock(%s)"), [key])
                if free:
                    stage = in_schema(self._schema, name)
                    with suppress(LockNotAvailable, InsufficientPrivilege, UndefinedTable), connection.transaction():
                        connection.execute(SQL("LOCK TABLE {} NOWAIT").format(stage))
                        connection.execute(SQL("DROP TABLE {}").format(stage))
                    connection.execute("SELECT pg_advisory_unlock(%s)", [key])
            own = f"{STAGE}{secrets.randbits(64):016x}"
            connection.execute("SELECT pg_advisory_lock(%s)", [_lock_key(own)])
        return own

    def make(self, connection: Connection, stage: str, columns: Sequence[str]) -> str:
        """An empty table with these columns of the user's table and the range columns; returns its name as in SQL.

        Not logged: it is written once and read once. Its only constraint is that the first row of each task is there
        once: it makes a task fail that Spark repeats because the reply to the first run's commit was lost.
        """
        query = SQL(
            "CREATE UNLOGGED TABLE {} AS SELECT {}, ''::text AS {}, 0 AS {}, 0::bigint AS {} FROM {} WITH NO DATA"
        )
        tags = Identifier(RANGE_TOPIC), Identifier(RANGE_PARTITION), Identifier(STAGED_ROW)
        each_task_once = SQL("CREATE UNIQUE INDEX {} ON {} ({}) WHERE {} & {} = 0")
        name = in_schema(self._schema, stage)
        with database_errors(), connection.transaction():
            connection.execute(query.format(name, columns_of(columns), *tags, self._table))
            index, row = Identifier(f"{stage}_each_task_once"), Identifier(STAGED_ROW)
            connection.execute(each_task_once.format(index, name, row, row, _ROW_IN_TASK))
        return name.as_string(connection)

    def drop(self, connection: Connection, stage: str) -> None:
        with database_errors():
            connection.execute(SQL("DROP TABLE IF EXISTS {}").format(in_schema(self._schema, stage)))

    def rows(self, connection: Connection, stage: str) -> dict[tuple[str, int], int]:
        """How many rows of each partition a stage has."""
        tags = columns_of((RANGE_TOPIC, RANGE_PARTITION))
        query = SQL("SELECT {}, count(*) FROM {} GROUP BY {}").format(tags, in_schema(self._schema, stage), tags)
        with database_errors():
            return {(topic, partition): count for topic, partition, count in fetch(connection, query, [])}


def _lock_key(stage: str) -> int:
    """The 64 bits of a stage's name as a signed number."""
    key = int(stage.removeprefix(STAGE), 16)
    return key - (1 << 64) if key >> 63 else key
