"""Key and value decoded, rejected and selected by a real Spark: one session, many cases; a registry over HTTP."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from kzconsumer.errors import ConfigError
from kzconsumer.sinks.interface import Batch, RangeData, RecordsRejectedError
from kzconsumer_spark.columns.bad_records import QuarantineDiffers
from kzconsumer_spark.columns.shaping import Shaping
from kzconsumer_spark.columns.where_and_select import SqlFault, apply
from kzconsumer_spark.daemon.sink_options import read_options
from kzconsumer_spark.ranges.batch import SCHEMA, Shaped
from kzconsumer_spark.worker.preview import previewed
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions, RegistryOptions
from kzconsumer_tools.tables.offset_tables import preview_table
from tests.support.extent import only_nightly
from tests.support.placed_records import placed_frame
from tests.support.range_data import range_data, record
from tests.support.schema_registry import SchemaRegistry, schema_registry
from tests.support.served_sink import ServedSink
from tests.support.spark_functions import FUNCTION_DIRECTORY

pytestmark = pytest.mark.timeout(300)

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}
ORDER_2 = ORDER | {"fields": [*ORDER["fields"], {"name": "amount", "type": "double", "default": 1.5}]}


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    return spark


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


class Case:
    """Settings for columns, and batches through them."""

    def __init__(self, session: SparkSession, directory: Path, **columns: Any) -> None:
        self.session = session
        self.directory = directory
        self.quarantine = directory / "quarantine"
        self.shaping = Shaping(session, Columns(quarantine=str(self.quarantine), **columns), SCHEMA)

    def shape(self, *ranges: RangeData) -> Shaped:
        frame, parts = placed_frame(self.session, self.directory / "records", *ranges)
        return self.shaping.shape(frame, parts)

    def rows(self, *ranges: RangeData) -> list[dict[str, Any]]:
        return rows(self.shape(*ranges).frame)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def values(*contents: bytes | None, partition: int = 0, first: int = 0) -> RangeData:
    records = [record(first + n, value=content) for n, content in enumerate(contents)]
    return range_data("t", partition, first, first + len(contents), records)


def framed(number: int, schema: object, value: object) -> bytes:
    out = io.BytesIO()
    out.write(struct.pack(">bi", 0, number))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]
    return out.getvalue()


def plain(schema: object, value: object) -> bytes:
    return framed(0, schema, value)[5:]


def test_default_settings_change_nothing(session: SparkSession, tmp_path: Path) -> None:
    case = Case(session, tmp_path)
    frame, parts = placed_frame(session, tmp_path / "records", values(b"a"))
    assert case.shaping.shape(frame, parts).frame is frame


def test_text_and_json_are_columns_for_select_and_where(session: SparkSession, tmp_path: Path) -> None:
    case = Case(
        session,
        tmp_path,
        key=FieldOptions(format="string"),
        value=FieldOptions(format="json", schema="id BIGINT, at TIMESTAMP, tags ARRAY<STRING>"),
        select="key, value.*, to_date(value.at) AS day, offset -- of the partition",
        where="value.id > 1 -- the others are not ours",
    )
    frame, parts = placed_frame(
        session,
        tmp_path / "records",
        values(
            b'{"id": 1}',
            b'{"id": 2, "at": "2026-01-02T03:04:05Z", "tags": ["a"], "more": {}}',
            None,
            b'{"id": 3}',
        ),
    )
    shaped = case.shaping.shape(frame.selectExpr("*", "partition AS _kz_partition"), parts)
    assert shaped.frame.columns == ["key", "id", "at", "tags", "day", "offset", "_kz_partition"]
    assert [(row["key"], row["id"], row["day"], row["tags"], row["offset"]) for row in rows(shaped.frame)] == [
        ("k1", 2, datetime.date(2026, 1, 2), ["a"], 1),
        ("k3", 3, None, None, 3),
    ]


def test_all_columns_and_more(session: SparkSession, tmp_path: Path) -> None:
    """`*` includes a destination's own columns, which still occur only once."""
    case = Case(session, tmp_path, select="*, offset + 1 AS next, 'first line\nUnion of others' AS text")
    frame, parts = placed_frame(session, tmp_path / "records", values(b"a"))
    shaped = case.shaping.shape(frame.selectExpr("*", "topic AS _kz_topic", "partition AS _kz_partition"), parts)
    assert shaped.frame.columns == [*frame.columns, "next", "text", "_kz_topic", "_kz_partition"]
    assert [(row["next"], row["_kz_topic"], row["_kz_partition"]) for row in rows(shaped.frame)] == [(1, "t", 0)]


