"""A target keeps the format, layout and columns of its first rows: others would hide rows from readers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any, TypeAlias

import msgspec
import pytest
from structlog.testing import capture_logs

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.sinks.interface import SinkContext
from kzconsumer_files.directory_target import Target
from kzconsumer_files.layout import Merged, Misfit, merged_columns
from kzconsumer_files.range_names import NotOurs, TargetOwner
from kzconsumer_spark.daemon.marked_destination import Files
from kzconsumer_spark.daemon.sink import SparkSink
from kzconsumer_spark.worker_protocol.messages import ToFiles
from tests.support.batch_ranges import SETTINGS
from tests.support.extent import seeds

OWNER = TargetOwner(cluster="c", group="g")


def column(name: str, kind: object = "string", nullable: bool = True) -> dict[str, object]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def schema(*columns: Mapping[str, object]) -> str:
    return msgspec.json.encode({"type": "struct", "fields": columns}).decode()


def struct(*columns: Mapping[str, object]) -> dict[str, object]:
    return {"type": "struct", "fields": list(columns)}


def side(path: Path, **options: object) -> Files:
    return Files(msgspec.convert({"path": str(path), "type": "files", **options}, ToFiles))


@pytest.mark.parametrize(
    ("first", "then", "output"),
    [
        ({}, {"partition_by": ["day"]}, r'partition_by is none, these settings say "day"'),
        ({"partition_by": ["day"]}, {}, r'partition_by is "day", these settings say none'),
        (
            {"partition_by": ["a", "b"]},
            {"partition_by": ["b", "a"]},
            r'partition_by is "a", "b", these .* say "b", "a"',
        ),
        ({}, {"format": "orc"}, r"format is parquet, these settings say orc"),
    ],
)
def test_another_layout_is_refused(
    tmp_path: Path, first: Mapping[str, object], then: Mapping[str, object], output: str
) -> None:
    out = tmp_path / "out"
    side(out, **first).mark(OWNER)
    side(out, **first).mark(OWNER)
    for ask in (side(out, **then).mark, side(out, **then).find):
        with pytest.raises(NotOurs, match=output) as raised:
            ask(OWNER)
        assert "give another path" in str(raised.value)
        assert "\n" not in str(raised.value)


async def test_another_layout_is_a_fault_of_the_settings_that_verify_reports(tmp_path: Path) -> None:
    side(tmp_path).mark(OWNER)
    output = SinkContext(group="g", member="m", cluster="c", safe_until=lambda: math.inf, settings=SETTINGS)
    sink = SparkSink({"destination": "parquet", "path": str(tmp_path), "partition_by": ["day"]}, output)
    with pytest.raises(ConfigError, match=r"^\[sink.options\]: .* partition_by is none"):
        await sink.__aenter__()
    with pytest.raises(SinkError, match=r"partition_by is none"):
        await sink.holdings(count_rows=True)


def test_an_earlier_target_gets_the_layout_of_the_next_writer(tmp_path: Path) -> None:
    Target(tmp_path).mark(OWNER)  # the marker alone, as in earlier versions
    side(tmp_path).find(OWNER)
    side(tmp_path, partition_by=["day"]).mark(OWNER)
    with pytest.raises(NotOurs):
        side(tmp_path).find(OWNER)


@pytest.mark.parametrize("kind", ["layout-*", "owner"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"version":1}'])
def test_a_target_whose_files_cannot_be_read_is_refused(tmp_path: Path, kind: str, content: str) -> None:
    side(tmp_path).mark(OWNER)
    (file,) = (tmp_path / "_kzconsumer").glob(f"{kind}.json")
    file.write_text(content)
    for ask in (side(tmp_path).mark, side(tmp_path).find):
        with pytest.raises(NotOurs, match=f"{file} cannot be read: "):
            ask(OWNER)


def test_one_of_two_layouts_claimed_concurrently_is_refused(tmp_path: Path) -> None:
    both = Barrier(2)

    def mark(out: Path, kind: str) -> str:
        both.wait(30)
        try:
            side(out, format=kind).mark(OWNER)
        except NotOurs:
            return ""
        return kind

    with ThreadPoolExecutor(2) as racers:
        for number in range(40):
            out = tmp_path / str(number)
            won = [racers.submit(mark, out, kind) for kind in ("orc", "json")]
            (kind,) = filter(None, (each.result(60) for each in won))
            side(out, format=kind).find(OWNER)


def layout(path: Path, kind: str = "parquet") -> Target:
    side(path, format=kind).mark(OWNER)
    return Target(path)


AS_IT_WAS = (column("id", "long", False), column("text"), column("value", struct(column("a", "integer"))))


@pytest.mark.parametrize(
    ("columns", "output"),
    [
        ((column("id"), *AS_IT_WAS[1:]), r'column "id" is string, in the target long'),
        ((*AS_IT_WAS[:2], column("value", struct(column("a")))), r'column "value.a" is string, in the target integer'),
        (AS_IT_WAS[:2], r'column "value" is missing.*CAST\(NULL AS struct<a:integer>\)'),
        ((*AS_IT_WAS, column("n", "long", False)), r'column "n" is new and must not be null'),
        ((*AS_IT_WAS, column("Text")), r'column "Text" and the target\'s "text" differ in case only'),
    ],
)
def test_columns_that_earlier_rows_do_not_fit_are_refused(
    tmp_path: Path, columns: tuple[dict[str, object], ...], output: str
) -> None:
    target = layout(tmp_path)
    target.take_columns(schema(*AS_IT_WAS), whole=True)
    with pytest.raises(Misfit, match=output) as raised:
        target.take_columns(schema(*columns), whole=True)
    assert "\n" not in str(raised.value)
    target.take_columns(schema(*AS_IT_WAS), whole=True)


def test_an_additional_nullable_column_is_accepted_and_logged(tmp_path: Path) -> None:
    target = layout(tmp_path)
    target.take_columns(schema(*AS_IT_WAS), whole=True)
    more = (*AS_IT_WAS[:2], column("value", struct(column("a", "integer"), column("b"))), column("day", "date"))
    with capture_logs() as logs:
        for _ in range(2):
            target.take_columns(schema(*more), whole=True)
    (line,) = logs
    assert (line["event"], line["columns"]) == ("columns added to the target", ["value.b", "day"])
    with pytest.raises(Misfit, match=r'column "value.b" is missing'):
        target.take_columns(schema(*AS_IT_WAS), whole=True)
    # A batch may lack a column that none of its records has: with a registry, columns depend on the records.
    target.take_columns(schema(*AS_IT_WAS), whole=False)


def some_type(chance: Random, depth: int = 2) -> Any:
    match chance.choice(["string", "long", "struct", "array", "map"] if depth else ["string", "long"]):
        case "struct":
            names = chance.sample("abc", chance.randint(1, 3))
            return struct(*(column(name, some_type(chance, depth - 1)) for name in names))
        case "array":
            return {"type": "array", "elementType": some_type(chance, depth - 1), "containsNull": True}
        case "map":
            inner = some_type(chance, depth - 1)
            return {"type": "map", "keyType": "string", "valueType": inner, "valueContainsNull": True}
        case leaf:
            return leaf


def variant(kind: Any, chance: Random) -> Any:
    """The type without some of its columns, and with others that must not be null."""
    match kind:
        case {"fields": columns}:
            kept = [each for each in columns if chance.random() < 0.8]
            return struct(
                *(column(each["name"], variant(each["type"], chance), chance.random() < 0.7) for each in kept)
            )
        case {"elementType": inner}:
            return {**kind, "elementType": variant(inner, chance), "containsNull": chance.random() < 0.5}
        case {"valueType": inner}:
            return {**kind, "valueType": variant(inner, chance), "valueContainsNull": chance.random() < 0.5}
    return kind


Facts: TypeAlias = dict[tuple[str, ...], tuple[str, bool]]


def facts(kind: Any, at: tuple[str, ...] = ()) -> Facts:
    """By the path of each column, element and value: the name of its type, and whether it may be null."""
    match kind:
        case {"fields": columns}:
            inside = [(each["name"], each["type"], each["nullable"]) for each in columns]
        case {"elementType": inner, "containsNull": nulls}:
            inside = [("element", inner, nulls)]
        case {"valueType": inner, "valueContainsNull": nulls}:
            inside = [("value", inner, nulls)]
        case _:
            return {}
    found: Facts = {}
    for name, each, nulls in inside:
        found[*at, name] = each if isinstance(each, str) else each["type"], nulls
        found |= facts(each, (*at, name))
    return found


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", seeds(50, 2000))
def test_merged_columns_are_those_of_both(seed: int, whole: bool) -> None:
    """Whatever one lacks of what the other has may be null; otherwise what one says may be null."""
    chance = Random(seed)
    whole_type = struct(*(column(name, some_type(chance)) for name in "abc"))
    theirs, ours = (variant(whole_type, chance) for _ in range(2))
    before, after = facts(theirs), facts(ours)
    missing = [at for at in before.keys() - after if not at[:-1] or at[:-1] in after]
    added = [at for at in after.keys() - before if not at[:-1] or at[:-1] in before]
    if (whole and missing) or not all(after[at][1] for at in added):
        with pytest.raises(Misfit, match=r"is missing: earlier rows have it|is new and must not be null"):
            merged_columns(theirs["fields"], ours["fields"], whole=whole)
        return
    expected = {**after, **before}
    expected |= {at: (kind, nulls or after[at][1]) for at, (kind, nulls) in before.items() if at in after}
    expected |= {at: (expected[at][0], True) for at in (*missing, *added)}
    merged = merged_columns(theirs["fields"], ours["fields"], whole=whole)
    assert facts(struct(*merged.columns)) == expected
    assert sorted(merged.added) == sorted(".".join(at) for at in added)
    assert [each["name"] for each in merged.columns] == [*dict.fromkeys(at[0] for at in (*before, *after))]
    for columns in (theirs["fields"], ours["fields"], merged.columns):
        assert merged_columns(merged.columns, columns, whole=False) == Merged(merged.columns, ())


def test_csv_is_read_by_position(tmp_path: Path) -> None:
    target = layout(tmp_path, "csv")
    a, b = column("a"), column("b")
    target.take_columns(schema(a, b), whole=True)
    for other in ((b, a), (a, b, column("c")), (a,)):
        with pytest.raises(Misfit, match="csv is read by position: the columns must stay a string, b string"):
            target.take_columns(schema(*other), whole=False)


def test_columns_added_concurrently_both_fit_or_one_is_refused(tmp_path: Path) -> None:
    both = Barrier(2)

    def take(path: Path, kind: str) -> str:
        target = Target(path)
        both.wait(30)
        try:
            target.take_columns(schema(column("id", "long"), column(f"of_{kind}"), column("n", kind)), whole=False)
        except Misfit:
            return ""
        return kind

    with ThreadPoolExecutor(2) as racers:
        for number in range(40):
            path = layout(tmp_path / str(number)).path
            Target(path).take_columns(schema(column("id", "long")), whole=True)
            took = [racers.submit(take, path, kind) for kind in ("long", "string")]
            (kind,) = filter(None, (each.result(60) for each in took))
            with pytest.raises(Misfit, match=rf'column "n" is .*, in the target {kind}'):
                Target(path).take_columns(schema(column("n", "string" if kind == "long" else "long")), whole=False)
