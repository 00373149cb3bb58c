"""Reads JSON of a schema with Spark's own parser, so that no value is changed.

`from_json` takes the first document of a text and leaves the rest. It rounds decimals, makes `Infinity` of a number
beyond the type, takes `"12:00"` for today at noon, and rewrites a number or a document for a text column, by way of
the nearest double. Here such a value is exact, or bad:

- The last brace of the text is replaced by one more member, of a random name, and a brace. Only if the text is one
  object that ends with that brace the member is found at the top of the first document.
- Dates and times are read as text, and decimals with further digits. They are converted if that changes nothing.
- A few records have text that may have been rewritten, or an infinite number. Their text is parsed again with each
  number in quotes, behind a random mark.

What is asked of every text or value is a comparison or a search for a character: of Spark's functions those that take
parts of texts, or regular expressions, may cost as much as parsing the record.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_
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
from kzconsumer_spark.columns.decoders import Unsupported

_CORRUPT: Final = "__kz_corrupt"
_FIRST: Final = "__kz_json"
_AGAIN: Final = "__kz_json_again"
_VALUE: Final = "__kz_json_value"
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
_NUMBER: Final = r'\G((?:[^"0-9+\-NI]++|"(?:[^"\\]++|\\.)*+")*+)' r"([-+]?(?:[0-9][0-9.eE+\-]*+|NaN|INF|Infinity))"


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

    def read(self, frame: DataFrame, text: Column) -> Read:
        """`text` is UTF-8. The reason may be null, and so may the value be, where the text is null.

        What few records need is computed by `_apart`: Java compiles no method that is long.
        """
        ended = self._ended(text)
        frame = frame.withColumn(_FIRST, self._parsed(ended, _read_type(self._schema), IntegerType()))
        first, corrupt, whole = F.col(_FIRST), F.col(_FIRST)[_CORRUPT], self._is_whole(_FIRST)
        reason = F.when(~whole, F.lit(_NOT_ONE)).when(
            corrupt.isNotNull(), _apart(lambda found, of: _misfit(self._schema, found, of), first, text)
        )
        value = self._value(first, None)
        if self._exact is not None:
            unsure = whole & corrupt.isNull() & _unsure(self._schema, first, text)
            frame = frame.withColumn(_AGAIN, F.when(unsure, _apart(self._parsed_again, ended)))
            exact, is_read_again = F.col(_AGAIN), F.col(_AGAIN).isNotNull()
            value = F.when(is_read_again, _apart(self._value, first, exact)).otherwise(value)
            reason = reason.when(is_read_again & ~self._is_whole(_AGAIN), F.lit(_NOT_ONE)).when(
                is_read_again, _apart(self._reason, first, exact, F.col(_VALUE))
            )
        frame = frame.withColumn(_VALUE, value)
        reason = reason.otherwise(self._reason(first, None, F.col(_VALUE)))
        return Read(frame, F.col(_VALUE), reason, (_FIRST, _AGAIN, _VALUE))

    def _ended(self, text: Column) -> Column:
        """With the member `_end` before the last brace; null if more than white space is behind that."""
        behind = F.substring_index(text, "}", -1)
        length = F.octet_length(text) - F.octet_length(behind) - 1
        inside = F.substring(text.cast("binary"), F.lit(1), length).cast("string")
        is_empty = F.ltrim(inside, F.lit("{" + _SPACE)) == ""
        end = F.when(is_empty, F.lit(f'"{self._end}":1}}')).otherwise(F.lit(f',"{self._end}":1}}'))
        return F.when(F.ltrim(behind, F.lit(_SPACE)) == "", F.concat(inside, end))

    def _parsed(self, ended: Column, schema: DataType, end: DataType) -> Column:
        assert isinstance(schema, StructType)
        whole = StructType([*schema, StructField(self._end, end), StructField(_CORRUPT, StringType())])
        return F.from_json(ended, whole, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})

    def _parsed_again(self, ended: Column) -> Column:
        """With numbers as text behind the mark."""
        assert self._exact is not None
        marked = F.regexp_replace(ended, F.lit(_NUMBER), F.lit(f'$1"{self._mark}$2"'))
        return self._parsed(marked, self._exact, StringType())

    def _is_whole(self, parsed: str) -> Column:
        """Whether the text was one document."""
        return F.col(parsed)[self._end].isNotNull()

    def _value(self, found: Column, exact: Column | None) -> Column:
        return F.when(found.isNotNull(), _Values(self._mark).struct(self._schema, found, exact))

    def _reason(self, found: Column, exact: Column | None, value: Column) -> Column:
        wrong = _Values(self._mark).wrong(self._schema, found, exact, value)
        nothing = F.lit(None).cast("string")
        return F.coalesce(*(F.when(each.here, F.lit(_no(each.path, each.kind))) for each in wrong), nothing)


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
            case DecimalType() if kind.precision < _DIGITS:
                rounded = value.isNull() | (value.cast(_wide(kind)) != found)
                yield _Wrong(path, kind, found.isNotNull() & rounded)
            case DecimalType() if exact is not None:
                plain = f"^[-+]?[0-9]+([.][0-9]{{0,{kind.scale}}}0*)?$"
                yield _Wrong(path, kind, ~self._unmarked(exact).rlike(plain))

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


def _unsure(kind: DataType, found: Column, text: Column, number: str = "") -> Column:
    """Whether a record has to be parsed again for a value of a type that has an `_exact_type`.

    `number` is an expression that finds a number in the text in the place of the value, and perhaps others.
    """
    match kind:
        case StructType():
            known = [each for each in kind if _exact_type(each.dataType) is not None]
            return reduce(or_, (_unsure(each.dataType, found[each.name], text, _number_of(each)) for each in known))
        case ArrayType():
            here = F.exists(found, lambda each: _unsure(kind.elementType, each, text, _ANY_NUMBER))
        case MapType():
            here = F.exists(F.map_values(found), lambda each: _unsure(kind.valueType, each, text, _ANY_NUMBER))
        case StringType():
            # Its first character decides, for all but numbers.
            begins = found.startswith("{") | found.startswith("[") | found.startswith('"')
            number_like = (found == "0") | (F.contains(found, F.lit(".")) & found.rlike(_DOUBLE))
            bare = F.contains(text, F.lit("\\u")) | text.rlike(number)  # a name may be written by its numbers
            here = begins | ((found >= "-") & (found < ":") & number_like & bare)
        case FloatType() | DoubleType():
            here = F.abs(found) == float("inf")
        case TimestampType():
            quoted = F.contains(text, F.concat(F.lit('"'), found, F.lit('"')))
            here = ~_is_dated(found) & found.rlike(_INTEGER) & (quoted | F.contains(text, F.lit("\\u")))
        case _:  # a decimal of all digits
            here = found.isNotNull()
    return F.coalesce(here, F.lit(False))


def _number_of(field: StructField) -> str:
    if re.search(r'["\'\\/\x00-\x1f]', field.name):
        return ":"  # the name may be written in several ways
    return f"[\"']{re.escape(field.name)}[\"']{_NUMBER_OF}"


def _apart(make: Callable[..., Column], *columns: Column) -> Column:
    """The same as `make(*columns)`, evaluated by Spark's interpreter, as functions of arrays are.

    So it adds nothing to the method that Spark generates: Java compiles none of more than 8000 bytes.
    """
    parts = F.struct(*(column.alias(f"c{number}") for number, column in enumerate(columns)))
    made = F.transform(F.array(parts), lambda part: make(*(part[f"c{number}"] for number in range(len(columns)))))
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
        case StringType() | FloatType() | DoubleType() | TimestampType():
            return StringType()
        case DecimalType() if kind.precision == _DIGITS:
            return StringType()
    return None