def test_the_page_shows_the_columns_of_its_settings(session: SparkSession, tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "spark-columns.md").read_text()
    toml = page.split("```toml\n")[1].split("```")[0]
    table = page.split("--config group.toml\n")[1].split("```")[0]
    columns = read_options(tomllib.loads(toml)["sink"]["options"]).columns
    shaping = Shaping(session, columns, SCHEMA)
    contents = [
        b'{"id": 1, "at": "2026-01-02T03:04:05Z", "amount": 9.5}',
        b'{"id": 2, "at": "2026-01-03", "amount": 0.5}',
    ]
    records = [
        record(n, value=content) for n, content in enumerate([*contents, b'{"id": 3, "amount": -1}', b"no JSON"])
    ]
    frame, _ = placed_frame(session, tmp_path / "records", range_data("orders", 0, 0, 4, records))
    preview = previewed(*shaping.preview(frame, 10))
    assert preview_table(preview, 80).splitlines() == table.splitlines()


BAD_JSON = [b"no JSON", b'{"id": "x"}', b"", b"[1]", b"\xff", b"null"]


def test_invalid_json_is_detected(session: SparkSession, tmp_path: Path) -> None:
    case = Case(
        session, tmp_path, value=FieldOptions(format="json", schema="id INT, a STRUCT<b: INT>", on_error="column")
    )
    found = case.rows(values(*BAD_JSON, None, b'{"a": {"b": 1}}'))
    assert [row["offset"] for row in found if row["_corrupt_value"] is None] == [6, 7]
    assert [row["value"] for row in found] == [None] * 7 + [{"id": None, "a": {"b": 1}}]
    assert [bytes(row["_corrupt_value"]["bytes"]) for row in found[:6]] == BAD_JSON
    assert found[4]["_corrupt_value"]["reason"] == "is not UTF-8"


def test_a_bad_record_is_rejected_with_its_position_but_not_its_content(session: SparkSession, tmp_path: Path) -> None:
    case = Case(session, tmp_path, value=FieldOptions(format="json", schema="id INT"), where="offset < 2")
    with pytest.raises(RecordsRejectedError) as caught:
        case.shape(values(b'{"id": 1}', b"secret", b"secret"), values(b"{}", partition=1))
    assert [(each.topic, each.partition, each.offset, each.error_class) for each in caught.value.records] == [
        ("t", 0, 1, "undecodable"),
        ("t", 0, 2, "undecodable"),
    ]
    assert {each.reason for each in caught.value.records} == {"value is not one JSON object alone"}
    assert len(case.rows(values(b"{}", first=3), values(b"{}", partition=1))) == 1


def test_bad_records_are_quarantined_by_range_and_the_first_writer_wins(session: SparkSession, tmp_path: Path) -> None:
    case = Case(
        session,
        tmp_path,
        key=FieldOptions(format="string", on_error="quarantine"),
        value=FieldOptions(format="json", schema="id INT", on_error="quarantine"),
        select="value.id",
    )
    bad_key = record(11, key=b"\xfe", value=b'{"id": 11}', headers=[{"key": "h", "value": b"1"}])
    batch = [
        values(b'{"id": 0}', b"bad", b'{"id": 2}', b"worse"),
        range_data("t", 1, 10, 12, [record(10, value=b'{"id": 10}'), bad_key]),
        values(b'{"id": 20}', partition=2),
        range_data("t", 3, 0, 5, []),
    ]
    shaped = case.shape(*batch)
    assert sorted(row["id"] for row in rows(shaped.frame)) == [0, 2, 10, 20]
    assert {str(part): count for part, count in shaped.quarantined.items()} == {"t-0[0..4)": 2, "t-1[10..12)": 1}
    files = sorted(each.name for each in case.quarantine.glob("*.parquet"))
    assert files == [
        "t+0+2a.0+00000000000000000000+00000000000000000004.parquet",
        "t+1+2a.0+00000000000000000010+00000000000000000012.parquet",
    ]
    first, second = (pq.read_table(case.quarantine / name).to_pylist() for name in files)
    assert [(row["offset"], row["value"], row["key"]) for row in first] == [(1, b"bad", b"k1"), (3, b"worse", b"k3")]
    assert second[0]["key"] == b"\xfe"
    assert second[0]["headers"] == [{"key": "h", "value": b"1"}]
    assert second[0]["reason"] == "key is not UTF-8"
    assert {row["topic"] for row in first + second} == {"t"}

    # A replay finds them there; with other settings the same range would differ, which is reported.
    inode = (case.quarantine / files[0]).stat().st_ino
    assert case.shape(*batch).quarantined == shaped.quarantined
    assert (case.quarantine / files[0]).stat().st_ino == inode
    assert session.read.parquet(str(case.quarantine)).count() == 3
    lenient = Case(session, tmp_path, value=FieldOptions(format="string", on_error="quarantine"))
    with pytest.raises(QuarantineDiffers, match=r"^t-0\[0\.\.4\): 2 records were put into .* 0 are bad now"):
        lenient.shape(*batch)
    case.shaping.close()
    lenient.shaping.close()
    assert not list((case.quarantine / "_attempts").iterdir())


def test_avro_of_a_file(session: SparkSession, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "All",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
            {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "Kind"}}},
            {"name": "number", "type": ["int", "long"]},
            {"name": "nothing", "type": "null"},
        ],
    }
    (tmp_path / "all.avsc").write_text(json.dumps(schema))
    avro = FieldOptions(format="avro", schema=f"file:{tmp_path}/all.avsc", on_error="column")
    case = Case(session, tmp_path, value=avro)
    good = {
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "local": datetime.datetime(1969, 1, 2, 3, 4, 5, 6),
        "day": datetime.date(2026, 1, 2),
        "price": decimal.Decimal("-12.34"),
        "kind": "B",
        "hash": b"\x00\xff",
        "tags": {"x": ["A", "B"]},
        "number": 2**40,
        "nothing": None,
    }
    data = plain(schema, good)
    found = case.rows(values(data, None, data[:3], data + b"\x00", b"\xff" * 4))
    assert found[0]["value"] == good | {"at": found[0]["value"]["at"], "hash": bytearray(b"\x00\xff")}
    assert found[0]["value"]["at"].timestamp() == good["at"].timestamp()  # type: ignore[attr-defined]
    assert [row["value"] is None for row in found] == [False, True, True, True, True]
    assert [row["_corrupt_value"] and row["_corrupt_value"]["reason"] for row in found[:4]] == [
        None,
        None,
        "ends too early for its schema",
        "has more bytes than its schema says",
    ]


