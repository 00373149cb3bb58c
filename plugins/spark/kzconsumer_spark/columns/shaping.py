"""Makes the DataFrame to be written from that of the records: decode, separate bad records, `where`, `select`.

Built when the worker starts, so that faults of the settings are found then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer.model import OffsetRange
from kzconsumer.sinks.interface import RecordsRejectedError, Rejected
from kzconsumer_spark.columns.avro_and_protobuf import Decoder, Unsupported
from kzconsumer_spark.columns.bad_records import Quarantine
from kzconsumer_spark.columns.decoding import Decoding, error_of, raw_of
from kzconsumer_spark.columns.where_and_select import apply, check_syntax
from kzconsumer_spark.ranges.batch import Shaped
from kzconsumer_spark.ranges.unstorable_rows import MOST_REJECTED
from kzconsumer_spark.worker_protocol.column_options import Columns, Field
from kzconsumer_spark.worker_protocol.messages import BatchRange

_FATAL = "__kz_fatal"
_BAD = "__kz_bad"
_POSITION = ("topic", "partition", "offset")
UNDECODABLE = "undecodable"
"""The class of errors of records whose key or value cannot be decoded."""


class UndecodableRecord(Exception):
    """Too many records cannot be decoded."""


class BadPosition(NamedTuple):
    topic: str
    partition: int
    offset: int
    reason: str


class Shaping:
    """Applies the settings of columns to batches."""

    def __init__(self, session: SparkSession, columns: Columns, schema: str) -> None:
        """Raises ConfigError for faults that are visible without records, RegistryError."""
        self._columns = columns
        self._cached: DataFrame | None = None
        self._known: StructType | None = None
        self._quarantine: Quarantine | None = None
        self.is_trial = False
        """Set for a batch of which nothing stays: nothing is put into the quarantine."""
        try:
            self._decoding = Decoding(columns)
        except (Unsupported, OSError) as error:
            raise ConfigError([f"[sink.options] schema: {error}"]) from error
        self._check(session, schema)
        if columns.quarantine is not None and "quarantine" in {each.on_error for each in columns.fields.values()}:
            self._quarantine = Quarantine(Path(columns.quarantine))

    def shape(self, frame: DataFrame, ranges: Sequence[BatchRange]) -> Shaped:
        """The rows for the destination, of `frame` with the records of `ranges`.

        Bad records of these ranges are in quarantine when this returns. Columns of `frame` whose names begin with
        `_kz_` belong to the destination and are kept. Rows stay in their tasks; the result may be evaluated repeatedly.
        Raises RecordsRejectedError, BadRecord, SqlFault, RegistryError, Unsupported, QuarantineDiffers, OSError.
        """
        if self._columns.change_nothing:
            return Shaped(frame, {})
        decoders = self._decoding.decoders(frame)
        raw = [] if self._quarantine is None else [*self._columns.fields]
        decoded = self._decoded(frame, decoders, raw)
        if not self._fields("reject") + self._fields("quarantine"):
            return Shaped(apply(decoded, self._columns), {})
        # Only of bad records: the frame is held in memory.
        decoded = decoded.withColumns(
            {raw_of(name): F.when(F.col(_BAD).isNotNull(), F.col(raw_of(name))) for name in raw}
        )
        self._hold(decoded)
        bad = self._count(decoded)
        quarantined = self._put_aside(decoded, ranges, bad)
        good = decoded.where(F.col(_BAD).isNull()).drop(_FATAL, _BAD, *map(raw_of, raw))
        return Shaped(apply(good, self._columns), quarantined)

    @property
    def columns(self) -> StructType | None:
        """The columns that `shape` makes, if they are known before the first record."""
        return self._known

    @property
    def leaves_out_rows(self) -> bool:
        """Whether a batch with records may have no rows."""
        return not self._columns.change_nothing

    def has_rows(self, shaped: DataFrame) -> bool:
        """As `RowShaping`; the frame is in the cache from then on if any row can be left out."""
        if not self.leaves_out_rows:
            return True
        if self._cached is None:
            self._hold(shaped)
        return not shaped.isEmpty()

    def preview(self, frame: DataFrame, most_bad: int) -> tuple[DataFrame, list[BadPosition]]:
        """As `shape`, but bad records are returned, and neither quarantined nor an error."""
        decoded = self._decoded(frame, self._decoding.decoders(frame))
        if not self._fields("reject") + self._fields("quarantine"):
            return apply(decoded, self._columns), []
        self._hold(decoded)
        reason = F.coalesce(_FATAL, _BAD)
        rows = (
            decoded.where(reason.isNotNull()).select(*_POSITION, reason).orderBy(*_POSITION).limit(most_bad).collect()
        )
        good = decoded.where(reason.isNull()).drop(_FATAL, _BAD)
        return apply(good, self._columns), [BadPosition(*row) for row in rows]

    def release(self) -> None:
        """Release the cache of the last batch."""
        if self._cached is not None:
            self._cached.unpersist()
            self._cached = None

    def close(self) -> None:
        self.release()
        if self._quarantine is not None:
            self._quarantine.close()

    def _check(self, session: SparkSession, schema: str) -> None:
        nothing = session.createDataFrame([], schema)
        if self._columns.change_nothing:
            self._known = nothing.schema
            return
        if not self._decoding.known_before:
            check_syntax(session, self._columns)
            return
        try:
            decoded = self._decoded(nothing, self._decoding.decoders(None))
        except Unsupported as error:
            raise ConfigError([f"[sink.options] schema: {error}"]) from error
        self._known = apply(decoded.drop(_FATAL, _BAD), self._columns).schema

    def _fields(self, on_error: str) -> list[Field]:
        return [name for name, options in self._columns.fields.items() if options.on_error == on_error]

    def _decoded(self, frame: DataFrame, decoders: Mapping[Field, Decoder], raw: Collection[Field] = ()) -> DataFrame:
        """The decoded frame, with reasons why rows are fatal or bad and `_corrupt_<field>`, as the policies need."""
        columns = self._fields("column")
        decoded = self._decoding.decode(frame, decoders, {*columns, *raw})
        extra = {
            mark: _first_reason(self._fields(policy)) for mark, policy in ((_FATAL, "reject"), (_BAD, "quarantine"))
        }
        for name in columns:
            corrupt = F.struct(F.col(error_of(name)).alias("reason"), F.col(raw_of(name)).alias("bytes"))
            extra[f"_corrupt_{name}"] = F.when(F.col(error_of(name)).isNotNull(), corrupt)
        if columns == list(self._columns.fields):
            del extra[_FATAL], extra[_BAD]
        internal = [error_of(name) for name in self._columns.fields] + [
            raw_of(name) for name in columns if name not in raw
        ]
        return decoded.withColumns(extra).drop(*internal)

    def _hold(self, frame: DataFrame) -> None:
        """Cache the frame (memory, then disk): counting, filters and writing would each read and decode again."""
        self.release()
        self._cached = frame.persist()

    def _count(self, decoded: DataFrame) -> dict[tuple[str, int], int]:
        """The number of quarantined records by topic and partition. Raises RecordsRejectedError for others."""
        rows = (
            decoded.where(F.coalesce(_FATAL, _BAD).isNotNull())
            .groupBy("topic", "partition")
            .agg(F.count(_BAD).alias("bad"), F.count(_FATAL).alias("fatal"))
            .collect()
        )
        if (fatal := sum(row.fatal for row in rows)) > MOST_REJECTED:
            raise UndecodableRecord(
                f"{fatal} records of one batch cannot be decoded: this is not a matter of single records"
            )
        if fatal:
            found = decoded.where(F.col(_FATAL).isNotNull()).select(*_POSITION, _FATAL).orderBy(*_POSITION).collect()
            raise RecordsRejectedError(Rejected(row[0], row[1], row[2], row[3], UNDECODABLE) for row in found)
        return {(row.topic, row.partition): row.bad for row in rows}

    def _put_aside(
        self,
        decoded: DataFrame,
        ranges: Sequence[BatchRange],
        bad: Mapping[tuple[str, int], int],
    ) -> dict[OffsetRange, int]:
        if self._quarantine is None or self.is_trial:
            return {}
        put: dict[OffsetRange, int] = {}
        for part in ranges:
            if not bad.get((part.topic, part.partition)):
                self._quarantine.require_same(part, [])
                continue
            here = (F.col("topic") == part.topic) & (F.col("partition") == part.partition)
            found = decoded.where(F.col(_BAD).isNotNull() & here)
            rows = found.select(*self._kept(), F.col(_BAD).alias("reason")).toArrow()
            self._quarantine.put(part, rows)
            put[part.range] = rows.num_rows
        return put

    def _kept(self) -> list[Column]:
        """The columns of a quarantined record: those of the record."""
        both: tuple[Field, Field] = ("key", "value")
        as_read = [F.col(raw_of(name) if name in self._columns.fields else name).alias(name) for name in both]
        return [*map(F.col, _POSITION), *as_read, F.col("timestamp"), F.col("timestampType"), F.col("headers")]


def _first_reason(fields: Sequence[Field]) -> Column:
    if not fields:
        return F.lit(None).cast("string")
    return F.coalesce(*(F.concat(F.lit(f"{name} "), F.col(error_of(name))) for name in fields))
