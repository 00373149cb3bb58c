"""`read_table`: every fault of a table is one line that says where and what it is and, if one is similar, the known
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from kzconsumer.errors import ConfigError
from kzconsumer.settings.table_reader import (
    ByteSize,
    Duration,
    PositiveDuration,
    faults_in,
    nearest,
    read_duration,
    read_table,
    reader,
    show_duration,
)


def read_even(value: object) -> int:
    if not isinstance(value, int) or value % 2:
        raise ValueError("is not an even number")
    return value


class Inner(msgspec.Struct, frozen=True):
    name: str
    colour: Literal["red", "green"] = "red"


class Table(msgspec.Struct, frozen=True):
    id: str
    inner: Inner
    count: Annotated[int, Meta(ge=1, le=9)] = 1
    ratio: float = 0.5
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    flag: bool = False
    wait: Duration = 1.0
    pause: PositiveDuration = 1.0
    size: ByteSize = 0
    even: Annotated[int, reader(read_even)] = 2
    names: tuple[str, ...] = ()
    weights: Annotated[Mapping[str, int], Meta(min_length=1)] = msgspec.field(default_factory=dict)
    free: Mapping[str, object] = msgspec.field(default_factory=dict)
    maybe: str | None = None
    either: str | int = 0


GOOD: dict[str, object] = {"id": "x", "inner": {"name": "n"}}


def faults(table: Mapping[str, object], where: str = "file.toml: [table]") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_table(table, Table, where)
    return list(caught.value.faults)


def test_defaults_are_the_structs() -> None:
    assert read_table(GOOD, Table, "[t]") == Table("x", Inner("n"))


def test_values_of_every_kind_are_read() -> None:
    table = GOOD | {
        "count": 9,
        "ratio": 1,
        "share": 1,
        "flag": True,
        "wait": "500ms",
        "pause": "1.5m",
        "size": "1MiB",
        "even": 4,
        "names": ["a", "b"],
        "weights": {"a": 1},
        "free": {"deep": {"er": [1, "2"]}},
        "maybe": "m",
        "either": "e",
    }
    assert read_table(table, Table, "[t]") == Table(
        "x",
        Inner("n"),
        count=9,
        ratio=1.0,
        share=1.0,
        flag=True,
        wait=0.5,
        pause=90.0,
        size=2**20,
        even=4,
        names=("a", "b"),
        weights={"a": 1},
        free={"deep": {"er": [1, "2"]}},
        maybe="m",
        either="e",
    )


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("id", 3, "id: 3 is not text"),
        ("count", "3", 'count: "3" is not a whole number'),
        ("count", True, "count: true is not a whole number"),
        ("count", 3.0, "count: 3.0 is not a whole number"),
        ("count", 0, "count: 0 is less than 1"),
        ("count", 10, "count: 10 is more than 9"),
        ("share", 0, "share: 0 is not more than 0"),
        ("share", 1.5, "share: 1.5 is more than 1"),
        ("ratio", "1", 'ratio: "1" is not a number'),
        ("ratio", True, "ratio: true is not a number"),
        ("flag", 1, "flag: 1 is not true or false"),
        ("wait", 10, 'wait: 10 is not a duration such as "10s", "500ms"'),
        ("wait", "10", 'wait: "10" is not a duration such as "10s", "500ms"'),
        ("wait", "-1s", 'wait: "-1s" is not a duration such as "10s", "500ms"'),
        ("wait", "1s ", 'wait: "1s " is not a duration such as "10s", "500ms"'),
        ("size", "1 MiB", 'size: "1 MiB" is not a size such as "1MiB", "64kB" or a whole number of bytes'),
        ("size", -1, 'size: -1 is not a size such as "1MiB", "64kB" or a whole number of bytes'),
        ("size", True, 'size: true is not a size such as "1MiB", "64kB" or a whole number of bytes'),
        ("even", 3, "even: 3 is not an even number"),
        ("names", "a", 'names: "a" is not a list, such as ["a"]'),
        ("names", {}, "names: {} is not a list"),
        ("names", ["a", 1], "names[1]: 1 is not text"),
        ("weights", {}, "weights: is empty"),
        ("weights", {"a": "1"}, 'weights.a: "1" is not a whole number'),
        ("free", 1, "free: 1 is not a table"),
        ("maybe", 1, "maybe: 1 is not text"),
        ("either", 1.5, "either: 1.5 is not text and is not a whole number"),
        ("either", None, "either: null is not text and is not a whole number"),
        ("coutn", 1, "coutn: unknown key; did you mean count?"),
        ("RATIO", 1, "RATIO: unknown key; did you mean ratio?"),
    ],
)
def test_a_fault_is_one_line(key: str, value: object, line: str) -> None:
    assert faults(GOOD | {key: value}) == [f"file.toml: [table] {line}"]


def test_a_positive_duration_must_not_be_zero() -> None:
    assert faults(GOOD | {"pause": "0s"}) == [
        'file.toml: [table] pause: "0s" must be longer than 0, such as "500ms" or "10s"'
    ]
    assert read_table(GOOD | {"wait": "0s"}, Table, "[t]").wait == 0


def test_all_faults_of_a_table_are_reported_at_once() -> None:
    table = {"inner": {"colour": "gren", "size": 1}, "count": "many", "zzz": 1}
    assert faults(table, "f:") == [
        'f: [inner] colour: "gren" is not one of green, red; did you mean "green"?',
        "f: [inner] size: unknown key; known are name, colour",
        "f: [inner] name: missing",
        'f: count: "many" is not a whole number',
        "f: zzz: unknown key; known are id, inner, count, ratio, share, flag, wait, pause, size, even, names, weights, "
        "free, maybe, either",
        "f: id: missing",
    ]


def test_a_table_inside_a_table_is_named_with_a_dot() -> None:
    assert faults(GOOD | {"inner": {"name": 1}}) == ["file.toml: [table.inner] name: 1 is not text"]
    assert faults(GOOD | {"inner": []}) == ["file.toml: [table.inner]: [] is not a table"]


def test_a_missing_table_is_reported_as_its_missing_keys() -> None:
    assert faults({"id": "x"}) == ["file.toml: [table.inner] name: missing"]


def test_a_rule_between_fields_is_a_fault_of_the_table() -> None:
    class Pair(msgspec.Struct, frozen=True):
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError("low is more than high")

    with pytest.raises(ConfigError, match=r"^\[pair\]: low is more than high$"):
        read_table({"low": 2, "high": 1}, Pair, "[pair]")


def test_long_values_are_cut() -> None:
    (line,) = faults(GOOD | {"count": "x" * 500})
    assert len(line) < 140


def test_lines_of_a_plugin_are_prefixed_with_the_file() -> None:
    with pytest.raises(ConfigError) as caught, faults_in("group.toml"):
        raise ConfigError(["[sink.options] a: missing", "[sink.options] b: missing"])
    assert caught.value.faults == ("group.toml: [sink.options] a: missing", "group.toml: [sink.options] b: missing")


def test_nearest_name() -> None:
    assert nearest("asignor", ["id", "assignor"]) == "assignor"
    assert nearest("destination", ["id", "assignor"]) is None


@given(st.integers(0, 10**10).map(lambda ms: ms / 1000))
def test_a_duration_round_trips(seconds: float) -> None:
    assert read_duration(show_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@given(st.integers(1, 10**4), st.sampled_from(["h", "m", "s", "ms"]))
def test_a_duration_is_shown_in_its_largest_whole_unit(number: int, unit: str) -> None:
    shown = show_duration(read_duration(f"{number}{unit}"))
    smaller = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    all_in_ms = number * smaller[unit]
    largest = max((each for each in smaller if all_in_ms % smaller[each] == 0), key=smaller.__getitem__)
    assert shown == f"{all_in_ms // smaller[largest]}{largest}"
