"""A PostgreSQL of the tests' own, on loopback, with a password; and the jar of its JDBC driver.

Owns the server process and its directory. The server refuses to run as root: then it runs as the user `postgres`, or
`nobody`. Debian's package `postgresql` has what is needed.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import kzconsumer_sandbox.servers.die_with_parent as die_with_parent
from kzconsumer_sandbox.servers.configuration import HOST, free_port
from tests.support.jars import fetched
from tests.support.programs import INITDB, need

_DRIVER = "postgresql-42.7.4"
_START_SECONDS = 30.0
#: In what the JDBC driver sends for COMMIT, and psycopg does not.
JDBC_COMMIT = b"COMMIT\0\0\0B"


class Postgres:
    """A server with one database."""

    user = "tester"

    def __init__(self, port: int, password: str, command: Sequence[str], folder: Path) -> None:
        """Running once `start` has returned."""
        self.port = port
        self.password = password
        self._command = command
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"jdbc:postgresql://{HOST}:{port}/postgres"

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output, cwd=self._folder)
        _wait(self, self._process, self._log)

    def crash(self) -> None:
        """Stop it without a word to its clients, and without writing anything ("immediate"); `start` recovers."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()

    def query(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement; returns its rows, if any."""
        with self.connect() as connection:
            done = connection.execute(text.encode(), values)
            return done.fetchall() if done.description else []

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        address = {"host": HOST, "port": self.port, "user": self.user, "password": self.password}
        return psycopg.connect(dbname="postgres", autocommit=True, **address)  # type: ignore[arg-type]


@contextmanager
def postgres(**further: object) -> Iterator[Postgres]:
    """A server, with `further` settings, that lives as long as the block, or this process."""
    programs = need(INITDB).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="kzconsumer-postgres-", dir="/tmp"))
    user = _unprivileged()
    if user is not None:
        shutil.chown(folder, user)
    port, password, data = free_port(), secrets.token_hex(8), folder / "data"
    secret = folder / "password"
    secret.write_text(password)
    secret.chmod(0o644)
    options = ["-A", "scram-sha-256", "-U", Postgres.user, f"--pwfile={secret}", "-E", "UTF8", "--no-sync"]
    log = folder / "log"
    with log.open("wb") as output:
        initdb = [str(programs / "initdb"), "-D", str(data), *options]
        subprocess.run(initdb, check=True, stdout=output, stderr=output, user=user, cwd=folder, timeout=120)
        settings = {
            "listen_addresses": HOST,
            "port": port,
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": 30,
            **further,
        }
        reported = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # Its text, and not its path: the user may not look into the directory of the clone.
        text = Path(die_with_parent.__file__).read_text()
        launcher = [sys.executable, "-I", "-S", "-c", text, str(os.getpid())]
        if user is not None:  # becomes the user first: the kernel drops the request when the user changes
            launcher = ["/usr/bin/setpriv", f"--reuid={user}", f"--regid={_group(user)}", "--clear-groups", *launcher]
        command = [*launcher, str(programs / "postgres"), "-D", str(data), *reported]
    server = Postgres(port, password, command, folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def driver_jar() -> Path:
    """The JDBC driver, from Maven's repository through the sandbox's cache of jars."""
    (jar,) = fetched(_DRIVER).glob("postgresql-*.jar")
    return jar


def _wait(server: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)


def _unprivileged() -> str | None:
    if os.getuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid
