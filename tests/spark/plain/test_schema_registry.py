"""What a schema registry is asked for, and what becomes of its answers: nothing twice, and a line for each fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kzconsumer_spark.columns import schema_files
from kzconsumer_spark.columns import schema_registry as client_module
from kzconsumer_spark.columns.avro_and_protobuf import Unsupported
from kzconsumer_spark.columns.decoding import Decoding
from kzconsumer_spark.columns.schema_registry import NotRegistered, Registry, RegistryError
from kzconsumer_spark.worker_protocol.column_options import Columns, FieldOptions, RegistryOptions
from tests.support.schema_registry import SchemaRegistry, schema_registry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[SchemaRegistry]:
    monkeypatch.setattr(client_module, "_BACKOFF", 0.0)
    with schema_registry() as found:
        yield found


def record(*names: str, name: str = "R") -> dict[str, Any]:
    fields = [{"name": each, "type": ["null", "long"], "default": None} for each in names]
    return {"type": "record", "name": name, "fields": fields}


def fields(*names: str) -> pa.DataType:
    return pa.struct([(each, pa.int64()) for each in names])


def test_a_schema_is_asked_for_once_and_the_newest_version_each_time(registry: SchemaRegistry) -> None:
    client = Registry(RegistryOptions(url=f"{registry.url}/"))
    registry.register("a/b", 1, record("x"))
    for _ in range(2):
        assert client.by_id(1).type == fields("x")
    assert client.latest("a/b").type == fields("x")
    registry.register("a/b", 2, record("x", "y"))
    assert client.latest("a/b").type == fields("x", "y")
    assert registry.asked == ["/schemas/ids/1", *["/subjects/a%2Fb/versions/latest"] * 2]
    for _ in range(2):
        with pytest.raises(NotRegistered, match=rf"^schema registry {registry.url}: schema id 9 is not registered$"):
            client.by_id(9)
    with pytest.raises(NotRegistered, match=r"subject none is not registered$"):
        client.latest("none")
    registry.register("late", 9, record("z"))
    assert client.by_id(9).type == fields("z"), "it may be registered later"


def test_schemas_that_refer_to_others_are_read_with_them_each_once(registry: SchemaRegistry) -> None:
    """Each after those that it refers to itself, in the version that is named."""
    registry.register("inner", 1, record("n", name="Inner"))
    registry.register("inner", 2, record("n", "later", name="Inner"))
    refers = [{"name": "Inner", "subject": "inner", "version": 1}]
    middle = {"type": "record", "name": "Middle", "fields": [{"name": "i", "type": "Inner"}]}
    registry.register("middle", 3, middle, references=refers)
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "m", "type": "Middle"}, {"name": "i", "type": "Inner"}],
    }
    both = [{"name": "Middle", "subject": "middle", "version": 1}, *refers]
    registry.register("outer", 4, outer, references=both)
    registry.deleted.add("inner")
    found = Registry(RegistryOptions(url=registry.url)).by_id(4)
    inner = fields("n")
    assert found.type == pa.struct([("m", pa.struct([("i", inner)])), ("i", inner)])
    there = [f"/subjects/{each}/versions/1?deleted=true" for each in ("middle", "inner")]
    assert registry.asked == ["/schemas/ids/4", *there]


def test_records_whose_schema_refers_to_one_that_is_gone_are_not_bad(registry: SchemaRegistry) -> None:
    """The id is registered: that another one is not is a fault of the registry."""
    registry.register("outer", 4, record("x"), references=[{"name": "Inner", "subject": "inner", "version": 1}])
    said = rf"^schema registry {registry.url}: subject inner version 1 is not registered, to which schema id 4 refers$"
    frame: Any = Heads(head(4))
    with pytest.raises(RegistryError, match=said):
        decoding(registry).decoders(frame)


@pytest.mark.parametrize(
    "body",
    [b"404 page not found\n", b"", b"[]", b'{"error_code": 404, "message": "HTTP 404 Not Found"}', b'{"detail": "no"}'],
)
def test_no_record_is_bad_because_a_proxy_does_not_reach_the_registry(registry: SchemaRegistry, body: bytes) -> None:
    """Nor because a prefix is missing in the URL."""
    registry.not_ours = body
    frame: Any = Heads(head(4))
    said = f"schema registry {registry.url}: schema id 4: HTTP status 404, not of a registry: check `url`"
    with pytest.raises(RegistryError) as raised:
        decoding(registry).decoders(frame)
    assert str(raised.value) == said


@pytest.mark.timeout(20)
@pytest.mark.parametrize("failures", [0, 3, 4])
def test_a_registry_that_fails_is_asked_four_times(registry: SchemaRegistry, failures: int) -> None:
    registry.register("a", 1, record("x"))
    registry.fail_next = failures
    client = Registry(RegistryOptions(url=registry.url))
    if failures < 4:
        assert client.by_id(1).type == fields("x")
    else:
        with pytest.raises(RegistryError, match=r"schema id 1: HTTP status 503$"):
            client.by_id(1)
    assert len(registry.asked) == min(failures + 1, 4)


def test_who_asks_is_said_with_the_password_of_the_file(registry: SchemaRegistry, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    registry.register("a", 1, record("x"))
    Registry(RegistryOptions(url=registry.url, user="u", password_file=str(password))).by_id(1)
    Registry(RegistryOptions(url=registry.url)).by_id(1)
    assert registry.authorizations == ["Basic dTpzM2NyZXQ=", None]
    missing = RegistryOptions(url=registry.url, user="u", password_file=str(tmp_path / "none"))
    with pytest.raises(RegistryError, match=rf"^schema registry {registry.url}: .*No such file"):
        Registry(missing)
    with pytest.raises(RegistryError, match=r"^schema registry https://localhost:1: .*No such file"):
        Registry(RegistryOptions(url="https://localhost:1", ca_file=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"schema": "message M {}", "schemaType": "PROTOBUF"}, "schema id 1 is PROTOBUF, not Avro"),
        ({"schema": "{"}, "schema id 1: Expecting property name"),
        ({"schema": '"Nobody"'}, "schema id 1: not an Avro schema: "),
        ({"other": 1}, "schema id 1: 'schema'"),
        ({"schema": None}, "schema id 1: the JSON object must be str"),
        ({"schema": '"int"', "references": [{"name": "X"}]}, "schema id 1: 'subject'"),
        ([1], "schema id 1: the answer is not JSON"),
    ],
)
def test_an_answer_that_is_no_schema_is_a_line(registry: SchemaRegistry, answer: Any, said: str) -> None:
    registry.by_id[1] = answer
    with pytest.raises(RegistryError) as raised:
        Registry(RegistryOptions(url=registry.url)).by_id(1)
    assert str(raised.value).startswith(f"schema registry {registry.url}: {said}")
    assert not isinstance(raised.value, NotRegistered)


def test_no_answer_is_a_line_without_the_library_s_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_BACKOFF", 0.0)
    with schema_registry() as gone:
        pass
    with pytest.raises(RegistryError) as raised:
        Registry(RegistryOptions(url=gone.url)).by_id(1)
    begin = f"schema registry {gone.url}: schema id 1: no answer in 4 attempts: "
    assert str(raised.value).startswith(begin)
    assert "urllib3" not in str(raised.value)
    assert "refused" in str(raised.value).removeprefix(begin)


class Heads:
    """A frame that is asked for the first five bytes of its values."""

    def __init__(self, *heads: bytes) -> None:
        self._heads = heads
        self._most = 0

    def selectExpr(self, wanted: str) -> Heads:
        assert wanted == "substring(value, 1, 5) AS head"
        return self

    def where(self, condition: str) -> Heads:
        assert condition == "length(head) = 5 AND startswith(head, X'00')"
        return Heads(*(each for each in self._heads if len(each) == 5 and each[:1] == b"\0"))

    def distinct(self) -> Heads:
        return Heads(*dict.fromkeys(self._heads))

    def limit(self, most: int) -> Heads:
        return Heads(*self._heads[:most])

    def collect(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(head=each) for each in self._heads]


def head(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def decoding(registry: SchemaRegistry, schema: str | None = None) -> Decoding:
    value = FieldOptions(format="confluent-avro", schema=schema)
    return Decoding(Columns(value=value, registry=RegistryOptions(url=registry.url)))


def test_the_columns_are_those_of_all_schemas_that_were_seen(registry: SchemaRegistry) -> None:
    """An id that is not registered is asked for again with the next batch that has it, others are not."""
    registry.register("a", 1, record("x"))
    registry.register("a", 2, record("y"))
    found = decoding(registry)
    assert found.known_before is False
    assert found.decoders(None)["value"].type == pa.struct([])

    def type_of(*heads: bytes) -> pa.DataType:
        return found.decoders(Heads(*heads))["value"].type  # type: ignore[arg-type]

    assert type_of(head(2), head(2), b"\1\0\0\0\1", b"\0") == fields("y")
    assert type_of(head(1)) == fields("x", "y")
    registry.asked.clear()
    assert type_of(head(7), head(1)) == fields("x", "y")
    assert registry.asked == ["/schemas/ids/7"]
    assert type_of() == fields("x", "y")
    registry.register("a", 7, record("z"))
    assert type_of(head(7)) == fields("x", "y", "z")
    assert registry.asked == ["/schemas/ids/7"] * 2


def test_the_newest_schema_of_the_subject_is_read_again_with_each_new_one(registry: SchemaRegistry) -> None:
    registry.register("s", 1, record("x"))
    found = decoding(registry, "registry:s")
    assert found.known_before is True

    def type_of(*heads: bytes) -> pa.DataType:
        return found.decoders(Heads(*heads))["value"].type  # type: ignore[arg-type]

    assert type_of(head(1)) == fields("x")
    registry.register("s", 2, record("x", "y"))
    assert type_of(head(1)) == fields("x"), "nothing is written with it yet"
    assert type_of(head(1), head(2)) == fields("x", "y")
    registry.asked.clear()
    assert type_of(head(2)) == fields("x", "y")
    assert registry.asked == []


@pytest.mark.parametrize("more", [0, 1])
def test_a_batch_with_ever_new_ids_is_none_of_a_registry(
    registry: SchemaRegistry, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kzconsumer_spark.columns.decoding.MOST_IDS", 10)
    found = decoding(registry)
    frame: Any = Heads(*map(head, range(10 + more)))
    if more:
        with pytest.raises(RegistryError, match="value: more than 10 schema ids in one batch"):
            found.decoders(frame)
    else:
        registry.by_id = {number: {"schema": json.dumps(record("x"))} for number in range(10)}
        assert found.decoders(frame)["value"].type == fields("x")


def test_schemas_in_files(tmp_path: Path) -> None:
    file = tmp_path / "r.avsc"
    for content, said in (
        (json.dumps(record("x")), ""),
        ("{", "r.avsc is not JSON: "),
        ('"Nobody"', "not an Avro schema: "),
    ):
        file.write_text(content)
        for kind in ("avro", "confluent-avro"):
            columns = Columns(
                value=FieldOptions(format=kind, schema=f"file:{file}"),
                registry=RegistryOptions(url="http://localhost:1") if kind == "confluent-avro" else None,
            )
            if said:
                with pytest.raises(ValueError, match=said) as raised:
                    schema_files.check_files(columns)
                assert str(raised.value).startswith("value.schema: ")
                with pytest.raises(Unsupported, match=said):
                    Decoding(columns)
            else:
                schema_files.check_files(columns)
                assert Decoding(columns).decoders(None)["value"].type == fields("x")
    file.unlink()
    with pytest.raises(ValueError, match=r"^value.schema: .*/r.avsc: cannot be read: No such file or directory$"):
        schema_files.check_files(Columns(value=FieldOptions(format="avro", schema=f"file:{file}")))
