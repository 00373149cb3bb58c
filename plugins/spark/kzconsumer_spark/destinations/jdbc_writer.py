"""The JDBC destination in the worker: Spark inserts ranges into a staging table, one transaction publishes them.

Executors write the staging table and nothing else. After a failure connection and staging table are replaced: a task of
the failed job may still be writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as sql

from kzconsumer.errors import ConfigError
from kzconsumer.model import OffsetRange
from kzconsumer_files.target_writer import WriteResult
from kzconsumer_spark.destinations.jdbc_database import DRIVER, MISSING, Connection
from kzconsumer_spark.destinations.jdbc_database import password as read_password
from kzconsumer_spark.destinations.jdbc_table import JdbcTable
from kzconsumer_spark.ranges.batch import (
    RANGE_COLUMNS,
    STAGED_ROW,
    AsTheyCame,
    Permission,
    RowShaping,
    SparkBatch,
    counted,
    require_all,
    tag_of,
    tagged,
)
from kzconsumer_spark.ranges.staged_files import TIMES
from kzconsumer_spark.ranges.unstorable_rows import Limits, Screen
from kzconsumer_spark.worker_protocol.messages import BatchRange, ToJdbc

_TYPES: Final[dict[type[types.DataType], str]] = {
    types.StringType: "text",
    types.BinaryType: "bytea",
    types.BooleanType: "boolean",
    types.ByteType: "smallint",
    types.ShortType: "smallint",
    types.IntegerType: "integer",
    types.LongType: "bigint",
    types.FloatType: "real",
    types.DoubleType: "double precision",
    types.DateType: "date",
    types.TimestampType: "timestamptz",
    types.TimestampNTZType: "timestamp",
}


class JdbcDestination:
    """Each range's rows in the table once, with a row of the ledger."""

    def __init__(self, session: SparkSession, to: ToJdbc, lease: Permission, shaping: RowShaping | None = None) -> None:
        self._to = to
        self._lease = lease
        self._shaping = shaping or AsTheyCame()
        self._table = JdbcTable(to)
        self._held: tuple[Connection, str] | None = None
        _require_driver(session)

    def write(self, batch: SparkBatch) -> WriteResult:
        try:
            connection, stage = self._hold()
            missing = self._table.missing(connection, batch.ranges)
            if not missing:
                return WriteResult(0, 0, len(batch.ranges))
            rows = dict.fromkeys(missing, 0)
            columns: list[str] = []
            quarantined: Mapping[OffsetRange, int] = {}
            if with_rows := [part for part in missing if part.records]:
                columns, quarantined = self._staged(connection, stage, batch.rows(with_rows), with_rows, rows)
            require_all(batch, {part.range.topic_partition: written for part, written in rows.items()}, self._shaping)
            rows = {counted(part, written, self._shaping): written for part, written in rows.items()}
            self._lease.require_whole()
            published = self._table.publish(
                connection, rows, quarantined, stage, columns, self._lease.require_now, batch.follows
            )
            self._table.stages.drop(connection, stage)
        except BaseException:
            self.close()
            raise
        return WriteResult(sum(rows.values()), published, len(batch.ranges) - published)

    def trial(self, batch: SparkBatch) -> None:
        try:
            connection, stage = self._hold()
            rows = dict.fromkeys(batch.ranges, 0)
            columns, _ = self._staged(connection, stage, batch.frame, batch.ranges, rows)
            self._table.try_rows(connection, list(rows), stage, columns)
            self._table.stages.drop(connection, stage)
        except BaseException:
            self.close()
            raise

    def _staged(
        self,
        connection: Connection,
        stage: str,
        records: DataFrame,
        ranges: Sequence[BatchRange],
        rows: dict[BatchRange, int],
    ) -> tuple[list[str], Mapping[OffsetRange, int]]:
        """Fill the stage, and `rows` with its counts; returns its columns, and how many records are in quarantine."""
        shaped, quarantined = tagged(records, ranges, self._shaping)
        screen = Screen(shaped, ranges, Limits(nul=False))
        frame = screen.frame
        columns = [name for name in frame.columns if name not in RANGE_COLUMNS]
        self._table.create(connection, {name: column_type(frame.schema[name].dataType) for name in columns})
        made = self._table.stages.make(connection, stage, columns)
        with screen.explaining():
            self._write_stage(storable(frame), made)
        counts = self._table.stages.rows(connection, stage)
        rows |= {part: counts.get((tag_of(part.topic), part.partition), 0) for part in ranges}
        return columns, quarantined

    def close(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            connection, stage = held
            with contextlib.suppress(OSError):
                self._table.stages.drop(connection, stage)
            connection.close()

    def _hold(self) -> tuple[Connection, str]:
        """The connection, tested, and our stage's name; new ones if there are none or the old ones are lost."""
        if self._held is not None:
            try:
                self._table.stages.drop(*self._held)
            except OSError:
                self.close()
        if self._held is None:
            connection = self._table.connect()
            self._held = connection, self._table.stages.own(connection)
        return self._held

    def _write_stage(self, frame: DataFrame, stage: str) -> None:
        frame = frame.withColumn(STAGED_ROW, sql.monotonically_increasing_id())
        frame.write.format("jdbc").mode("append").options(**staging_options(self._to, stage)).save()


def staging_options(to: ToJdbc, stage: str) -> dict[str, str]:
    """Those of Spark's JDBC writer, which passes on what it does not know to PostgreSQL's driver."""
    password = read_password(to)
    return {
        "reWriteBatchedInserts": "true",
        # The driver's error for a failed row would include the values of other rows.
        "logServerErrorDetail": "false",
        # Seconds until a host that has vanished is given up. Of a stage, which no other process locks, an answer comes
        # with every few rows: only the answer to a commit may be late, while the server writes a checkpoint.
        "socketTimeout": "300",
        **to.write_options,
        "url": to.url,
        "dbtable": stage,
        "driver": DRIVER,
        # PostgreSQL converts text to the type of the column: jsonb, uuid, enumerations.
        "stringtype": "unspecified",
        "user": to.user,
        **({} if password is None else {"password": password}),
    }


def storable(frame: DataFrame) -> DataFrame:
    """The frame with text in place of what JDBC has no exact value of: PostgreSQL reads it as the type of its column.

    JSON of structs, maps, arrays of these; dates and times, which JDBC has in Java's time zone and old calendar only.
    """
    texts = {}
    for field in frame.schema:
        column = sql.col(f"`{field.name}`")
        if column_type(field.dataType) == "jsonb":
            texts[field.name] = sql.to_json(column, {**TIMES})
        elif isinstance(field.dataType, types.TimestampType):
            in_utc = sql.timestamp_add("MICROSECOND", sql.unix_micros(column), sql.lit(_EPOCH).cast("timestamp_ntz"))
            texts[field.name] = sql.concat(in_utc.cast("string"), sql.lit("Z"))
        elif isinstance(field.dataType, types.TimestampNTZType | types.DateType):
            texts[field.name] = column.cast("string")
    return frame.withColumns(texts) if texts else frame


_EPOCH: Final = "1970-01-01T00:00:00"


def column_type(kind: types.DataType) -> str:
    """The type of a column that is made for a column of the frame."""
    if isinstance(kind, types.DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, types.ArrayType) and type(kind.elementType) in _ARRAYS:
        return f"{column_type(kind.elementType)}[]"
    return _TYPES.get(type(kind), "jsonb")


_ARRAYS: Final = (types.StringType, types.BooleanType, types.IntegerType, types.LongType, types.DoubleType)


def _require_driver(session: SparkSession) -> None:
    jvm = session.sparkContext._jvm
    assert jvm is not None
    try:
        jvm.org.apache.spark.util.Utils.classForName(DRIVER, True, True)
    except Exception as error:
        raise ConfigError([MISSING]) from error
