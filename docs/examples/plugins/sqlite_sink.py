"""A sink that writes each record to SQLite once.

Shows: a replayable sink, whose destination knows each range, and notices if it was restored from an older copy. (A
member that is suspended in a transaction blocks the others, as with any database that has one lock.)

    pip install ./docs/examples/plugins
    kzconsumer run group.toml --set sink.plugin=example-sqlite --set sink.options.path=orders.sqlite
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

import anyio
import msgspec

from kzconsumer.errors import DestinationWentBackError, SinkError
from kzconsumer.model import RangeIdentity
from kzconsumer.settings import read_table
from kzconsumer.sinks import Batch, SinkContext

TABLES = """
pragma journal_mode = wal;  -- `has` does not wait for a member that writes
create table if not exists records (topic text, "partition" int, "offset" int, key blob, value blob);
create table if not exists ranges (identity text primary key);
"""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    path: str


class SQLiteSink:
    remembers = True  # ranges are never deleted

    def __init__(self, options: Mapping[str, object], context: SinkContext) -> None:
        self._file = Path(read_table(options, Options, "[sink.options]").path).resolve()
        self.fingerprint = f"sqlite in {self._file}"  # plans of another destination are not written here

    async def __aenter__(self) -> Self:
        await anyio.to_thread.run_sync(self._prepare)
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def write(self, batch: Batch) -> None:
        await anyio.to_thread.run_sync(self._publish, batch)

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        with closing(self._open()) as database:
            return [each for each in ranges if _known(database, each)]

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file, timeout=30, isolation_level=None)

    def _prepare(self) -> None:
        with closing(self._open()) as database:
            database.executescript(TABLES)

    def _publish(self, batch: Batch) -> None:
        """One transaction takes the rows and the names of their ranges. Another member waits for it, or takes none."""
        try:
            with closing(self._open()) as database, database:
                database.execute("pragma synchronous = full")
                database.execute("begin immediate")
                for before in batch.follows:  # the last range of each partition: without it this is an older copy
                    if not _known(database, before):
                        raise DestinationWentBackError(before)
                for part in batch.ranges:
                    if not _known(database, part.identity):
                        database.execute("insert into ranges values (?)", [_name(part.identity)])
                        rows = (
                            (part.topic, part.partition, each.offset, each.key, each.value) for each in part.messages()
                        )
                        database.executemany("insert into records values (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise SinkError(f"{self._file}: {error}") from error


def _name(part: RangeIdentity) -> str:
    return "/".join(map(str, part))  # topic, partition, incarnation, epoch, first, until


def _known(database: sqlite3.Connection, part: RangeIdentity) -> bool:
    return database.execute("select 1 from ranges where identity = ?", [_name(part)]).fetchone() is not None
