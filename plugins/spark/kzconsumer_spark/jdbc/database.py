"""Connections to PostgreSQL, names in it, and its errors as OSError."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from kzconsumer.errors import ConfigError
from kzconsumer.settings.secret import read_secret
from kzconsumer_spark.pipe.messages import ToJdbc

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
