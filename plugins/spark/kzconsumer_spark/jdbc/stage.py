"""Staging tables: where Spark's tasks insert the rows of a batch, before one transaction publishes them.

Each worker has one at a time, `kzconsumer_stage_<key>`, and holds the advisory lock of that key as long as it lives.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from psycopg.sql import SQL, Identifier

from kzconsumer_spark.jdbc.database import Connection, columns_of, database_errors, fetch, in_schema
from kzconsumer_spark.ranges.tags import RANGE_PARTITION, RANGE_TOPIC, STAGED_ROW

STAGE: Final = "kzconsumer_stage_"
_ROW_IN_TASK: Final = SQL(str((1 << 33) - 1))  # the bits of a row's id that count rows within a task


class Stages:
    """Those beside the user's table `table`, in its schema."""

    def __init__(self, schema: str | None, table: Identifier) -> None:
        self._schema = schema
        self._table = table

    def own(self, connection: Connection) -> str:
        """Remove the stages of dead workers; returns a new name, which is ours as long as the connection lives."""
        stages = SQL(
            "SELECT tablename FROM pg_tables WHERE schemaname = coalesce(%s, current_schema()) AND tablename ~ %s"
        )
        with database_errors():
            for (name,) in fetch(connection, stages, [self._schema, f"^{STAGE}[0-9a-f]{{16}}$"]):
                key = _lock_key(name)
                ((free,),) = fetch(connection, SQL("SELECT pg_try_advisory_lock(%s)"), [key])
                if free:
                    self.drop(connection, name)
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
