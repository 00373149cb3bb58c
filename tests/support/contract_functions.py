"""A function for the Spark sink that keeps the contract of sinks, and variants that break it.

It runs in the sink's worker process; the directory that `FUNCTION_DIRECTORY` names has its database, and may have a
file `mode`. The database represents any that has transactions.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kzconsumer_spark.destinations.function_batch import FunctionBatch
from tests.support.spark_functions import FUNCTION_DIRECTORY


def store(df: Any, batch_id: int, batch: FunctionBatch) -> None:
    """Two steps: rows keyed by their range's token, in one transaction with it; then a note of what was done."""
    directory = Path(os.environ[FUNCTION_DIRECTORY])
    by_batch_id = (directory / "mode").exists()

    def insert() -> None:
        rows = df.select("topic", "partition", "value").collect()
        with database(directory) as connection:
            connection.execute("begin immediate")
            for part in batch.ranges:
                key = f"{part.partition} of {batch_id}" if by_batch_id else part.token
                if connection.execute("insert or ignore into ranges values (?)", (key,)).rowcount:
                    mine = [(row.value,) for row in rows if (row.topic, row.partition) == (part.topic, part.partition)]
                    connection.executemany("insert into records values (?)", map(_plain, mine))

    def note() -> None:
        with database(directory) as connection:
            connection.executemany("insert into notes values (?)", [(part.token,) for part in batch.ranges])

    batch.once("table", insert)
    batch.once("note", note)


def _plain(row: tuple[bytearray | None]) -> tuple[bytes | None]:
    return (None if row[0] is None else bytes(row[0]),)


def database(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "records.db", timeout=60, isolation_level=None)
    for table in ("ranges (token text primary key)", "records (value blob)", "notes (token text)"):
        connection.execute(f"create table if not exists {table}")
    return connection


def stored(directory: Path, what: str) -> Iterable[Any]:
    """All values of one column of a table."""
    with database(directory) as connection:
        return [each for (each,) in connection.execute(f"select * from {what}")]