def test_a_schema_changes_within_a_topic_and_each_id_is_requested_once(
    session: SparkSession, registry: SchemaRegistry, tmp_path: Path
) -> None:
    registry.register("evolving-value", 101, ORDER)
    case = Case(
        session,
        tmp_path,
        value=FieldOptions(format="confluent-avro", on_error="quarantine"),
        registry=RegistryOptions(url=registry.url),
        select="value.*, offset",
    )
    nothing = case.shape(values(None))
    assert rows(nothing.frame) == [{"offset": 0}]
    old = framed(101, ORDER, {"id": 1, "note": None})
    assert case.rows(values(old, None)) == [
        {"id": 1, "note": None, "offset": 0},
        {"id": None, "note": None, "offset": 1},
    ]
    registry.register("evolving-value", 102, ORDER_2)
    new = framed(102, ORDER_2, {"id": 2, "note": "n", "amount": 2.5})
    found = case.rows(values(old, new, old), values(new, partition=1))
    assert sorted((row["id"], row["note"], row["amount"]) for row in found if row["id"] == 2) == [(2, "n", 2.5)] * 2
    assert [row["amount"] for row in found if row["id"] == 1] == [None, None]
    asked = [path for path in registry.asked if path in ("/schemas/ids/101", "/schemas/ids/102")]
    assert asked == ["/schemas/ids/101", "/schemas/ids/102"]

    # Bad: no frame, an id that the registry does not know, bytes that do not match the schema.
    shaped = case.shape(values(new, b"\x01abcdef", b"\x00\x00", framed(999, ORDER, {"id": 1}), old[:-1]))
    assert len(rows(shaped.frame)) == 1
    (file,) = case.quarantine.glob("*.parquet")
    assert [row["reason"] for row in pq.read_table(file).to_pylist()] == [
        *["value does not begin with Confluent's frame (a zero byte and a schema id)"] * 2,
        "value has schema id 999, which the registry does not know",
        "value ends too early for its schema",
    ]
    case.shaping.close()


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Line { string item = 1; uint64 count = 2; }
enum State { NEW = 0; PAID = 1; }
message Order {
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  repeated Line lines = 4;
  map<int32, bytes> parts = 5;
  google.protobuf.Timestamp at = 6;
  oneof how { bool cash = 7; Line card = 8; }
}
message Nested { Nested inner = 1; }
"""


def test_protobuf(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop.proto").write_text(PROTO)
    file = f"file:{tmp_path}/shop.proto"
    case = Case(
        session,
        tmp_path,
        value=FieldOptions(format="protobuf", schema=file, message="shop.Order", on_error="column"),
    )
    # As protoc's own encoding: id 7, state PAID, two lines, a part, a time of 1.5 s, cash false.
    data = bytes.fromhex("0807 1801 22050a01611003 22030a0162 2a050801120178 320808011080cab5ee01 3800")
    found = case.rows(values(data, b"", None, b"\xff\xff"))
    value = found[0]["value"]
    assert value["at"].timestamp() == 1.5
    assert {name: value[name] for name in value if name != "at"} == {
        "id": 7,
        "note": None,
        "state": "PAID",
        "lines": [{"item": "a", "count": 3}, {"item": "b", "count": 0}],
        "parts": {"1": bytearray(b"x")},
        "cash": False,
        "card": None,
    }
    assert (found[1]["value"]["id"], found[1]["value"]["lines"], found[1]["value"]["cash"]) == (0, [], None)
    assert [row["_corrupt_value"] is not None for row in found] == [False, False, False, True]
    with pytest.raises(ConfigError, match=r"shop.Nested holds itself"):
        Case(session, tmp_path, value=FieldOptions(format="protobuf", schema=file, message="shop.Nested"))
    with pytest.raises(ConfigError, match=r"there is no message type Order; its full name has the package"):
        Case(session, tmp_path, value=FieldOptions(format="protobuf", schema=file, message="Order"))


JSON = FieldOptions(format="json", schema="id BIGINT")


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"where": "value.idd > 1"}, r"where: .*idd"),
        ({"where": "value.id >"}, r"where: \[PARSE_SYNTAX_ERROR\]"),
        ({"where": "value.id"}, r"where: .*BOOLEAN"),
        ({"select": "value.*, ofset"}, r"select: .*`ofset`.*Did you mean.*`offset`"),
        ({"select": "value.* FROM elsewhere"}, r"select: \[PARSE_SYNTAX_ERROR\]"),
        ({"select": "count(*)"}, r"select: makes each row of one record, which aggregate does not"),
        ({"select": "(SELECT max(offset) FROM records) AS most"}, r"select: .*which aggregate does not"),
        ({"select": "row_number() OVER (ORDER BY offset)"}, r"select: .*which window does not"),
        ({"select": "*, offset AS _kz_row"}, r"select: the column _kz_row needs another name: those with _kz_ are the"),
        ({"select": "offset AS a, partition AS A"}, r'select: the columns "a" and "A" are one to Spark'),
        ({"select": "offset AS _KZ_Row"}, r"select: the column _KZ_Row needs another name"),
        ({"value": FieldOptions(format="json", schema="id BIGINTT")}, r"schema: .*BIGINTT"),
        ({"value": FieldOptions(format="json", schema="file:/nowhere/ddl")}, r"schema: .*No such file"),
    ],
)
def test_faults_of_the_settings_are_one_line_before_any_batch(
    session: SparkSession, tmp_path: Path, columns: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^\[sink.options\] {fault}") as caught:
        Case(session, tmp_path, **({"value": JSON} | columns))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("select", ["*, key AS _kz_topic", "key AS _kz_topic", "*, key AS _kz_row"])
def test_a_column_named_like_one_of_the_sink_is_refused(session: SparkSession, tmp_path: Path, select: str) -> None:
    """Only with the first records if a registry determines the columns."""
    frame, _ = placed_frame(session, tmp_path / "records", values(b"a"))
    columns = read_options({"destination": "parquet", "path": "/d", "select": select}).columns
    with pytest.raises(SqlFault, match=r"select: the column _kz_(topic|row) needs another name"):
        apply(frame.selectExpr("*", "topic AS _kz_topic", "partition AS _kz_partition"), columns)


def test_sql_is_parsed_early_even_when_no_type_is_known(
    session: SparkSession, registry: SchemaRegistry, tmp_path: Path
) -> None:
    options = {"value": FieldOptions(format="confluent-avro"), "registry": RegistryOptions(url=registry.url)}
    for bad in ({"select": "value.id FROM elsewhere"}, {"where": "1 +"}):
        with pytest.raises(ConfigError, match="PARSE_SYNTAX_ERROR"):
            Case(session, tmp_path, **options, **bad)


@only_nightly
async def test_the_worker_shapes_what_a_function_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FUNCTION_DIRECTORY, str(tmp_path))
    options = {
        "destination": "function",
        "function": "tests.support.spark_functions:obey",
        "quarantine": str(tmp_path / "bad"),
        "value": {"format": "json", "schema": "id BIGINT", "on_error": "quarantine"},
        "select": "value.id, partition, offset",
        "where": "value.id > 1",
        "attempts": 1,
    }
    async with ServedSink(options) as sink:
        await sink.write(Batch((values(b'{"id": 1}', b"bad"),)))
        assert not (tmp_path / "calls").exists(), "called with zero rows"
        await sink.write(Batch((values(b'{"id": 1}', b"bad", b'{"id": 2}', first=2),)))
        (call,) = map(json.loads, (tmp_path / "calls").read_text().splitlines())
        seen = json.loads((tmp_path / f"seen-{call['batch_id']}").read_text())
        assert [(row["id"], row["offset"]) for row in seen["rows"]] == [(2, 4)]
    assert len(list((tmp_path / "bad").glob("*.parquet"))) == 2
