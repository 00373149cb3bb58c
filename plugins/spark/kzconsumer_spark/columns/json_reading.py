"""Reads JSON of a schema with Spark's own parser, so that no value is changed.

`from_json` takes the first document of a text and leaves the rest. It rounds decimals, makes `Infinity` of a number
beyond the type, takes `"12:00"` for today at noon, and rewrites a number or a document for a text column, by way of
the nearest double. Here such a value is exact, or bad:

- The last brace of the text is replaced by one more member, of a random name, and a brace. Only if the text is one
  object that ends with that brace the member is found at the top of the first document.
- Dates and times are read as text, and decimals with further digits. They are converted if that changes nothing.
- Each record is parsed once, and each value is tested for what may have changed it. A record of which a value may not
  be exact, such as text that may have been a number, is parsed again with each number in quotes, behind a random mark.
  So is a record that is bad, and gets its reason.

What is asked of every text or value is a comparison or a search for a character: of Spark's functions those that take
parts of texts, or regular expressions, may cost as much as parsing the record.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_, or_
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kzconsumer_files.parquet import FIRST_MS, LAST_MS
from kzconsumer_spark.columns.avro_and_protobuf import Unsupported

_CORRUPT: Final = "__kz_corrupt"
_FIRST: Final = "__kz_json"
_TEXT: Final = "__kz_json_text"
_RESULT: Final = "__kz_json_result"
_SECONDS: Final = (FIRST_MS // 1000, LAST_MS // 1000)  # the first and the last of the years 1 to 9999
_DIGITS: Final = 38
_NOT_ONE: Final = "is not one JSON object alone"
_SPACE: Final = " \t\r\n"
_INTEGER: Final = r"^-?[0-9]{1,12}$"
#: Before a number that is not in quotes, in the place of a value.
_NUMBER_OF: Final = r"\s*:\s*[-+.0-9]"
_ANY_NUMBER: Final = r"[:,\[]\s*[-+.0-9]"
#: What Java makes of a double.
_DOUBLE: Final = r"^-?[0-9]+\.[0-9]+(E-?[0-9]+)?$"
#: A number, and before it what is outside of numbers, strings whole. Java repeats possessive groups without recursion.
_NUMBER: Final = (
    r"""\G((?:[^"'0-9+\-NI]++|"(?:[^"\\]++|\\.)*+"|'(?:[^'\\]++|\\.)*+')*+)"""
    r"([-+]?(?:[0-9][0-9.eE+\-]*+|NaN|INF|Infinity))"
)
#: A comma in a number in quotes, which Spark leaves out; its digits may be written by their numbers.
_COMMA: Final = r"""["'](?:,[-+.,eE]*+[\p{Nd}\\]|(?:[-+.eE\p{Nd}]|\\u\p{XDigit}{4})++,)"""
_NEGATIVE_EXPONENT: Final = r"""[:,\[\s"'][-+]?[.\p{Nd}]++[eE]-"""
#: A character of a decimal by its number.
_ESCAPED: Final = r"\\u00(?:2[b-eB-E]|3[0-9]|[46]5)"
#: In groups: the digits behind its point without zeros at the end, and its exponent.
_DECIMAL: Final = r"^[-+]?\p{Nd}*[.]?(\p{Nd}*?)0*(?:[eE]([-+]?\p{Nd}+))?\z"


_READ: Final = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, DecimalType),
    *(StringType, BinaryType, DateType, TimestampType, TimestampNTZType, StructType, ArrayType, MapType, VariantType),
)


def require_readable(kind: DataType, path: str = "") -> None:
    """Raises Unsupported for a type that JSON is not read as, and for names that differ in case only."""
    if type(kind) not in _READ:
        raise Unsupported(f"column {path} is {kind.simpleString().upper()}, which JSON is not read as; use STRING")
    match kind:
        case StructType():
            names: dict[str, str] = {}
            for each in kind:
                inside = f"{path}.{each.name}" if path else each.name
                if each.name.lower() in names:
                    other = names[each.name.lower()]
                    raise Unsupported(f"columns {other} and {inside} are one to Spark, which ignores case")
                names[each.name.lower()] = inside
                require_readable(each.dataType, inside)
        case ArrayType():
            require_readable(kind.elementType, path)
        case MapType():
            require_readable(kind.keyType, path)
            require_readable(kind.valueType, path)


class Read(NamedTuple):
    """A frame with further columns, `used`; in it the value, and the reason why there is none."""

    frame: DataFrame
    value: Column
    reason: Column
    used: tuple[str, ...]


class _Wrong(NamedTuple):
    path: str
    kind: DataType
    here: Column


class JsonReading:
    """Of one schema. Its random names make that no text is taken for what is put into it."""

    def __init__(self, schema: StructType) -> None:
        self._schema = schema
        self._end = f"end_{secrets.token_hex(8)}"
        self._mark = f"number_{secrets.token_hex(8)}_"
        self._exact = _exact_type(schema)
        self._precision = max((p for each in _decimals(schema) if (p := each.precision) < _DIGITS), default=0)

    def read(self, frame: DataFrame, text: Column) -> Read:
        """`text` is UTF-8 or null. Value and reason are null where it is null."""
        frame = frame.withColumn(_TEXT, self._ended(text))
        frame = frame.withColumn(_FIRST, self._parsed(F.col(_TEXT), _read_type(self._schema), BooleanType()))
        first, ended, values = F.col(_FIRST), F.col(_TEXT), _Values(self._mark)
        no_reason = F.lit(None).cast("string").alias("reason")
        quick = F.struct(values.struct(self._schema, first, None).alias("value"), no_reason)
        is_exact = self._is_whole(first) & first[_CORRUPT].isNull() & values.is_exact(self._schema, first, ended)
        if self._precision:
            is_exact &= ~_may_change_decimals(ended, self._precision)
        strict = F.when(ended.isNotNull(), _apart(self._strict, first, ended))
        frame = frame.withColumn(_RESULT, F.when(is_exact, quick).otherwise(strict))
        return Read(frame, F.col(_RESULT)["value"], F.col(_RESULT)["reason"], (_TEXT, _FIRST, _RESULT))

    def _strict(self, first: Column, ended: Column) -> Column:
        """Value and reason of a record that is bad, or that has to be parsed again."""
        if self._exact is None:
            return self._judged(first, None, ended)
        again = F.when(self._is_whole(first) & first[_CORRUPT].isNull(), self._parsed_again(ended))
        return _apart(lambda again: self._judged(first, again, ended), again)

    def _judged(self, first: Column, again: Column | None, ended: Column) -> Column:
        value = _Values(self._mark).struct(self._schema, first, again)
        return _apart(lambda value: F.struct(value.alias("value"), self._reason(first, again, ended, value)), value)

    def _reason(self, first: Column, again: Column | None, ended: Column, value: Column) -> Column:
        wrong = _Values(self._mark).wrong(self._schema, first, again, value)
        nothing = F.lit(None).cast("string")
        reason = F.when(~self._is_whole(first), F.lit(_NOT_ONE))
        reason = reason.when(first[_CORRUPT].isNotNull(), _misfit(self._schema, first, ended))
        if again is not None:
            reason = reason.when(~self._is_whole(again), F.lit(_NOT_ONE))
        each = (F.when(one.here, F.lit(_no(one.path, one.kind))) for one in wrong)
        return reason.otherwise(F.coalesce(*each, nothing)).alias("reason")

    def _ended(self, text: Column) -> Column:
        """With the member `_end` before the last brace; empty if more than white space is behind that."""
        behind = F.substring_index(text, "}", -1)
        length = F.octet_length(text) - F.octet_length(behind) - 1
        inside = F.substring(text.cast("binary"), F.lit(1), length).cast("string")
        is_empty = F.ltrim(inside, F.lit("{" + _SPACE)) == ""
        end = F.when(is_empty, F.lit(f'"{self._end}":true}}')).otherwise(F.lit(f',"{self._end}":true}}'))
        blank = F.ltrim(behind, F.lit(_SPACE)) == ""
        return F.when(blank, F.concat(inside, end)).when(text.isNotNull(), F.lit(""))

    def _parsed(self, ended: Column, schema: DataType, end: DataType) -> Column:
        assert isinstance(schema, StructType)
        whole = StructType([*schema, StructField(self._end, end), StructField(_CORRUPT, StringType())])
        return F.from_json(ended, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})

    def _parsed_again(self, ended: Column) -> Column:
        """With numbers as text behind the mark."""
        assert self._exact is not None
        marked = F.regexp_replace(ended, F.lit(_NUMBER), F.lit(f'$1"{self._mark}$2"'))
        return self._parsed(marked, self._exact, StringType())

    def _is_whole(self, parsed: Column) -> Column:
        """Whether the text was one document."""
        return parsed[self._end].isNotNull()


