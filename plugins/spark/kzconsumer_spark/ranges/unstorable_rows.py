"""Rows that a destination cannot hold, whose records are rejected.

Rows are refused for times that the destination or its readers do not have, for U+0000, and for values that name no
directory.

Rows are written through an assertion, which costs a comparison of each such value. Only if the job fails are they
looked for, and their records rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from operator import or_
from typing import Final, NamedTuple, TypeAlias, TypeVar

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as sql

from kzconsumer.file_names import MOST_BYTES
from kzconsumer.sinks.interface import RecordsRejectedError, Rejected
from kzconsumer_files.parquet import UNSTORABLE
from kzconsumer_spark.ranges.batch import RANGE_OFFSET, RANGE_PARTITION, RANGE_TOPIC, tag_of
from kzconsumer_spark.worker_protocol.messages import BatchRange

MOST_REJECTED: Final = 100_000
"""Records of a batch. More fail it without being named one by one."""

# The years 1 to 9999, for every destination alike; see `kzconsumer_files.parquet`.
_FIRST, _LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"
_TIMES: Final[Mapping[type[types.DataType], tuple[str, str]]] = {
    types.TimestampType: (f"timestamp'{_FIRST}Z'", f"timestamp'{_LAST}Z'"),
    types.TimestampNTZType: (f"timestamp_ntz'{_FIRST}'", f"timestamp_ntz'{_LAST}'"),
    types.DateType: ("date'0001-01-01'", "date'9999-12-31'"),
}
# What Spark writes as three characters in the name of a directory: ExternalCatalogUtils.escapePathName of Spark 4.
_ESCAPED: Final = r"""[^\x01-\x1F"#%'*/:=?\\\x7F{\[\]^]"""
_NO_TIME: Final = "is outside of the years 1 to 9999"
_NUL: Final = "has the character U+0000"
# Spark writes empty text into the directory of nulls, too.
_NULLS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
_NULL: Final = "names the directory of nulls, as which it would be read"
_NOT_IN_ORC: Final = "is a time that ORC does not have"
_LONG: Final = f"is too long for the name of a directory, {MOST_BYTES} bytes"
_REASON: Final = "_kz_reason"

_Condition = TypeVar("_Condition")
_Check: TypeAlias = Callable[[Column, types.DataType], Column | None]
"""Whether a value of this type is bad, as a condition; None for a type of which no value is."""


class Limits(NamedTuple):
    """`nul`: text may have U+0000. `directories`: the columns that name directories, with what precedes the value.

    `empty`: their text may be empty or name the directory of nulls, since files have it as well. `orc`: times are those
    of ORC.
    """

    nul: bool = True
    directories: Mapping[str, str] = {}
    empty: bool = True
    orc: bool = False


class Screen:
    """`frame` is to be written within `explaining`: tagged rows, without their offsets."""

    def __init__(self, tagged: DataFrame, ranges: Sequence[BatchRange], limits: Limits) -> None:
        self._topics = {tag_of(part.topic): part.topic for part in ranges}
        reasons = [*_reasons(tagged.schema, limits)]
        self._bad = tagged.withColumn(_REASON, sql.coalesce(*reasons)) if reasons else None
        frame = tagged
        if reasons:
            found = sql.coalesce(*reasons).isNotNull()
            frame = tagged.where(sql.when(found, sql.raise_error(sql.lit("a row cannot be stored"))).isNull())
        self.frame = frame.drop(RANGE_OFFSET)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Raises RecordsRejectedError in place of an error, if there are rows that cannot be stored."""
        try:
            yield
        except Exception as error:
            if rejected := self._found():
                raise RecordsRejectedError(rejected) from error
            raise

    def _found(self) -> list[Rejected]:
        rows = []
        if self._bad is not None:
            of_record = (RANGE_TOPIC, RANGE_PARTITION, RANGE_OFFSET)
            bad = self._bad.where(sql.col(_REASON).isNotNull()).groupBy(*of_record).agg(sql.min(_REASON))
            with suppress(Exception):  # of the same fault, which is raised
                rows = bad.orderBy(*of_record).limit(MOST_REJECTED + 1).collect()
        if len(rows) > MOST_REJECTED:
            return []
        return [Rejected(self._topics[row[0]], row[1], row[2], row[3], UNSTORABLE) for row in rows]


def _reasons(schema: types.StructType, limits: Limits) -> Iterator[Column]:
    for field in schema:
        if field.name in (RANGE_TOPIC, RANGE_PARTITION, RANGE_OFFSET):
            continue
        value = sql.col(f"`{field.name}`")
        if (outside := _any(value, field.dataType, _outside)) is not None:
            yield _because(outside, field.name, _NO_TIME)
        if limits.orc and (lost := _any(value, field.dataType, _not_in_orc)) is not None:
            yield _because(lost, field.name, _NOT_IN_ORC)
        if not limits.nul and (found := _any(value, field.dataType, _has_nul)) is not None:
            yield _because(found, field.name, _NUL)
        if field.name in limits.directories and isinstance(field.dataType, types.StringType | types.BinaryType):
            text = value.cast("string")
            yield _because(sql.contains(text, sql.lit("\0")), field.name, _NUL)
            if not limits.empty:
                yield _because(text.isin(*_NULLS), field.name, _NULL)
            room = MOST_BYTES - len(limits.directories[field.name].encode())
            escaped = 2 * sql.length(sql.regexp_replace(text, _ESCAPED, ""))
            size = sql.octet_length(text)
            yield _because((size * 3 > room) & (size + escaped > room), field.name, _LONG)


def _because(condition: Column, name: str, reason: str) -> Column:
    return sql.when(condition, sql.lit(f"column {name}: {reason}"))


def _outside(value: Column, kind: types.DataType) -> Column | None:
    bounds = _TIMES.get(type(kind))
    return None if bounds is None else (value < sql.expr(bounds[0])) | (value > sql.expr(bounds[1]))


def _not_in_orc(value: Column, kind: types.DataType) -> Column | None:
    """The days that the calendar left out in 1582, which ORC makes the 15th of; and parts of the second before 1970,
    which are read as a second later (ORC-763)."""
    if type(kind) not in _TIMES:
        return None
    left_out = sql.to_date(value).between(sql.expr("date'1582-10-05'"), sql.expr("date'1582-10-14'"))
    if isinstance(kind, types.DateType):
        return left_out
    literal = "timestamp'{}Z'" if isinstance(kind, types.TimestampType) else "timestamp_ntz'{}'"
    second, after = (sql.expr(literal.format(text)) for text in ("1969-12-31 23:59:59", "1970-01-01 00:00:00"))
    return left_out | ((value > second) & (value < after))


def _has_nul(value: Column, kind: types.DataType) -> Column | None:
    return sql.contains(value, sql.lit("\0")) if isinstance(kind, types.StringType) else None


def _any(value: Column, kind: types.DataType, check: _Check) -> Column | None:
    """Whether the value, or one in it, is bad; None for a type in which none is."""
    match kind:
        case types.StructType():
            return either(_any(value.getField(each.name), each.dataType, check) for each in kind)
        case types.ArrayType():
            return _in_array(value, kind.elementType, check)
        case types.MapType():
            keys = _in_array(sql.map_keys(value), kind.keyType, check)
            values = _in_array(sql.map_values(value), kind.valueType, check)
            return either((keys, values))
    bad = check(value, kind)
    return None if bad is None else sql.coalesce(bad, sql.lit(False))


def either(conditions: Iterable[_Condition | None]) -> _Condition | None:
    """Whether one of them holds; None if there are none."""
    found = [each for each in conditions if each is not None]
    return reduce(or_, found) if found else None


def _in_array(value: Column, kind: types.DataType, check: _Check) -> Column | None:
    if _any(sql.lit(None).cast(kind), kind, check) is None:
        return None

    def is_bad(element: Column) -> Column:
        found = _any(element, kind, check)
        assert found is not None
        return found

    return sql.coalesce(sql.exists(value, is_bad), sql.lit(False))
