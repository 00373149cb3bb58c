"""Which types columns are read and stored as, for types of any nesting: rules without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from kzconsumer_spark.columns.avro_and_protobuf import Unsupported
from kzconsumer_spark.columns.json_reading import (
    _can_be_inexact,
    _can_be_wrong,
    _exact_type,
    _no,
    _read_type,
    _wide,
    require_readable,
)
from kzconsumer_spark.destinations.jdbc_writer import column_type

TEXT = StringType()
#: Type -> what it is read as first, and again with exact text (None: never); whether a value may be wrong.
LEAVES: list[tuple[DataType, DataType, DataType | None, bool]] = [
    *((each, each, None, False) for each in (BooleanType(), ByteType(), ShortType(), IntegerType(), LongType())),
    *((each, each, None, False) for each in (BinaryType(), VariantType())),
    (TEXT, TEXT, TEXT, False),
    (FloatType(), FloatType(), TEXT, True),
    (DoubleType(), DoubleType(), TEXT, True),
    (DateType(), TEXT, None, True),
    (TimestampType(), TEXT, TEXT, True),
    (TimestampNTZType(), TimestampNTZType(), None, True),
    (DecimalType(10, 2), DecimalType(38, 30), TEXT, True),
    (DecimalType(38, 5), DecimalType(38, 5), TEXT, True),
    (DecimalType(1, 0), DecimalType(38, 37), TEXT, True),
]


def nested(chance: random.Random, depth: int) -> tuple[DataType, DataType, DataType | None, bool]:
    """The same of a type of any nesting."""
    kind = chance.choice(["leaf", "struct", "array", "map"]) if depth else "leaf"
    if kind == "leaf":
        return chance.choice(LEAVES)
    if kind == "struct":
        parts = {name: nested(chance, depth - 1) for name in chance.sample("abcd", chance.randint(1, 3))}
        exact = [StructField(name, each[2]) for name, each in parts.items() if each[2] is not None]
        of: Callable[[int], StructType] = lambda n: StructType([StructField(k, v[n]) for k, v in parts.items()])  # type: ignore[arg-type] # noqa: E731
        return of(0), of(1), StructType(exact) if exact else None, any(each[3] for each in parts.values())
    inner = nested(chance, depth - 1)
    if kind == "array":
        return ArrayType(inner[0]), ArrayType(inner[1]), ArrayType(inner[2]) if inner[2] else None, inner[3]
    key = chance.choice([TEXT, IntegerType()])
    return MapType(key, inner[0]), MapType(key, inner[1]), MapType(key, inner[2]) if inner[2] else None, inner[3]


@pytest.mark.parametrize("seed", range(30))
def test_what_json_is_read_as(seed: int) -> None:
    """Text where Spark's parser would change a value, with digits to see what it has cut off; and what may be bad."""
    kind, first, exact, wrong = nested(random.Random(seed), 3)
    assert _read_type(kind) == first
    assert _exact_type(kind) == exact
    assert _can_be_wrong(kind) is wrong
    assert _can_be_inexact(kind) is (wrong or exact is not None)
    require_readable(kind)


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (1, 1), (10, 2), (37, 37), (38, 0), (38, 38)])
def test_a_decimal_is_read_with_all_digits_that_there_are(precision: int, scale: int) -> None:
    """No fewer before the point, so that a value that is too large is one."""
    wide = _wide(DecimalType(precision, scale))
    assert (wide.precision, wide.precision - wide.scale) == (38, precision - scale)


def within(kind: DataType) -> Iterator[tuple[DataType, str]]:
    """A type with this one in it, and the path of it."""
    yield StructType([StructField("a", TEXT), StructField("b", kind)]), "b"
    yield StructType([StructField("s", StructType([StructField("x", kind)]))]), "s.x"
    yield StructType([StructField("l", ArrayType(StructType([StructField("x", kind)])))]), "l.x"
    yield StructType([StructField("m", MapType(TEXT, kind))]), "m"
    yield StructType([StructField("k", MapType(kind, TEXT))]), "k"


@pytest.mark.parametrize("kind", [NullType(), CharType(3), DayTimeIntervalType()])
def test_a_type_that_json_is_not_read_as_is_named_with_its_place(kind: DataType) -> None:
    for whole, path in within(kind):
        with pytest.raises(Unsupported) as raised:
            require_readable(whole)
        said = f"column {path} is {kind.simpleString().upper()}, which JSON is not read as; use STRING"
        assert str(raised.value) == said


def test_names_that_differ_in_case_only_are_one_column() -> None:
    two = StructType([StructField("a", TEXT), StructField("Name", TEXT), StructField("nAME", TEXT)])
    for whole, path in [(two, ""), *within(two)]:
        with pytest.raises(Unsupported) as raised:
            require_readable(whole)
        begin = f"{path}." if path else ""
        assert str(raised.value) == f"columns {begin}Name and {begin}nAME are one to Spark, which ignores case"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (DecimalType(5, 1), "has a field a.b that is no DECIMAL(5,1)"),
        (IntegerType(), "has a field a.b that is no INT"),
        (ArrayType(IntegerType()), "has a field a.b that is no ARRAY"),
        (MapType(TEXT, TEXT), "has a field a.b that is no MAP"),
        (StructType([]), "has a field a.b that is no STRUCT"),
    ],
)
def test_what_a_field_is_not(kind: DataType, said: str) -> None:
    assert _no("a.b", kind) == said


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (TEXT, "text"),
        (BinaryType(), "bytea"),
        (BooleanType(), "boolean"),
        (ByteType(), "smallint"),
        (ShortType(), "smallint"),
        (IntegerType(), "integer"),
        (LongType(), "bigint"),
        (FloatType(), "real"),
        (DoubleType(), "double precision"),
        (DateType(), "date"),
        (TimestampType(), "timestamptz"),
        (TimestampNTZType(), "timestamp"),
        (DecimalType(12, 3), "numeric(12,3)"),
        (ArrayType(TEXT), "text[]"),
        (ArrayType(LongType()), "bigint[]"),
        (ArrayType(DoubleType()), "double precision[]"),
        (ArrayType(DateType()), "jsonb"),
        (ArrayType(ArrayType(TEXT)), "jsonb"),
        (ArrayType(DecimalType(3, 1)), "jsonb"),
        (MapType(TEXT, TEXT), "jsonb"),
        (StructType([StructField("a", TEXT)]), "jsonb"),
    ],
)
def test_the_column_that_postgresql_gets(kind: DataType, made: str) -> None:
    assert column_type(kind) == made