class _Values:
    """Values of types, from what was read as `_read_type` (`found`) and, if a record was parsed again, as `_exact_type`
    (`exact`, else None; also None for types that have none)."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def struct(self, kind: StructType, found: Column, exact: Column | None) -> Column:
        parts = [self._value(each.dataType, found[each.name], _part(exact, each)).alias(each.name) for each in kind]
        return F.struct(*parts)

    def _value(self, kind: DataType, found: Column, exact: Column | None) -> Column:
        if exact is None and _read_type(kind) == kind:
            return found
        match kind:
            case StructType():
                return F.when(found.isNotNull(), self.struct(kind, found, exact))
            case ArrayType():
                if exact is None:
                    return F.transform(found, lambda each: self._value(kind.elementType, each, None))
                return F.zip_with(found, exact, lambda each, again: self._value(kind.elementType, each, again))
            case MapType():
                if exact is None:
                    return F.transform_values(found, lambda _, each: self._value(kind.valueType, each, None))
                return F.map_zip_with(found, exact, lambda _, each, again: self._value(kind.valueType, each, again))
            case StringType() if exact is not None:
                return self._unmarked(exact)
            case TimestampType():
                return self._time(found, exact)
            case DateType():
                return F.when((F.length(found) == 10) & _is_dated(found), found.try_cast("date"))
            case DecimalType():
                return found.try_cast(kind)
        return found

    def is_exact(self, kind: DataType, found: Column, text: Column, number: str = "") -> Column:
        """Whether `_value` makes of `found` alone what is in the text. It may be null, and false where that is so.

        `number` is an expression that finds a number in the text in the place of the value, and perhaps others.
        """
        value = self._value(kind, found, None)
        match kind:
            case StructType():
                parts = (self.is_exact(each.dataType, found[each.name], text, _number_of(each)) for each in kind)
                return reduce(and_, parts, F.lit(True))
            case ArrayType():
                return self._are_exact(kind.elementType, found, found, text)
            case MapType():
                return self._are_exact(kind.valueType, found, F.map_values(found), text)
            case StringType():
                # Its first character decides, for all but numbers.
                begins = found.startswith("{") | found.startswith("[") | found.startswith('"')
                number_like = (found == "0") | (F.contains(found, F.lit(".")) & found.rlike(_DOUBLE))
                # A name may be written by its numbers.
                bare = F.contains(text, F.lit("\\u")) | text.rlike(number)
                bare = F.when((found >= "-") & (found < ":") & number_like, bare)
                return found.isNull() | ~(begins | F.coalesce(bare, F.lit(False)))
            case FloatType() | DoubleType():
                return found.isNull() | (F.abs(found) != float("inf"))
            case TimestampType():
                marks = (F.lit('"'), F.lit("'"))
                quoted = reduce(or_, (F.contains(text, F.concat(mark, found, mark)) for mark in marks))
                is_bare = ~quoted & ~F.contains(text, F.lit("\\u"))
                return found.isNull() | (value.isNotNull() & F.when(_is_dated(found), F.lit(True)).otherwise(is_bare))
            case TimestampNTZType():
                return found.isNull() | F.year(found).between(1, 9999)
            case DateType():
                return found.isNull() | value.isNotNull()
            case DecimalType() if kind.precision == _DIGITS:
                return found.isNull()
            case DecimalType():
                return found.isNull() | (value.cast(_wide(kind)) == found)
        return F.lit(True)

    def _are_exact(self, kind: DataType, found: Column, items: Column, text: Column) -> Column:
        if not _can_be_inexact(kind):
            return F.lit(True)
        return found.isNull() | F.forall(items, lambda each: self.is_exact(kind, each, text, _ANY_NUMBER))

    def wrong(
        self, kind: DataType, found: Column, exact: Column | None, value: Column, path: str = ""
    ) -> Iterator[_Wrong]:
        """Where something was found that the type does not have; `value` is what was made of it."""
        match kind:
            case StructType():
                for each in kind:
                    inside = f"{path}.{each.name}" if path else each.name
                    parts = found[each.name], _part(exact, each), value[each.name]
                    yield from self.wrong(each.dataType, *parts, inside)
            case ArrayType() | MapType() if _can_be_wrong(kind):
                yield _Wrong(path, kind, self._wrong_inside(kind, found, exact, value))
            case FloatType() | DoubleType() if exact is not None:
                yield _Wrong(path, kind, exact.rlike(f"^{self._mark}[-+]?[0-9]") & (F.abs(value) == float("inf")))
            case TimestampType() | DateType():
                yield _Wrong(path, kind, found.isNotNull() & value.isNull())
            case TimestampNTZType():
                yield _Wrong(path, kind, ~F.year(value).between(1, 9999))
            case DecimalType() if exact is not None:
                written = self._unmarked(exact)
                digits, exponent = (F.regexp_extract(written, _DECIMAL, group) for group in (1, 2))
                behind_point = F.length(digits) - F.coalesce(exponent.try_cast("int"), F.lit(0))
                as_read = written.rlike(_DECIMAL) & (behind_point <= _wide(kind).scale)
                rounded = value.isNull() | (value.cast(_wide(kind)) != found)
                yield _Wrong(path, kind, found.isNotNull() & (~as_read | rounded))

    def _wrong_inside(self, kind: ArrayType | MapType, found: Column, exact: Column | None, value: Column) -> Column:
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        items = (lambda each: each) if isinstance(kind, ArrayType) else F.map_values
        parts = {"found": items(found), "value": items(value)} | ({} if exact is None else {"exact": items(exact)})
        zipped = F.arrays_zip(*(part.alias(name) for name, part in parts.items()))

        def here(each: Column) -> Column:
            exact = each["exact"] if "exact" in parts else None
            wrong = self.wrong(inner, each["found"], exact, each["value"])
            return reduce(or_, (F.coalesce(one.here, F.lit(False)) for one in wrong), F.lit(False))

        return F.exists(zipped, here)

    def _time(self, found: Column, exact: Column | None) -> Column:
        """Of text with a date; or, of a JSON number, of whole seconds since 1970. In the years 1 to 9999."""
        text = found if exact is None else exact
        number = found if exact is None else F.when(exact.startswith(self._mark), self._unmarked(exact))
        seconds = F.when(number.rlike(_INTEGER), number.try_cast("bigint"))
        time = text.try_cast("timestamp")
        at_an_end = text.startswith("0001-01-01") | text.startswith("9999-12-31")  # its offset may lead out of them
        return (
            F.when(~_is_dated(text), F.when(seconds.between(*_SECONDS), F.timestamp_seconds(seconds)))
            .when(~at_an_end, time)
            .when(F.unix_seconds(time).between(*_SECONDS), time)
        )

    def _unmarked(self, exact: Column) -> Column:
        return F.regexp_replace(exact, F.lit(f'"?{self._mark}([^"]*)"?'), F.lit("$1"))


def _number_of(field: StructField) -> str:
    if re.search(r'["\'\\/\x00-\x1f]', field.name):
        return ":"  # the name may be written in several ways
    return f"[\"']{re.escape(field.name)}[\"']{_NUMBER_OF}"


def _apart(make: Callable[..., Column], *columns: Column) -> Column:
    """The same as `make(*columns)`, evaluated by Spark's interpreter, as `zip_with` is; Spark 4.3 compiles `transform`.

    So it adds nothing to the method that Spark generates: Java compiles none of more than 8000 bytes.
    """
    parts = F.struct(*(column.alias(f"c{number}") for number, column in enumerate(columns)))
    made = F.zip_with(
        F.array(parts), F.array(parts), lambda part, _: make(*(part[f"c{number}"] for number in range(len(columns))))
    )
    return F.get(made, F.lit(0))


def _part(exact: Column | None, field: StructField) -> Column | None:
    return None if exact is None or _exact_type(field.dataType) is None else exact[field.name]


def _can_be_wrong(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_can_be_wrong(each.dataType) for each in kind)
        case ArrayType():
            return _can_be_wrong(kind.elementType)
        case MapType():
            return _can_be_wrong(kind.valueType)
    return isinstance(kind, FloatType | DoubleType | TimestampType | DateType | TimestampNTZType | DecimalType)


def _can_be_inexact(kind: DataType) -> bool:
    return _can_be_wrong(kind) or _exact_type(kind) is not None


def _is_dated(text: Column) -> Column:
    """Whether a date of four, two and two digits may begin it; there is no year 0."""
    dashes = (F.instr(text, "-") == 5) & (F.locate("-", text, 6) == 8)
    return (text >= "0001") & (text < ":") & dashes


def _no(path: str, kind: DataType) -> str:
    nested = isinstance(kind, ArrayType | MapType | StructType)
    return f"has a field {path} that is no {(kind.typeName() if nested else kind.simpleString()).upper()}"


def _misfit(schema: StructType, record: Column, text: Column) -> Column:
    """The first field that is not null in the text, and is null as read."""
    named = [F.when(found.isNull() & F.get_json_object(text, at).isNotNull(), F.lit(_no(path, kind)))
             for path, at, kind, found in _fields(schema, record, "", "$")]  # fmt: skip
    inside = [
        F.when(record[each.name].isNotNull(), F.lit(each.name))
        for each in schema
        if isinstance(each.dataType, ArrayType | MapType | StructType)
    ]
    other = F.concat(F.lit("has a value of another type in "), F.concat_ws(" or ", *inside))
    return F.coalesce(*named, other if inside else F.lit("has a field of another type"))


def _fields(schema: StructType, record: Column, path: str, at: str) -> Iterator[tuple[str, str, DataType, Column]]:
    for each in schema:
        if "'" in each.name:
            continue
        inside = f"{path}.{each.name}" if path else each.name, f"{at}['{each.name}']"
        yield *inside, each.dataType, record[each.name]
        if isinstance(each.dataType, StructType):
            yield from _fields(each.dataType, record[each.name], *inside)


def _wide(kind: DecimalType) -> DecimalType:
    """As many digits before the point, and the most behind it."""
    return DecimalType(_DIGITS, kind.scale + _DIGITS - kind.precision)


def _may_change_decimals(text: Column, precision: int) -> Column:
    """Whether Spark may have made another number of one in the text, so that `_wide` does not show it.

    What is rounded beyond `_wide`, and looks exact, has only zeros or only nines behind its scale, or an exponent.
    """
    rounded = [F.contains(text, F.lit(digit * (_DIGITS - precision))) for digit in "09"]
    is_small = (F.contains(text, F.lit("e-")) | F.contains(text, F.lit("E-"))) & text.rlike(_NEGATIVE_EXPONENT)
    escaped = F.contains(text, F.lit("\\u00")) & text.rlike(_ESCAPED)
    return reduce(or_, [*rounded, is_small, escaped, text.rlike(_COMMA)])


def _decimals(kind: DataType) -> Iterator[DecimalType]:
    match kind:
        case StructType():
            for each in kind:
                yield from _decimals(each.dataType)
        case ArrayType():
            yield from _decimals(kind.elementType)
        case MapType():
            yield from _decimals(kind.valueType)
        case DecimalType():
            yield kind


def _read_type(kind: DataType) -> DataType:
    match kind:
        case StructType():
            return StructType([StructField(each.name, _read_type(each.dataType)) for each in kind])
        case ArrayType():
            return ArrayType(_read_type(kind.elementType))
        case MapType():
            return MapType(kind.keyType, _read_type(kind.valueType))
        case DateType() | TimestampType():
            return StringType()
        case DecimalType():
            return _wide(kind)
    return kind


def _exact_type(kind: DataType) -> DataType | None:
    """Text for all that may have to be parsed again; None if nothing of the type may."""
    match kind:
        case StructType():
            fields = [(each.name, _exact_type(each.dataType)) for each in kind]
            known = [StructField(name, exact) for name, exact in fields if exact is not None]
            return StructType(known) if known else None
        case ArrayType():
            element = _exact_type(kind.elementType)
            return None if element is None else ArrayType(element)
        case MapType():
            value = _exact_type(kind.valueType)
            return None if value is None else MapType(kind.keyType, value)
        case StringType() | FloatType() | DoubleType() | TimestampType() | DecimalType():
            return StringType()
    return None
