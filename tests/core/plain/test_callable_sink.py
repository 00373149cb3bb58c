"""The callable sink: which references it accepts, and how the function's errors are reported."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.plugins import load_function, load_plain_function
from kzconsumer.sinks.builtin import CallableSink
from kzconsumer.sinks.interface import Batch, SinkContext
from tests.support.range_data import range_data

CONTEXT = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
SEEN: list[Batch] = []


async def keep(batch: Batch) -> None:
    SEEN.append(batch)


async def refuse(batch: Batch) -> None:
    raise ValueError("no room")


async def fails(batch: Batch) -> bool:
    return False


async def leaves(batch: Batch) -> None:
    sys.exit(0)


class Keeper:
    async def __call__(self, batch: Batch) -> None:
        SEEN.append(batch)


keeper = Keeper()


def plain(batch: Batch) -> None: ...


async def nothing() -> None: ...


async def two(batch: Batch, more: object) -> None: ...


async def two_of_which_one(batch: Batch, more: object = None) -> None: ...


async def keyword(*, batch: Batch) -> None: ...


async def both(df: object, batch_id: int) -> None: ...


def generate(df: object, batch_id: int) -> Iterator[None]:
    yield


async def async_generate(df: object, batch_id: int) -> AsyncIterator[None]:
    yield


def spark_function(df: object, batch_id: int) -> None: ...


def sink(name: str) -> CallableSink:
    return CallableSink({"function": f"{__name__}:{name}"}, CONTEXT)


@pytest.mark.parametrize("name", ["keep", "keeper"])
async def test_the_function_gets_the_batch(name: str) -> None:
    batch = Batch((range_data("t", 0, 0, 3),))
    async with sink(name) as entered:
        await entered.write(batch)
    assert SEEN.pop() is batch


@pytest.mark.parametrize(("function", "words"), [("fails", " returned False"), ("leaves", " raised SystemExit: 0")])
async def test_a_function_that_has_not_written_is_no_success(function: str, words: str) -> None:
    async with sink(function) as entered:
        with pytest.raises(SinkError, match=f"{function}{words}"):
            await entered.write(Batch(()))


async def test_an_exception_of_the_function_is_a_sink_error() -> None:
    async with sink("refuse") as entered:
        with pytest.raises(SinkError, match=rf"refuse raised ValueError: no room \({__file__}, line \d+\)$"):
            await entered.write(Batch((range_data("t", 0, 0, 3),)))


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("plain", "is not an async function"),
        ("refsue", "has no refsue; did you mean refuse?"),
        ("SEEN", "is a list, not a function"),
        ("Keeper", "is a class, not a function"),
        ("nothing", ":nothing cannot be called as (batch): too many positional arguments"),
        ("two", ":two cannot be called as (batch): missing a required argument: 'more'"),
        ("keyword", ":keyword cannot be called as (batch): too many positional arguments"),
    ],
)
def test_a_reference_to_anything_but_an_async_function_is_a_fault(reference: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sink(reference)
    (line,) = caught.value.faults
    assert line.startswith("[sink.options] function: ")
    assert line.endswith(fault)


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("json", '"json" is not "module:function"'),
        (":dumps", '":dumps" is not "module:function"'),
        ("no_such_module_here:f", "cannot import no_such_module_here: ModuleNotFoundError: No module named"),
    ],
)
def test_an_unresolvable_reference_is_reported_in_one_line(reference: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_function(reference, "where")
    (line,) = caught.value.faults
    assert line.startswith(f"where: {fault}")


def test_further_arguments_may_have_defaults() -> None:
    assert repr(sink("two_of_which_one")).endswith(":two_of_which_one)")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("both", "both is an async function; it must be a plain function"),
        ("keeper", "keeper is an async function; it must be a plain function"),
        ("generate", "generate is a generator; it must be a plain function"),
        ("async_generate", "async_generate is an async generator; it must be a plain function"),
        ("plain", "plain cannot be called as (df, batch_id): too many positional arguments"),
    ],
)
def test_a_plain_function_runs_when_it_is_called(name: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_plain_function(f"{__name__}:{name}", "where", "df", "batch_id")
    assert caught.value.faults == (f"where: {__name__}:{fault}",)
    assert load_plain_function(f"{__name__}:spark_function", "where", "df", "batch_id") is spark_function


def test_an_import_that_fails_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_import.py").write_text("import json\njson.loads('{')\n")
    (tmp_path / "imports_it.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_function("imports_it:f", "where")
    (line,) = caught.value.faults
    assert line == f"where: cannot import imports_it: RuntimeError: first second ({tmp_path}/imports_it.py, line 1)"
    with pytest.raises(ConfigError, match=r"JSONDecodeError: .*line \d+\)$"):
        load_function("fails_at_import:f", "where")


def test_the_current_directory_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_settings.py").write_text("def f(): return 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert load_function("beside_the_settings:f", "where")() == 5
