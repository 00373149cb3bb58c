"""JSON into columns: each value comes out as it went in, or is bad, and the reason names the field."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kzconsumer.errors import ConfigError
from kzconsumer_spark.columns.avro_and_protobuf import Unsupported
from kzconsumer_spark.columns.ddl_types import READ, require_types
from kzconsumer_spark.columns.json_reading import require_readable
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.ranges.batch import SCHEMA
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions
from tests.support.extent import only_nightly
from tests.support.placed_records import placed_frame
from tests.support.range_data import range_data, record

pytestmark = pytest.mark.timeout(300)

DDL = (
    "i INT, s STRING, s1 STRING, d DOUBLE, f FLOAT, t TIMESTAMP, n TIMESTAMP_NTZ, day DATE, c DECIMAL(10,2),"
    " `all` DECIMAL(38,10), b BINARY, a ARRAY<STRUCT<s: STRING, i: INT>>, m MAP<STRING, STRING>, bo BOOLEAN,"
    " u STRUCT<w: STRUCT<x: INT, y: STRING>, ts: ARRAY<TIMESTAMP>, ds: ARRAY<DOUBLE>>"
)

#: Text, and the value as `to_json` has it; None where that is the text itself.
GOOD: dict[str, str | None] = {
    '{"i":1,"s":"a"}': None,
    '{"i":1} \n\t ': '{"i":1}',
    "{}": None,
    **dict.fromkeys(("{ \n}", "\t{\r\n\t}\n"), "{}"),
    **dict.fromkeys(('{\n "i": 1\n}\n', '\r\n {"i":1 }', '{"i":1,"z":{"y":[{},"}{"]}}\t'), '{"i":1}'),
    **dict.fromkeys(('{"s" : 1.50}', "{'s':1.50}", '{"\\u0073":1.50}', '{"z":{"s":"1.5"},"s":1.50}'), '{"s":"1.50"}'),
    "{'s1':1.50}": '{"s1":"1.50"}',
    "{'s1':'1 of 2','s':1.50}": '{"s":"1.50","s1":"1 of 2"}',
    '{"s":"1.5","d":1.5}': None,
    '{"s":"1.5","a":[{"s":1.50},{"s":"2.5"}]}': '{"s":"1.5","a":[{"s":"1.50"},{"s":"2.5"}]}',
    '{"s":12345678901234567.89}': '{"s":"12345678901234567.89"}',
    '{"s":1E400}': '{"s":"1E400"}',
    '{"s":-0}': '{"s":"-0"}',
    '{"s":0}': '{"s":"0"}',
    '{"s":"0"}': None,
    '{"s":"12.50"}': None,
    '{"s":1.50}': '{"s":"1.50"}',
    '{"s":"\\"NaN\\""}': None,
    '{"s":true}': '{"s":"true"}',
    '{"s":{"a": 1.10, "b":"\\u00e9 1.10", "c":[1e2]}}': '{"s":"{\\"a\\":1.10,\\"b\\":\\"é 1.10\\",\\"c\\":[1e2]}"}',
    '{"s":[1.10, 2]}': '{"s":"[1.10,2]"}',
    '{"s":""}': None,
    '{"s":" lead\\u0000"}': None,
    '{"d":NaN}': '{"d":"NaN"}',
    '{"d":"NaN"}': None,
    '{"d":-Infinity}': '{"d":"-Infinity"}',
    '{"d":"Infinity"}': None,
    '{"d":-0.0}': None,
    '{"d":1.7976931348623157E308}': None,
    '{"t":"2026-01-01T00:00:00.123Z"}': None,
    '{"t":"2026-03-08 02:30:00+02:00"}': '{"t":"2026-03-08T00:30:00.000Z"}',
    '{"t":"2026-01-01"}': '{"t":"2026-01-01T00:00:00.000Z"}',
    '{"t":"2026-01-01T12:00:00"}': '{"t":"2026-01-01T12:00:00.000Z"}',
    '{"t":"0001-01-01T00:00:00Z"}': '{"t":"0001-01-01T00:00:00.000Z"}',
    '{"t":"9999-12-31T23:59:59.999Z"}': None,
    '{"t":1700000000}': '{"t":"2023-11-14T22:13:20.000Z"}',
    '{"t":-1}': '{"t":"1969-12-31T23:59:59.000Z"}',
    '{"n":"2026-03-08T02:30:00.000"}': None,
    '{"day":"2026-01-01"}': None,
    '{"day":"0001-01-01"}': None,
    '{"c":1.5}': '{"c":1.50}',
    '{"c":1e2}': '{"c":100.00}',
    '{"c":"1.5","z":"1,5"}': '{"c":1.50}',
    '{"c":-99999999.99}': None,
    '{"all":1.23}': '{"all":1.2300000000}',
    '{"all":1234567890123456789012345678.0123456789}': None,
    '{"b":"YWJj"}': None,
    '{"a":[{"s":1.50,"i":7},{"s":"1.50"},null]}': '{"a":[{"s":"1.50","i":7},{"s":"1.50"},null]}',
    '{"m":{"k":1.50,"":"x"}}': '{"m":{"k":"1.50","":"x"}}',
    '{"u":{"w":{"x":5,"y":1.0},"ts":["2026-01-01",1],"ds":[1.5,"NaN"]}}': (
        '{"u":{"w":{"x":5,"y":"1.0"},"ts":["2026-01-01T00:00:00.000Z","1970-01-01T00:00:01.000Z"],"ds":[1.5,"NaN"]}}'
    ),
    '{"i":1,"i":2}': '{"i":2}',  # as all parsers do that do not refuse it
}

ALONE = "is not one JSON object alone"
BAD: dict[str, str] = {
    **dict.fromkeys(
        ('{"i":1} x', '{"i":1}{"i":2}', '{"i":1},{"i":2}', '{"i":1}],[', '{"i":1}]}', "{'i':1} {", '{"i":1', "", " "),
        ALONE,
    ),
    **dict.fromkeys(('[{"i":1},{"i":2}]', "1", '"x"', '{"i":1}\n{"i":2}', '{"i":1}],"w":[{"i":2}'), ALONE),
    **dict.fromkeys(('{"i":1}}', '{"i":1},', '{"i":1}{}', '{"i":1},{}', '{"u":{}', '{"s":"}', '{"i":1}"}'), ALONE),
    **dict.fromkeys(("}", "{{}", '{"i":1,}', '{"s":"\\}', '{"s":"a\\"}', '{"i":1,"s}', '{"i"}', "null"), ALONE),
    '{"i":1,"z":1}{}': ALONE,
    '{"i":1.5}': "has a field i that is no INT",
    '{"i":12345678901}': "has a field i that is no INT",
    '{"i":"5"}': "has a field i that is no INT",
    '{"bo":"true"}': "has a field bo that is no BOOLEAN",
    '{"d":1E400}': "has a field d that is no DOUBLE",
    '{"f":-1e39}': "has a field f that is no FLOAT",
    '{"t":"12:00"}': "has a field t that is no TIMESTAMP",
    '{"t":"T12:00Z"}': "has a field t that is no TIMESTAMP",
    '{"t":"2026"}': "has a field t that is no TIMESTAMP",
    '{"t":"1700000000"}': "has a field t that is no TIMESTAMP",
    "{'t':'1700000000'}": "has a field t that is no TIMESTAMP",
    '{"t":"\\u0031700000000"}': "has a field t that is no TIMESTAMP",
    '{"t":1700000000000}': "has a field t that is no TIMESTAMP",
    '{"t":170000000000000000}': "has a field t that is no TIMESTAMP",
    '{"t":1.5}': "has a field t that is no TIMESTAMP",
    '{"t":"0001-01-01T00:00:00+05:00"}': "has a field t that is no TIMESTAMP",
    '{"t":"9999-12-31T23:00:00-05:00"}': "has a field t that is no TIMESTAMP",
    '{"t":"+10000-01-01T00:00:00Z"}': "has a field t that is no TIMESTAMP",
    '{"t":"0000-06-01T00:00:00Z"}': "has a field t that is no TIMESTAMP",
    '{"t":"2026-02-30T00:00:00Z"}': "has a field t that is no TIMESTAMP",
    '{"t":"2026-01-01T00:00:00Zx"}': "has a field t that is no TIMESTAMP",
    '{"n":"12:00"}': "has a field n that is no TIMESTAMP_NTZ",
    '{"n":"2026-01-01T00:00:00Z"}': "has a field n that is no TIMESTAMP_NTZ",
    '{"n":"+10000-01-01T00:00:00"}': "has a field n that is no TIMESTAMP_NTZ",
    '{"day":"12"}': "has a field day that is no DATE",
    '{"day":"2026-01-01Tnoon"}': "has a field day that is no DATE",
    '{"day":"2026-01-01T12:00:00Z"}': "has a field day that is no DATE",
    '{"day":5}': "has a field day that is no DATE",
    '{"c":1.005}': "has a field c that is no DECIMAL(10,2)",
    '{"c":"1.005"}': "has a field c that is no DECIMAL(10,2)",
    '{"c":"12,50"}': "has a field c that is no DECIMAL(10,2)",
    '{"c":"12\\u002c50","z":1}': "has a field c that is no DECIMAL(10,2)",
    '{"c":123456789}': "has a field c that is no DECIMAL(10,2)",
    '{"c":99999999.999}': "has a field c that is no DECIMAL(10,2)",
    '{"all":0.00000000001}': "has a field all that is no DECIMAL(38,10)",
    '{"b":"!!"}': "has a field b that is no BINARY",
    '{"a":[{"s":1.50,"i":"x"}]}': "has a value of another type in a",
    '{"a":{}}': "has a field a that is no ARRAY",
    '{"u":{"w":{"x":"q"}}}': "has a field u.w.x that is no INT",
    '{"u":3}': "has a field u that is no STRUCT",
    '{"u":{"ts":["12:00"]}}': "has a field u.ts that is no ARRAY",
    '{"u":{"ds":[1E400]}}': "has a field u.ds that is no ARRAY",
}


def _read(session: SparkSession, directory: Path, texts: list[str], ddl: str) -> list[Any]:
    columns = Columns(value=FieldOptions(format="json", schema=ddl, on_error="column"))
    records = [record(n, value=text.encode()) for n, text in enumerate(texts)]
    frame, parts = placed_frame(session, directory / "records", range_data("t", 0, 0, len(texts), records))
    shaped = Shaping(session, columns, SCHEMA).shape(frame, parts).frame
    found = shaped.select("offset", F.to_json("value").alias("json"), "_corrupt_value.reason").orderBy("offset")
    return found.collect()


@pytest.mark.parametrize("others", ["", pytest.param(", exact_only STRING", marks=only_nightly)])  # text like the rest
def test_a_value_is_exact_or_bad(spark: SparkSession, tmp_path: Path, others: str) -> None:
    found = _read(spark, tmp_path, [*GOOD, *BAD], DDL + others)
    read = {text: row.json for text, row in zip(GOOD, found, strict=False)}
    assert read == {text: wanted or text for text, wanted in GOOD.items()}
    assert {text: row.reason for text, row in zip(BAD, found[len(GOOD) :], strict=True)} == BAD
    assert all(json.loads(text) is not None for text in GOOD if not re.search("NaN|Inf|'", text))


def test_a_decimal_is_the_number_that_is_written_or_bad(spark: SparkSession, tmp_path: Path) -> None:
    """With signs, exponents, commas, escapes, and digits as many as Spark rounds without a trace; in quotes or not."""
    chance = random.Random(1)
    kinds = [(10, 2), (37, 0), (36, 2), (38, 4), (20, 20)]
    parts = ["", "0", "5", "12", "1250", "99999999", "04", "0" * 30, "0" * 18 + "1", "9" * 29]
    parts += [",", "5,", ",50", "1,250"]
    texts: list[tuple[int, str]] = []
    for _ in range(1500):
        text = chance.choice(["", "", "-", "+"]) + chance.choice(parts)
        text += chance.choice(["", ".", "."]) + chance.choice(parts) + chance.choice(["", "0", "000"])
        text += chance.choice(["", "", "e2", "E-1", "e-30", "E-40", "\n"])
        texts.append((chance.randrange(len(kinds)), text))

    def document(number: int, text: str) -> str:
        if chance.random() < 0.3 and text and "\n" not in text:
            return f'{{"d{number}":{text}}}'
        written = json.dumps(text)
        if chance.random() < 0.2 and text:
            which = chance.choice(text)
            written = written.replace(which, f"\\u{ord(which):04x}") if which != "\n" else written
        return f'{{"d{number}" : {written}}}'

    ddl = ", ".join(f"d{number} DECIMAL({p},{s})" for number, (p, s) in enumerate(kinds))
    found = _read(spark, tmp_path, [document(*each) for each in texts], ddl)
    good = 0
    with localcontext(prec=200):
        for (number, text), row in zip(texts, found, strict=True):
            if row.reason is None:
                value = json.loads(row.json, parse_float=Decimal, parse_int=Decimal).get(f"d{number}")
                assert (text == "" and value is None) or value == Decimal(text), (kinds[number], text)
                good += 1
                continue
            precision, scale = kinds[number]
            if re.fullmatch(r"-?(0|[1-9][0-9]*)([.][0-9]+)?", text):
                exact = Decimal(text)
                held = exact.quantize(Decimal(1).scaleb(-scale)) == exact
                assert not held or abs(exact) >= Decimal(10) ** (precision - scale), (kinds[number], text)
    assert 100 < good < 1400


def test_a_schema_without_text_needs_no_second_look(spark: SparkSession, tmp_path: Path) -> None:
    found = _read(spark, tmp_path, ['{"i":1,"day":"2026-01-01"}', '{"i":1} x', '{"day":"12"}'], "i INT, day DATE")
    assert [(row.json, row.reason) for row in found] == [
        ('{"i":1,"day":"2026-01-01"}', None),
        (None, ALONE),
        (None, "has a field day that is no DATE"),
    ]


def test_a_time_without_zone_is_of_the_session_on_every_day(spark: SparkSession, tmp_path: Path) -> None:
    """In the hour that is left out in spring it is an hour later; of two hours in autumn it is the first."""
    texts = ["2026-03-08T02:30:00", "2026-11-01T01:30:00", "2026-07-01T00:00:00"]
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        columns = Columns(value=FieldOptions(format="json", schema="t TIMESTAMP"))
        records = [record(n, value=json.dumps({"t": text}).encode()) for n, text in enumerate(texts)]
        frame, parts = placed_frame(spark, tmp_path / "records", range_data("t", 0, 0, 3, records))
        shaped = Shaping(spark, columns, SCHEMA).shape(frame, parts).frame
        found = [row.at for row in shaped.select(F.unix_seconds("value.t").alias("at")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == [1772955000, 1793511000, 1782878400]


@pytest.mark.parametrize(
    ("ddl", "fault"),
    [
        ("a INTERVAL DAY", "column a is INTERVAL DAY, which JSON is not read as; use STRING"),
        ("a STRUCT<b: ARRAY<CHAR(3)>>", "column a.b is CHAR(3), which JSON is not read as; use STRING"),
        ("a STRUCT<id: INT, ID: INT>", "columns a.id and a.ID are one to Spark, which ignores case"),
    ],
)
def test_a_schema_that_json_is_not_read_as_is_a_fault_of_the_settings(
    spark: SparkSession, ddl: str, fault: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Shaping(spark, Columns(value=FieldOptions(format="json", schema=ddl)), SCHEMA)
    assert str(caught.value) == f"[sink.options] schema: {fault}"


@pytest.mark.parametrize("around", ["{}", "a0 ARRAY<STRUCT<of: MAP<STRING, STRUCT<{}>>>>"])
def test_a_schema_is_read_without_spark_as_spark_reads_it(spark: SparkSession, around: str) -> None:
    """The same column and type, or none, for every type that this Spark knows."""
    sizes = {"char": "(3)", "varchar": "( 4 )", "decimal": "(10, 2)", "dec": "(3)", "numeric": ""}
    words = "interval year to month|interval day to second|interval|void|time|time(3)|string collate utf8_lcase"
    names = [*(f"{name}{size}" for name, size in sizes.items()), *words.split("|"), *sorted(READ)]
    texts = [f"a {name}" for name in names] + [
        "a INT NOT NULL COMMENT 'was VARCHAR(5), `b` INT', b STRING -- CHAR(3)\n, /* c VOID, */ d DATE",
        "`a b` INT, `A B` STRING",
        "a INT, b STRUCT<c: INT, d STRUCT<>, C: MAP<STRING, CHAR(2)>>",
        "a STRUCT<x: INT>, b STRUCT<X: INT>",
        "`a``b` TIME, type INT, map MAP<STRING, ARRAY<STRUCT<not: INT>>>",
    ]
    understood = 0
    for text in texts:
        whole = around.format(text)
        try:
            parsed = StructType.fromDDL(whole)
        except PySparkException:
            continue
        understood += 1
        assert _refused(partial(require_types, whole)) == _refused(partial(require_readable, parsed)), whole
    assert understood >= len(texts) - 5
    assert _refused(partial(require_types, "a VARCHAR(5) ?")) is None, "Spark's own parser says what is wrong"


def _refused(check: Callable[[], None]) -> str | None:
    try:
        check()
    except Unsupported as error:
        return re.sub(r"( is \w+)[^,]*", r"\1", str(error))  # Spark adds sizes and units that were not given
    return None
